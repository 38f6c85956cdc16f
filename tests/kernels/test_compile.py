"""Every kernel compiles for every architecture, and needs no more registers and spills no more than the table says.

    RUDA_UPDATE_REGISTERS=1 pytest tests/kernels/test_compile.py        writes registers.json anew
    RUDA_KERNELS=all pytest tests/kernels/test_compile.py               compiles all that the table has, for minutes

Without either, one kernel per entry is compiled for sm_90, and a few for the other architectures.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ruda_tensor.kernels.launch import Kernel, program

from ._shim import ALL
from ._variants import ARCHITECTURES, LEAST, kernels

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
HOPPER = "-arch=sm_90a"  # kernels with this option are for compute capability 9.0 alone
TABLE = Path(__file__).with_name("registers.json")
UPDATE = os.environ.get("RUDA_UPDATE_REGISTERS") == "1"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NVCC is None, reason="no nvcc to compile the CUDA sources with")]
USED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL
)


def release() -> str:
    """The compiler's release, whose counts the table holds."""
    text = subprocess.run([str(NVCC), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release ([\d.]+)", text)
    assert found is not None
    return found[1]


def compiled(kernel: Kernel, architecture: int, folder: Path, number: int) -> list[int]:
    """[registers, bytes of spill stores and loads] of a kernel, compiled as CuPy does: denormals are flushed."""
    source = folder / f"{number}.cu"
    source.write_text(program(kernel.source, kernel.defines))
    target = [f"-arch=sm_{architecture}"] if HOPPER not in kernel.options else []
    command = [str(NVCC), *target, "-cubin", "-Xptxas", "-v", "-ftz=true", "-std=c++17"]
    command += [*kernel.options, "-o", str(folder / f"{number}.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{kernel} for sm_{architecture}:\n{done.stderr}"
    assert "Performance Loss" not in done.stderr, f"{kernel}: products wait for each other:\n{done.stderr}"
    for name, stores, loads, registers in USED.findall(done.stderr):
        if name == kernel.name:
            return [int(registers), int(stores) + int(loads)]
    raise AssertionError(f"{kernel}: no report in\n{done.stderr}")


ANEW = "look at the change, then write the table anew: RUDA_UPDATE_REGISTERS=1 pytest tests/kernels/test_compile.py"
FEW = ("norm_backward", "cross_entropy_backward", "activation_backward", "optimizer_step")


def compiled_now(architecture: int) -> dict[str, Kernel]:
    """What this run compiles of `recorded`: all, or of each entry the kernel of the widest bfloat16 rows."""
    everything = recorded(architecture)
    if ALL or UPDATE:
        return everything
    one: dict[str, tuple[str, Kernel]] = {}
    for name, kernel in everything.items():
        if kernel.name not in one or ("bfloat16" in name and "weighted" not in name):
            one[kernel.name] = name, kernel
    return {name: kernel for name, kernel in one.values() if architecture == 90 or kernel.name in FEW}


def recorded(architecture: int) -> dict[str, Kernel]:
    """What the table has: all kernels for sm_90, and those of the common shapes and dtypes for the others."""
    everything = {name: kernel for name, kernel in kernels() if architecture >= LEAST.get(kernel.source, 0)}
    everything = {name: kernel for name, kernel in everything.items() if architecture == 90 or HOPPER not in kernel.options}
    if architecture == 90:
        return everything
    rare = ("rows of 64", "rows of 768", "rows of 131072", "one by one", "float64")
    return {name: kernel for name, kernel in everything.items() if not any(word in name for word in rare)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_and_need_no_more_than_before(architecture, tmp_path):
    wanted = compiled_now(architecture)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [pool.submit(compiled, k, architecture, tmp_path, i) for i, k in enumerate(wanted.values())]
        found = {name: job.result() for name, job in zip(wanted, work)}
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    if UPDATE:
        table["nvcc"] = release()
        table[f"sm_{architecture}"] = found
        text = json.dumps(table, indent=1, sort_keys=True)
        TABLE.write_text(re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", text) + "\n")
        return
    if table["nvcc"] != release():
        pytest.skip(f"all compile; their registers are recorded for nvcc {table['nvcc']}, and this is {release()}")
    known = table[f"sm_{architecture}"]
    assert set(known) == set(recorded(architecture)), f"kernels were added or went; {ANEW}"
    grown = [name for name in sorted(found) if any(a > b for a, b in zip(found[name], known[name]))]
    worse = [f"{name}: {known[name]} -> {found[name]}" for name in grown]
    assert not worse, f"registers or spills grew [registers, bytes]; {ANEW}\n" + "\n".join(worse)


def test_every_source_and_every_entry_is_among_them():
    folder = Path(__file__).parents[2] / "cuda_src"
    entries = {
        (path.name, name)
        for path in folder.glob("*.cu")
        for name in re.findall(r'extern "C" __global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\(\n', path.read_text())
    }
    assert len(entries) >= 20 and entries == {(kernel.source, kernel.name) for _, kernel in kernels()}


@pytest.mark.parametrize("name", ["layer_norm forward", "layer_norm backward", "softmax forward", "cross_entropy_backward"])
def test_halves_move_16_bytes_at_a_time(name, tmp_path):
    """The compiler has been seen to split stores of packs that it knew to be aligned."""
    kernel = dict(kernels())[f"{name}, bfloat16 rows of 4096"]
    source, text = tmp_path / "k.cu", tmp_path / "k.ptx"
    source.write_text(program(kernel.source, kernel.defines))
    subprocess.run([str(NVCC), "-arch=sm_90", "-ptx", "-std=c++17", "-o", str(text), str(source)], check=True, timeout=300)
    entry = text.read_text().partition(f".entry {kernel.name}(")[2].partition("\n}\n")[0]
    assert "st.global.v4" in entry and ".v4.u32" in entry
    narrow = re.findall(r"(?:ld|st)\.global[.\w]*u16", entry)
    assert narrow in ([], ["ld.global.nc.u16"]), "beyond the gradient of a scalar loss, nothing is read number by number"


@pytest.mark.parametrize("kind", ["forward, causal", "queries, causal", "keys, causal"])
def test_a_lane_says_for_its_warp_that_it_has_read_only_when_the_others_have(kind, tmp_path):
    """No GPU is needed to see that; on one, compute-sanitizer's racecheck watches it (`_asan.py`)."""
    name = next(name for name in dict(kernels()) if name.startswith(f"attention_hopper_{kind}, bfloat16 heads of 64"))
    kernel = dict(kernels())[name]
    source, text = tmp_path / "k.cu", tmp_path / "k.ptx"
    source.write_text(program(kernel.source, kernel.defines))
    subprocess.run([str(NVCC), HOPPER, "-ptx", "-std=c++17", "-o", str(text), str(source)], check=True, timeout=300)
    steps = re.findall(r"bar\.warp\.sync|ld\.shared|try_wait|wgmma\.\w+|mbarrier\.arrive\.shared", text.read_text())
    before = [earlier for earlier, step in zip(steps, steps[1:]) if step == "mbarrier.arrive.shared"]
    assert len(before) >= 4 and set(before) == {"bar.warp.sync"}
