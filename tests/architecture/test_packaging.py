"""What is shipped: the wheel and the source distribution hold the kernels and the type markers, and the wheel runs."""
from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from ._source import PACKAGES, ROOT

pytestmark = pytest.mark.slow
KERNEL_FILES = sorted(path.name for path in (ROOT / "cuda_src").iterdir() if path.is_file())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A source distribution of this checkout, and the wheel built from that distribution."""
    for name in ("build", "hatchling"):
        pytest.importorskip(name, reason=f"{name} builds the wheel (pip install 'ruda[test]')")
    there = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(there), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = there.glob("*.whl"), there.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_packages_kernels_and_type_markers_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    for package in PACKAGES:
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= names
    assert KERNEL_FILES and {f"ruda_tensor/cuda_src/{name}" for name in KERNEL_FILES} <= names
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".c", ".h"}]
    sources = {path.relative_to(ROOT).as_posix() for path in files}
    assert sources <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_source_distribution_holds_kernels_tests_and_docs(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"cuda_src/{name}" for name in KERNEL_FILES} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "docs/index.md", "tests/conftest.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))]


def test_the_wheel_runs_away_from_the_checkout_and_finds_its_kernels(built, tmp_path):
    zipfile.ZipFile(built[0]).extractall(tmp_path)
    code = (
        "import ruda_tensor, ruda_autodiff, ruda_nn, ruda_optim, ruda_record\n"
        "from ruda_tensor.kernels.sources import source_folder\n"
        "names = sorted(entry.name for entry in source_folder().iterdir())\n"
        "print(ruda_tensor.__file__, source_folder(), *names, sep='\\n')"
    )
    command, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    package, kernels, *found = done.stdout.splitlines()
    assert package == str(tmp_path / "ruda_tensor" / "__init__.py")
    assert kernels == str(tmp_path / "ruda_tensor" / "cuda_src") and found == KERNEL_FILES


def test_core_dependencies_are_the_three():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [dependency.partition(">")[0] for dependency in project["dependencies"]]
    assert names == ["numpy", "ml_dtypes", "msgpack"]
    assert {"cuda13", "cuda12", "mpi", "safetensors", "examples", "test", "lint", "docs"} <= set(project["optional-dependencies"])
