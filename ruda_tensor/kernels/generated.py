"""Generated elementwise kernels: how each array is read, and the text around the lines that `ruda_tensor/fusion` writes.

Every input is read where it lies, by its strides against the result's shape. Axes that all arrays walk through alike are
joined; along the last one an input is read in vectors, is one number, or is gathered.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import BOOL, INTEGER
from .gate import CTYPES, MOST_BLOCKS, ceil_div, fused
from .launch import Kernel, runtime

THREADS = 256  # as in fused.cuh
MOST_AXES = 6
STORED = {**CTYPES, BOOL: "Bool", **{d: {1: "char", 2: "short", 4: "int", 8: "long long"}[d.itemsize] for d in INTEGER}}
STORED |= {d: f"{'unsigned' if d.kind == 'u' else 'signed'} {STORED[d]}" for d in INTEGER}


class Program:
    """The lines of a kernel that makes `outs` of `inputs` and numbers.

    In them `LOADED_j(k)` is number k of input j, `p0` the first of the numbers, and `b0.at[k]` number k of a result.
    `quick`: contraction of products and sums is allowed. `plans` remembers how arrays of some layout are read, and `kernels`
    what reads them so.
    """

    __slots__ = ("name", "inputs", "numbers", "outs", "lines", "quick", "plans", "kernels")

    def __init__(
        self, name: str, inputs: tuple[np.dtype, ...], numbers: tuple[np.dtype, ...], outs: tuple[np.dtype, ...],
        lines: tuple[str, ...], quick: bool,
    ) -> None:
        self.name, self.inputs, self.numbers, self.outs, self.lines, self.quick = name, inputs, numbers, outs, lines, quick
        self.plans: dict[tuple, tuple | None] = {}
        self.kernels: dict[Reading, Kernel] = {}


class Reading(NamedTuple):
    """How the arrays are walked through: what a kernel is compiled for.

    `modes` per input: "vector", "one" or "gather" along the last axis. `axes`: how many there are before it.
    """

    modes: tuple[str, ...]
    axes: int
    vector: int
    batch: int
    wide: bool  # 64-bit positions


def steps(shape: tuple[int, ...], array: Any) -> tuple[int, ...]:
    """The strides of an array, in its own elements, along the axes of the shape that it is broadcast to."""
    missing = len(shape) - array.ndim
    own = [0 if n == 1 else s // array.itemsize for n, s in zip(array.shape, array.strides, strict=True)]
    return (0,) * missing + tuple(own)


def joined(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[list[int], list[list[int]]]:
    """The sizes and each array's strides with axes of size 1 left out, and neighbours joined where all arrays allow it."""
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(f[-1] == s[axis] * n for f, s in zip(found, strides, strict=True)):
            sizes[-1] *= n
            for f, s in zip(found, strides, strict=True):
                f[-1] = s[axis]
        else:
            sizes.append(n)
            for f, s in zip(found, strides, strict=True):
                f.append(s[axis])
    return (sizes, found) if sizes else ([1], [[0] for _ in strides])


def reading(program: Program, sizes: list[int], strides: list[list[int]], addresses: list[int]) -> Reading:
    """How to read arrays at these addresses with these strides. Vectors are 16 bytes of the widest array."""
    modes = tuple(["vector" if s[-1] == 1 else "one" if s[-1] == 0 else "gather" for s in strides])
    straight = [(d, s, a) for d, s, a, m in zip(program.inputs, strides, addresses, modes, strict=True) if m == "vector"]
    vector = min(8, 16 // max(d.itemsize for d in (*program.outs, *(d for d, _, _ in straight))))
    rows = len(sizes) > 1
    if (rows and sizes[-1] % vector) or any(
        a % (d.itemsize * vector) and a % 16 or any(step % vector for step in s[:-1]) for d, s, a in straight
    ):
        vector = 1
    arrays = sum(m != "one" for m in modes) + len(program.outs)
    batch = max(1, min(2, 32 // (vector * arrays)))  # more need registers, and move no more
    return Reading(modes, len(sizes) - 1, vector, batch, math.prod(sizes) >= 1 << 31)


def text(program: Program, how: Reading) -> str:
    """The kernel."""
    inputs, axes = range(len(program.inputs)), range(how.axes)
    parameters = [f"const {STORED[d]}* __restrict__ x{j}" for j, d in enumerate(program.inputs)]
    parameters += [f"{STORED[d]}* __restrict__ y{j}" for j, d in enumerate(program.outs)]
    parameters += ["i64 size", *[f"i64 last{j}" for j in inputs if how.modes[j] == "gather"]]
    parameters += [f"Place n{axis}" for axis in range(how.axes + 1) if how.axes]
    parameters += [f"i64 s{j}_{axis}" for j in inputs for axis in axes]
    parameters += [f"{CTYPES[d]} p{j}" for j, d in enumerate(program.numbers)]
    lines = [f'#line 1 "{program.name}, generated"', f"typedef {'i64' if how.wide else 'u32'} Place;"]
    lines += [f"#define LOADED_{j}(k) a{j}[i].at[{'0' if how.modes[j] == 'one' else 'k'}]" for j in inputs]
    lines.append(f'extern "C" __global__ void __launch_bounds__(FUSED_THREADS) {program.name}(')
    lines += ["    " + ",\n    ".join(parameters), ") {"]
    for j, d in enumerate(program.inputs):
        lines.append(f"    Pack<{STORED[d]}, {'1' if how.modes[j] == 'one' else 'VECTOR'}> a{j}[BATCH];")
    lines += ["    EACH_BATCH(i, e) {", *_loads(how), "    }", "    EACH_BATCH(i, e) {"]
    lines += [f"        Pack<{STORED[d]}, VECTOR> b{j};" for j, d in enumerate(program.outs)]
    lines += ["        EACH_OF(k) {", *[f"            {line}" for line in program.lines], "        }"]
    lines += [f"        give(y{j} + e, b{j}, size - e);" for j in range(len(program.outs))]
    return "\n".join([*lines, "    }", "}", ""])


def _loads(how: Reading) -> list[str]:
    """The position of vector e in each array, by division from the last axis to the first, and the loads."""
    lines = []
    if how.axes:
        lines += ["Place left = (Place)e;", f"const Place c = left % n{how.axes};", f"left /= n{how.axes};"]
        for axis in range(how.axes - 1, -1, -1):
            lines += [f"const Place c{axis} = {f'left % n{axis}' if axis else 'left'};"]
            lines += [f"left /= n{axis};"] * (axis > 0)
    last = "(i64)c" if how.axes else "e"
    for j, mode in enumerate(how.modes):
        along = {"vector": f" + {last}", "one": "", "gather": f" + {last} * last{j}"}[mode]
        place = f"x{j}{along}" + "".join(f" + (i64)c{axis} * s{j}_{axis}" for axis in range(how.axes))
        loaded = {"vector": "take({}, size - e)", "one": "load<1>({})", "gather": f"gather({{}}, last{j}, size - e)"}[mode]
        lines.append(f"a{j}[i] = {loaded.format(place)};")
    return [f"        {line}" for line in lines]


_kernels: dict[str, Kernel] = {}
MOST_KERNELS = 4096


def kernel(program: Program, how: Reading) -> Kernel:
    """The kernel of a program for one way of reading, compiled when it is first launched; equal texts are one kernel."""
    known = program.kernels.get(how)
    if known is not None:
        return known
    written = text(program, how)
    key = f"{how.vector} {how.batch} {program.quick} {written}"
    found = _kernels.get(key)
    if found is None:
        pointers = "P " * (len(program.inputs) + len(program.outs))
        gathered, place = how.modes.count("gather"), "q " if how.wide else "I "
        signature = pointers + "q " * (1 + gathered) + place * (how.axes + 1 if how.axes else 0)
        signature += "q " * (how.axes * len(program.inputs))
        signature += "".join(["d " if d.itemsize == 8 else "f " for d in program.numbers])
        options = () if program.quick else ("--fmad=false",)
        defines = {"VECTOR": how.vector, "BATCH": how.batch}
        if len(_kernels) >= MOST_KERNELS:
            _kernels.clear()
        found = _kernels[key] = Kernel("fused.cuh", program.name, signature, defines, options, text=written)
    program.kernels[how] = found
    return found


def plan(program: Program, shape: tuple[int, ...], arrays: list[Any], addresses: list[int]) -> tuple | None:
    """(kernel, grid, what is said of the layout) for arrays of this layout; None where it is too much for a kernel."""
    size = math.prod(shape)
    sizes, strides = joined(shape, [steps(shape, a) for a in arrays])
    how = reading(program, sizes, strides, addresses)
    grid = ceil_div(size, THREADS * how.vector * how.batch)
    if len(sizes) > MOST_AXES or grid > MOST_BLOCKS:
        return None
    layout = [size, *[s[-1] for s, m in zip(strides, how.modes, strict=True) if m == "gather"]]
    if how.axes:
        layout += sizes
        layout += [step for s in strides for step in s[:-1]]
    return kernel(program, how), (grid, 1), tuple(layout)


def run(
    xp: Any, program: Program, shape: tuple[int, ...], arrays: list[Any], numbers: Sequence[float] = ()
) -> list[Any] | None:
    """The results, each of `shape`; None where kernels are off, or where the arrays have too many unlike axes."""
    machine = runtime(xp)
    if machine is None or not fused():
        return None
    outs = [xp.empty(shape, d) for d in program.outs]
    if 0 in shape:
        return outs
    addresses = [machine.address(a) & 15 for a in arrays]
    key = (shape, *addresses, *[a.strides for a in arrays], *[a.shape for a in arrays])
    plans = program.plans
    if key not in plans:
        if len(plans) >= MOST_PLANS:
            plans.clear()
        plans[key] = plan(program, shape, arrays, addresses)
    found = plans[key]
    if found is None:
        return None
    launch, grid, layout = found
    launch(grid, _BLOCK, *arrays, *outs, *layout, *numbers)
    return outs


_BLOCK = (THREADS, 1)
MOST_PLANS = 256
