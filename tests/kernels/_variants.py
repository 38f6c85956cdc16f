"""The kernels that a typical model compiles, collected by asking the bindings for them."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import (
    attention,
    attention_hopper,
    batch_norm,
    columns,
    conv,
    copies,
    cross_entropy,
    ids,
    norms,
    optimizer,
    pointwise,
    pool,
    reductions,
    rotary,
    segments,
    small_product,
    softmax,
)
from ruda_tensor.kernels.launch import Kernel
from ruda_tensor.kernels.plans import norm_plan, row_plan, sums_plan

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
        forward, sums = row_plan(n, vector, 32), sums_plan(n, vector, dtype.itemsize)
        held = sums.plan.items > 0
        flags = (True, held, held)
        for add, what in ((0, ""), (1, " of a sum")):
            stay = norm_plan(n, vector, dtype.itemsize, add=bool(add))
            yield f"layer_norm forward{what}, {where}", norms._forward(dtype, dtype, stay, 0, add)
            yield f"layer_norm backward{what}, {where}", norms._backward(dtype, dtype, sums, 0, flags, dtype if add else None)
        yield f"rms_norm backward, {where}", norms._backward(dtype, dtype, sums, 1, (*flags[:2], False))
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
    yield from _copies()
    for dtype, vector in ((FLOAT32, 4), (BFLOAT16, 8), (FLOAT32, 1)):
        yield from _images(dtype, vector)


def _images(dtype, vector: int) -> Iterator[tuple[str, Kernel]]:
    where, real = f"{dtype} by {vector}", FLOAT32
    window = conv.Window((3, 3), (1, 1), (1, 1))
    for name in ("conv_columns", "conv_images", "conv_bias"):
        yield f"{name}, 3 x 3, {where}", conv._kernel(name, dtype, dtype if name == "conv_columns" else real, vector, window)
    for name in batch_norm._SIGNATURES:
        yield f"{name}, {where}", batch_norm._kernel(name, dtype, dtype, vector, int(name == "batch_sums"))
    for name in ("max_pool_forward", "max_pool_backward", "avg_pool_forward", "avg_pool_backward"):
        yield f"{name}, 2 x 2, {where}", pool._kernel(name, dtype, vector, ((2, 2, 1, 0), (2, 2, 1, 0)))


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


def _copies() -> Iterator[tuple[str, Kernel]]:
    for source, target in ((FLOAT32, BFLOAT16), (BFLOAT16, FLOAT32), (FLOAT16, FLOAT32)):
        yield f"cast, {source} to {target}", copies._cast(source, target, copies.CAST_VECTOR, copies.CAST_BATCH)
    for width in (2, 4):
        yield f"permute_rows, {width} bytes", copies._rows(width, 16 // width, 3)
        yield f"permute_tiles, {width} bytes", copies._tiles(width, int(width == 2), 1)
    for n, group, rows in ((768, 32, 8), (4096, 128, 1)):
        yield f"row_reduce, rows of {n}", reductions._kernel(BFLOAT16, 8, group, rows, 0)


def _columns(name, dtype, vector: int, kind: int) -> Kernel:
    return columns._kernel(name, dtype, dtype, vector, kind, columns.tile_of(name, 4096, vector))


def _flat(dtype, straight: bool) -> Iterator[tuple[str, Kernel]]:
    vector, where = 16 // dtype.itemsize if straight else 1, f"{dtype} {'in vectors' if straight else 'one by one'}"
    for name in ("activation_forward", "activation_backward"):
        for kind in ("gelu", "gelu_tanh"):
            kernel = pointwise._kernel("activation.cu", name, dtype, vector, pointwise.BATCHES[name], columns.ACTIVATIONS[kind])
            yield f"{kind} {name}, {where}", kernel
    for name in ("silu_mul_forward", "silu_mul_backward"):
        yield f"{name}, {where}", pointwise._kernel("silu_mul.cu", name, dtype, vector, pointwise.BATCHES[name], 0)
    for name in ("bias_activation_forward", "bias_activation_backward", "activation_again"):
        yield f"gelu_tanh {name}, {where}", _columns(name, dtype, vector, 1)
    yield f"columns_reduce, {where}", _columns("columns_reduce", dtype, vector, -1)
    yield f"columns_norm, {where}", _columns("columns_norm", dtype, vector, -2)
    if straight:
        for wide in (8, 32):
            yield f"columns_finish, {wide} wide, {dtype}", columns._finish(dtype, wide)
        yield f"dropout, {dtype}", pointwise._dropout(dtype, pointwise.BATCHES["dropout"])
        yield f"cross_entropy_total, {dtype}", cross_entropy._reduce("cross_entropy_total", dtype)
        master = dtype == BFLOAT16
        kernel = optimizer._kernel(optimizer.Shape("adamw"), dtype, dtype, master, 512)
        yield f"adamw, {dtype}{' with masters' if master else ''}", kernel
        if dtype != FLOAT64:
            yield f"statistics_rows, {dtype}", optimizer._rows_kernel(dtype, 512, False)
    yield f"rotary, {where}", rotary._kernel(dtype, vector)
    for name in ("segments_sum", "segments_finish"):
        yield f"{name}, {where}", segments._sum(name, dtype, vector)
    if dtype == FLOAT32:
        yield "sort_ids_block", segments._sort("sort_ids_block", segments._ONE)
        for name in ("sort_ids_count", "sort_ids_scan", "sort_ids_scatter"):
            yield f"{name}, many", segments._sort(name, segments._MANY)
            if name != "sort_ids_scan":
                yield f"{name}, few", segments._sort(name, segments._FEW)
        for unit in (1, 2, 4, 8, 16):
            yield f"take_rows of {unit} bytes", segments._take(unit)
        for kind in ("int32", "int64"):
            yield f"check_ids, {kind}", ids._kernel(np.dtype(kind))
        yield "cross_entropy_factor, float32", cross_entropy._reduce("cross_entropy_factor", dtype)
        yield "statistics_reduce", optimizer._reduce_kernel()
        for tile in (16, 32):
            yield f"small_linear_backward, {tile}", small_product._backward(tile)
            for x_dense, y_dense in ((False, False), (True, False), (True, True)):
                what = f"{'rows' if x_dense else 'columns'} by {'columns' if y_dense else 'rows'}"
                yield f"small_product, {tile}, {what}", small_product._kernel(tile, x_dense, y_dense)
