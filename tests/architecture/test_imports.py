"""The walls between the packages: who may import whom, lazily or not."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ._source import PACKAGES, ROOT, imports, package_of, python_files, relative

ALLOWED = {
    "ruda_tensor": {"ruda_tensor"},
    "ruda_autodiff": {"ruda_tensor", "ruda_autodiff"},
    "ruda_nn": {"ruda_tensor", "ruda_autodiff", "ruda_nn", "ruda_record"},
    "ruda_optim": set(PACKAGES),
    "ruda_record": {"ruda_record"},
}
CUPY = {"cupy", "cupyx", "cupy_backends"}
CUPY_ROOMS = ("ruda_tensor/backend.py", "ruda_tensor/kernels/")
CORE = {"numpy", "ml_dtypes", "msgpack"}
# Beyond the core dependencies, each in its own rooms, and never on importing a package (tested below).
OPTIONAL = {
    "hypothesis": ("ruda_autodiff/testing",),
    "safetensors": ("ruda_record/",),
    "mpi4py": ("ruda_tensor/", "ruda_autodiff/", "ruda_optim/"),
}


def wall_breaks(source: str, file: str, module: str) -> list[str]:
    """What a file imports that its place does not allow, as "file:line imports name (why)"."""
    package, broken = file.partition("/")[0], []
    for line, name in imports(source, module):
        top = name.partition(".")[0]
        if top in PACKAGES:
            why = None if top in ALLOWED[package] else f"{package} stands below or beside {top}"
        elif top in CUPY:
            inside = file == CUPY_ROOMS[0] or file.startswith(CUPY_ROOMS[1])
            why = None if inside else f"only {' and '.join(CUPY_ROOMS)} import CuPy"
        elif top in OPTIONAL:
            why = None if file.startswith(OPTIONAL[top]) else f"only {', '.join(OPTIONAL[top])} may use {top}"
        elif top in CORE or top in sys.stdlib_module_names:
            why = None
        else:
            why = "not a dependency: add it to docs/decisions and to this list"
        if why:
            broken.append(f"{file}:{line} imports {name} ({why})")
    return broken


def test_packages_import_only_what_their_place_allows():
    files = python_files(*PACKAGES)
    assert len(files) >= len(PACKAGES), "the packages were not found"
    broken = [
        line
        for path in files
        for line in wall_breaks(path.read_text(encoding="utf-8"), relative(path), package_of(path))
    ]
    assert not broken, "\n".join(broken)


def test_autodiff_knows_no_kernels():
    broken = [
        f"{relative(path)}:{line} imports {name}"
        for path in python_files("ruda_autodiff")
        for line, name in imports(path.read_text(encoding="utf-8"), package_of(path))
        if name.startswith("ruda_tensor.kernels")
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("file", "module", "source"),
    [
        ("ruda_tensor/tensor.py", "ruda_tensor", "import ruda_autodiff"),
        ("ruda_tensor/tensor.py", "ruda_tensor", "def f():\n    from ruda_record import save"),
        ("ruda_tensor/ops/reduce.py", "ruda_tensor.ops", "import cupy as cp"),
        ("ruda_tensor/ops/reduce.py", "ruda_tensor.ops", "def f():\n    return importlib.import_module('cupy')"),
        ("ruda_tensor/ops/reduce.py", "ruda_tensor.ops", "from cupyx.scipy import special"),
        ("ruda_autodiff/tape.py", "ruda_autodiff", "from ruda_nn.module import Module"),
        ("ruda_nn/linear.py", "ruda_nn", "if TYPE_CHECKING:\n    import ruda_optim"),
        ("ruda_record/file.py", "ruda_record", "import ruda_tensor as rt"),
        ("ruda_record/file.py", "ruda_record", "import hypothesis"),
        ("ruda_nn/linear.py", "ruda_nn", "import torch"),
    ],
)
def test_a_broken_wall_is_seen(file, module, source):
    assert len(set(wall_breaks(source, file, module))) >= 1


def test_allowed_imports_and_relative_ones_are_not_breaks():
    assert not wall_breaks("from ..kernels import sources\nimport numpy", "ruda_tensor/ops/x.py", "ruda_tensor.ops")
    assert not wall_breaks("import cupy\nimport cupyx", "ruda_tensor/kernels/launch.py", "ruda_tensor.kernels")
    assert list(imports("from ..kernels import sources", "ruda_tensor.ops")) == [
        (1, "ruda_tensor.kernels"),
        (1, "ruda_tensor.kernels.sources"),
    ]


def _python(code: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_alone_brings_nothing_heavy(package):
    names = _python(f"import sys, {package}\nprint(*sys.modules)").split()
    loaded = {name.partition(".")[0] for name in names}
    assert package in loaded
    heavy = {*CUPY, *OPTIONAL, "scipy", "torch", "sklearn", "matplotlib", "pytest", "tqdm"} & loaded
    assert not heavy, f"import {package} also imports {sorted(heavy)}; import them where they are used"
    above = (set(PACKAGES) & loaded) - ALLOWED[package]
    assert not above, f"import {package} also imports {sorted(above)}"


def test_importing_layers_and_optimizers_is_quick():
    """Under 0.25 s of processor time beyond NumPy; one quiet try is enough, since a busy machine only makes it longer."""
    clock = "time.process_time()"
    code = f"import time, numpy\nstart = {clock}\nimport ruda_nn, ruda_optim\nprint({clock} - start)"
    tries: list[float] = []
    while len(tries) < 8 and (not tries or min(tries) >= 0.25):
        tries.append(float(_python(code)))
    assert min(tries) < 0.25, f"the quickest of {len(tries)} tries took {min(tries):.3f} s"
