"""Builds `site/`: the pages of docs/ as HTML, and under `api/` one page per module from the docstrings.

Run as `make docs`. The pages are plain Markdown that reads well as files too, so all this adds is a frame, links
between `.html` instead of `.md`, and the API.
"""
from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path

import markdown2
import pdoc

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ruda_tensor", "ruda_autodiff", "ruda_nn", "ruda_optim", "ruda_record")
EXTRAS = ["fenced-code-blocks", "tables", "header-ids", "cuddled-lists"]
MARKDOWN_LINK = re.compile(r'href="(?!\w+:)([^"]+)\.md(#[^"]*)?"')
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem; font: 1.05rem/1.6 system-ui, sans-serif; }}
nav a {{ margin-right: 1rem; white-space: nowrap; }}
pre {{ background: #f5f5f5; padding: .8rem; overflow-x: auto; }}
code {{ font-size: .92em; }}
table {{ border-collapse: collapse; }} th, td {{ border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; }}
</style>
<nav>{nav}</nav>
{body}
</html>
"""


def title_of(text: str) -> str:
    """The page's first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else "ruda"


def build_pages(docs: Path, site: Path) -> list[Path]:
    """Write each Markdown page of `docs` as HTML at the same place below `site`; return what was written."""
    found = sorted((path.relative_to(docs) for path in docs.rglob("*.md")), key=lambda page: (len(page.parts), page))
    texts = {page.with_suffix(".html"): (docs / page).read_text(encoding="utf-8") for page in found}
    index = Path("index.html")
    titles = [(page, title_of(text)) for page, text in texts.items() if page != index]
    targets = [(index, "ruda"), *titles, (Path("api/index.html"), "API")]
    for page, text in texts.items():
        links = [(os.path.relpath(target, page.parent), title) for target, title in targets]
        nav = " ".join(f'<a href="{link}">{html.escape(title)}</a>' for link, title in links)
        body = MARKDOWN_LINK.sub(r'href="\1.html\2"', markdown2.markdown(text, extras=EXTRAS))
        out = site / page
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(PAGE.format(title=html.escape(title_of(text)), nav=nav, body=body), encoding="utf-8")
    return [site / page for page in texts]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    site = ROOT / "site"
    pages = build_pages(ROOT / "docs", site)
    pdoc.render.configure(docformat="markdown")
    pdoc.pdoc(*PACKAGES, output_directory=site / "api")
    print(f"{len(pages)} pages and the API: {(site / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
