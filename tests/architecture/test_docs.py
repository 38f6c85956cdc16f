"""The README and the pages tell the truth: their code runs, and the files they name are there."""
from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_nn
from ruda_tensor import tensor

from ._source import FOLDERS, ROOT, relative

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "cuda_src" / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NAMED = re.compile(rf"`((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)`")


def broken_references(text: str, folder: Path) -> list[str]:
    """The relative links, and the paths in backticks, that lead nowhere; `make docs` writes those below api/."""
    links = [(name, anchor) for name, anchor in LINK.findall(text) if not name.startswith("api/")]
    broken = [name for name, _ in links if not (folder / name).exists()]
    pages = [(name, anchor) for name, anchor in links if anchor and name not in broken]
    broken += [f"{name}#{anchor}" for name, anchor in pages if anchor not in anchors((folder / name).read_text("utf-8"))]
    return broken + [name for name in NAMED.findall(text) if not (ROOT / name).exists()]


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links: lower case, without punctuation, joined by hyphens."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_and_named_files_are_there(page):
    broken = broken_references(page.read_text(encoding="utf-8"), page.parent)
    assert not broken, f"{relative(page)} names what is not there: {', '.join(broken)}"


def test_a_broken_reference_is_seen():
    text = "[a](README.md) [b](gone.md#x) [c](https://example.org) `docs/index.md` `ruda_tensor/gone.py` `x/y.py`"
    assert broken_references(text, ROOT) == ["gone.md", "ruda_tensor/gone.py"]
    text = "[a](docs/layers.md#a-layer-with-state) [b](docs/records.md#gone) [c](docs/records.md#precision)"
    assert broken_references(text, ROOT) == ["docs/records.md#gone"]


def not_in(text: str, names: Iterable[str], mark: str) -> list[str]:
    return [name for name in names if mark.format(name) not in text]


def test_the_index_leads_to_every_page():
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md")) if path.name != "index.md"]
    text = (docs / "index.md").read_text(encoding="utf-8")
    assert not_in(text, pages, "]({})") == []
    assert not_in(text, ["gone.md"], "]({})") == ["gone.md"]


def test_every_cuda_source_has_its_paragraph():
    sources = sorted(path.name for path in (ROOT / "cuda_src").glob("*.cu*"))
    text = (ROOT / "cuda_src" / "README.md").read_text(encoding="utf-8")
    assert len(sources) > 40 and not_in(text, sources, "`{}`") == []


def test_the_reading_order_names_what_runs_on_a_gpu():
    folders = ROOT / "ruda_tensor" / "kernels", ROOT / "ruda_tensor" / "static"
    files = [path.name for folder in folders for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    text = (ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8")
    assert not_in(text, files, "{}`") == []


def layers_not_named(text: str) -> list[str]:
    """The public layers, losses and initializers that a page names neither by themselves nor by their configuration."""
    public = {name: getattr(ruda_nn, name) for name in ruda_nn.__all__}
    kinds = ruda_nn.Module, ruda_nn.Initializer
    layers = [name for name, c in public.items() if isinstance(c, type) and issubclass(c, kinds)]
    return [name for name in layers if name != "Module" and not re.search(rf"`{name}(Config)?\b", text)]


def test_the_page_of_layers_has_them_all():
    text = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert layers_not_named(text) == []
    assert layers_not_named(text.replace("`GruConfig(", "`gone(").replace("`Mish`", "")) == ["Gru", "Mish"]
    assert layers_not_named(text.replace("`Ones`", "")) == ["Ones"]


def test_the_readme_s_code_runs_and_its_training_step_learns():
    names: dict[str, Any] = {}
    for block in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        exec(compile(block, "README.md", "exec"), names)
    rng = np.random.default_rng(0)
    model, optimizer, device, losses = names["model"], names["optimizer"], names["device"], []
    for _ in range(200):
        values = rng.standard_normal((16, 2)).astype(np.float32)
        x = tensor(values, device=device)
        y = tensor(values @ np.array([[1.5], [-2.0]], np.float32) + 0.5, device=device)
        losses.append(float(np.square(model(x).numpy() - y.numpy()).mean()))
        model = names["train_step"](model, optimizer, x, y, 0.05)
    assert np.mean(losses[-5:]) < 0.01 * np.mean(losses[:5])
