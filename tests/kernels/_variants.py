"""The kernels that a typical model compiles, collected by asking the bindings for them."""
from __future__ import annotations

from collections.abc import Iterator

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import attention, attention_hopper, columns, cross_entropy, norms, optimizer, pointwise, softmax
from ruda_tensor.kernels.launch import Kernel
from ruda_tensor.kernels.plans import row_plan, sums_plan

ARCHITECTURES = (75, 80, 90, 100)
LEAST = {"attention_forward.cu": 80, "attention_backward.cu": 80}  # the architecture that a source needs
# (dtype, width, aligned): a warp per row, GPT-2's width, the widest common one, odd rows, rows too long for registers.
ROWS = [(BFLOAT16, 64, True), (BFLOAT16, 768, True), (BFLOAT16, 4096, True), (FLOAT32, 4096, True), (FLOAT16, 4097, False),
        (FLOAT32, 131072, True), (FLOAT64, 1024, True)]  # fmt: skip
FLAT = [(BFLOAT16, True), (FLOAT16, False), (FLOAT32, True), (FLOAT64, True)]


def kernels() -> Iterator[tuple[str, Kernel]]:
    """(name, kernel), each name once."""
    for dtype, n, straight in ROWS:
        vector = 16 // dtype.itemsize if straight else 1
        where = f"{dtype} rows of {n}"
        forward, (sums, resident) = row_plan(n, vector, 32), sums_plan(n, vector)
        flags = (True, sums.items > 0, sums.items > 0)
        yield f"layer_norm forward, {where}", norms._forward(dtype, dtype, forward, 0)
        yield f"layer_norm backward, {where}", norms._backward(dtype, dtype, sums, resident, 0, flags)
        yield f"rms_norm backward, {where}", norms._backward(dtype, dtype, sums, resident, 1, (*flags[:2], False))
        yield f"softmax forward, {where}", softmax._kernel("softmax_forward", "P P q i", dtype, forward, 0)
        back = row_plan(n, vector, 4 * vector)
        yield f"softmax backward, {where}", softmax._kernel("softmax_backward", "P P P q i", dtype, back, 0)
        plan = cross_entropy._plan(n, vector)
        for name in ("cross_entropy_forward", "cross_entropy_backward"):
            yield f"{name}, {where}", cross_entropy._rows(name, dtype, plan, False, False)
            if n == 4096:
                yield f"{name}, weighted, smoothed, {where}", cross_entropy._rows(name, dtype, plan, True, True)
    for dtype, straight in FLAT:
        yield from _flat(dtype, straight)
    for dtype in (BFLOAT16, FLOAT16):
        for d in attention.HEADS:
            where = f"{dtype} heads of {d}"
            yield f"attention_forward, {where}", attention._forward(dtype, d, True, attention.FORWARD[d])
            for kind, table in (("queries", attention.OF_QUERIES), ("keys", attention.OF_KEYS)):
                name = f"attention_backward_{kind}"
                yield f"{name}, {where}", attention._backward(name, dtype, d, True, table[d])
            yield from _hopper(dtype, d, where)


def _hopper(dtype, d: int, where: str) -> Iterator[tuple[str, Kernel]]:
    for causal, seen in ((True, "causal"), (False, "all")):  # the compiler may refuse to overlap products in one of them
        for tiles in dict.fromkeys(attention_hopper.FORWARD[d]):
            forward = attention_hopper._forward(dtype, d, causal, tiles)
            yield f"attention_hopper_forward, {seen}, {where}, {tiles.own} own", forward
        for kind, table in (("queries", attention_hopper.OF_QUERIES), ("keys", attention_hopper.OF_KEYS)):
            name = f"attention_hopper_{kind}"
            for tiles in dict.fromkeys(table[d]):
                kernel = attention_hopper._backward(name, dtype, d, causal, tiles)
                yield f"{name}, {seen}, {where}, {tiles.own} own", kernel
    yield f"attention_hopper_rows, {where}", attention_hopper._rows(dtype, d)


def _flat(dtype, straight: bool) -> Iterator[tuple[str, Kernel]]:
    vector, where = 16 // dtype.itemsize if straight else 1, f"{dtype} {'in vectors' if straight else 'one by one'}"
    for name, batch in (("activation_forward", 4), ("activation_backward", 2)):
        for kind in ("gelu", "gelu_tanh"):
            kernel = pointwise._kernel("activation.cu", name, dtype, vector, batch, columns.ACTIVATIONS[kind])
            yield f"{kind} {name}, {where}", kernel
    for name in ("silu_mul_forward", "silu_mul_backward"):
        yield f"{name}, {where}", pointwise._kernel("silu_mul.cu", name, dtype, vector, 2, 0)
    for name in ("bias_activation_forward", "bias_activation_backward"):
        yield f"gelu_tanh {name}, {where}", columns._kernel(name, dtype, dtype, vector, 1)
    yield f"columns_sum, {where}", columns._kernel("columns_sum", dtype, dtype, vector, -1)
    yield f"columns_norm, {where}", columns._kernel("columns_norm", dtype, dtype, vector, -2)
    if straight:
        yield f"columns_finish, {dtype}", columns._finish(dtype)
        yield f"dropout, {dtype}", pointwise._dropout(dtype)
        yield f"cross_entropy_total, {dtype}", cross_entropy._reduce("cross_entropy_total", dtype)
        master = dtype == BFLOAT16
        kernel = optimizer._kernel(optimizer.Shape("adamw"), dtype, dtype, master, 512)
        yield f"adamw, {dtype}{' with masters' if master else ''}", kernel
        if dtype != FLOAT64:
            yield f"statistics_rows, {dtype}", optimizer._rows_kernel(dtype, 512)
    if dtype == FLOAT32:
        yield "cross_entropy_factor, float32", cross_entropy._reduce("cross_entropy_factor", dtype)
        yield "statistics_reduce", optimizer._reduce_kernel()
