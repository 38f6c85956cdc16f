"""The kernels on a GPU: every one against float64 at odd sizes, on views, on special values, and 20 times over."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import columns, cross_entropy, launch, norms, optimizer, pointwise, softmax
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.ops import _normalize

from . import _cases as cases
from . import _optimizers, _special

pytestmark = pytest.mark.gpu
WIDTHS = [1, 2, 3, 5, 31, 33, 63, 65, 127, 129, 255, 257, 768, 1023, 1025, 4096, 4097]
LONG = [8192, 16384, 32768, 65535, 65536, 65537, 131073, 262147]
KINDS = list(columns.ACTIVATIONS)


@pytest.fixture
def xp():
    rt.Cuda(0)
    poisoned = cases.Poisoned(backend.cupy())
    yield poisoned
    poisoned.check()


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_rows_of_any_width(xp, rng, dtype, n):
    for rows in (1, 3, 517):
        cases.norm(xp, rng, dtype, rows, n)
        cases.norm(xp, rng, dtype, rows, n, rms=True)
        for log in (False, True):
            cases.softmaxes(xp, rng, dtype, rows, n, log=log)
        cases.entropy(xp, rng, dtype, rows, n)
        cases.activations(xp, rng, dtype, "gelu_tanh", rows, n, bias="same")
        cases.summed(xp, rng, dtype, rows, n)
        xp.check()


@pytest.mark.parametrize("n", [3, 264, 4096])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64], ids=str)
def test_other_dtypes(xp, rng, dtype, n):
    cases.norm(xp, rng, dtype, 65, n, weights="real")
    cases.norm(xp, rng, dtype, 65, n, rms=True, weights="none")
    for log in (False, True):
        cases.softmaxes(xp, rng, dtype, 65, n, log=log)
    cases.entropy(xp, rng, dtype, 65, n, weighted=True, smoothing=0.1, ignore=True)
    cases.activations(xp, rng, dtype, "gelu", 65, n, bias="real")
    cases.summed(xp, rng, dtype, 65, n)


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16], ids=str)
def test_rows_wider_than_a_block(xp, rng, dtype, n):
    cases.norm(xp, rng, dtype, 5, n)
    cases.softmaxes(xp, rng, dtype, 5, n, log=False)
    cases.softmaxes(xp, rng, dtype, 5, n, log=True)
    cases.entropy(xp, rng, dtype, 5, n, weighted=True, smoothing=0.1, ignore=True)
    zeros = xp.zeros((2, n), dtype)
    assert backend.to_host(softmax.forward(xp, zeros, axis=1, log=False)).astype(float).ravel() == pytest.approx(1 / n, rel=4e-3)


@pytest.mark.parametrize("rows", [65_537, 300_000])
def test_many_short_rows(xp, rng, rows):
    for dtype, n in ((FLOAT32, 3), (BFLOAT16, 64)):
        cases.norm(xp, rng, dtype, rows, n)
        cases.softmaxes(xp, rng, dtype, rows, n, log=False)
        cases.entropy(xp, rng, dtype, rows, n, ignore=True)


@pytest.mark.parametrize("shift", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_views_that_are_not_aligned(xp, rng, dtype, shift):
    cases.norm(xp, rng, dtype, 33, 768, shift=shift)
    cases.softmaxes(xp, rng, dtype, 33, 768, log=False, shift=shift)
    cases.entropy(xp, rng, dtype, 33, 768, shift=shift)
    cases.activations(xp, rng, dtype, "silu", 33, 768, shift=shift)
    cases.activations(xp, rng, dtype, "gelu_tanh", 33, 768, bias="same", shift=shift)
    cases.gated(xp, rng, dtype, 10_001, shift=shift)
    cases.dropped(xp, rng, dtype, 10_001, 0.3, 7, 2**40, shift=shift)
    layout = (dtype, dtype, dtype == FLOAT16)
    _optimizers.steps(xp, rng, "adamw", layout, [4099, 7], shift=shift)
    _optimizers.report(xp, [rng.standard_normal(10_007).astype(dtype)], shift=shift)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_in_all_its_forms(xp, rng, weighted, reduction):
    for smoothing in (0.0, 0.1):
        for ignore in (False, True):
            static = {"weighted": weighted, "smoothing": smoothing, "ignore": ignore, "reduction": reduction}
            cases.entropy(xp, rng, BFLOAT16, 100, 1000, **static)
            cases.entropy(xp, rng, FLOAT32, 100, 1000, **static, reuse=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_activations(xp, rng, dtype, kind):
    for size in (1, 7, 100_003):
        cases.activations(xp, rng, dtype, kind, 1, size)
    for needs in ((True, True), (True, False), (False, True)):
        cases.activations(xp, rng, dtype, kind, 1000, 264, bias="same", needs=needs)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_activations_of_all_halves(xp, dtype, kind):
    cases.every_half(xp, dtype, kind)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_silu_mul_and_dropout(xp, rng, dtype):
    for size in (1, 7, 100_003):
        cases.gated(xp, rng, dtype, size)
        cases.dropped(xp, rng, dtype, size, 0.1, 2**63 + 5, 2**64 - 3)


@pytest.mark.parametrize("needs", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])
def test_only_the_gradients_that_are_asked_for(xp, rng, needs):
    for n in (64, 768, 40_000):
        cases.norm(xp, rng, FLOAT32, 40, n, needs=needs)
        cases.norm(xp, rng, FLOAT32, 40, n, rms=True, needs=needs)


def test_sums_over_many_rows(xp, rng):
    for dtype in (FLOAT32, BFLOAT16):
        cases.norm(xp, rng, dtype, 100_000, 96)
        cases.summed(xp, rng, dtype, 1_000_000, 8)
        cases.activations(xp, rng, dtype, "gelu_tanh", 100_000, 96, bias="same")


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_reductions(xp, rng, dtype, kind):
    for rows, n in ((1, 33), (3000, 768), (100_003, 40), (257, 20_000)):
        cases.reduced(xp, rng, dtype, rows, n, kind, last=False)
        if dtype.itemsize == 2 and rows > 256:
            cases.reduced(xp, rng, dtype, rows, n, kind, last=True)
            cases.reduced(xp, rng, dtype, rows, n, kind, last=True, shift=1)


@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_special_values(xp, rng, dtype):
    for n in (8, 264, 5000, 70_000):
        _special.check(xp, dtype, n, rng)


def test_strided_views_are_read_as_what_they_show(xp):
    base = xp.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    for view in (base[:, :3], base.T, xp.broadcast_to(base[0], (5, 4)), xp.asfortranarray(base), base[::-1, ::2]):
        copy = view.copy(order="C")
        for run in (
            lambda a: softmax.forward(xp, a, axis=1, log=False),
            lambda a: softmax.backward(xp, a, a, axis=1, log=True),
            lambda a: norms.layer_forward(xp, a, None, None, axes=1, eps=1e-5)[0],
            lambda a: norms.layer_forward(xp, a.copy(), a[0], a[0], axes=1, eps=1e-5)[0],
            lambda a: pointwise.activation_forward(xp, "gelu", a),
            lambda a: columns.sum_columns(xp, a, a.shape[1], a.dtype),
            lambda a: pointwise.silu_mul_forward(xp, a, a),
        ):
            assert (backend.to_host(run(view)) == backend.to_host(run(copy))).all()


def test_nothing_is_launched_for_empty_arrays_and_what_follows_works(xp):
    for shape in ((0, 7), (7, 0), (0,)):
        x = xp.zeros(shape, np.float32)
        assert softmax.forward(xp, x, axis=len(shape) - 1, log=False) is None
        assert norms.layer_forward(xp, x, None, None, axes=1, eps=1e-5) is None
        assert pointwise.activation_forward(xp, "relu", x) is None
    assert float((xp.zeros(3) + 1).sum()) == 3.0
    backend.synchronize(0)


def test_the_bits_are_the_same_20_times(xp):
    def everything():
        rng = np.random.default_rng(0)
        found = cases.norm(xp, rng, BFLOAT16, 3000, 768) + cases.norm(xp, rng, FLOAT32, 300, 40_000)
        found += cases.entropy(xp, rng, FLOAT32, 3000, 1000, ignore=True) + cases.summed(xp, rng, FLOAT32, 100_000, 40)
        found += cases.softmaxes(xp, rng, BFLOAT16, 300, 4096, log=False)
        found += cases.activations(xp, rng, BFLOAT16, "gelu", 3000, 768, bias="same")
        report = _optimizers.report(xp, [cases.draw(rng, 100_000, FLOAT32), cases.draw(rng, 77, FLOAT32)])
        xp.made.clear()
        return [backend.to_host(a).tobytes() for a in found if a is not None] + [report.tobytes()]

    first = everything()
    assert all(everything() == first for _ in range(19))


def test_every_pairing_of_fused_and_plain_is_right(xp, rng):
    for dtype in (FLOAT32,):
        x, w, b, g = (xp.asarray(cases.draw(rng, s, dtype, 3.0)) for s in ((65, 768), 768, 768, (65, 768)))
        static = {"axes": 1, "eps": 1e-5}
        exact = cases.reference.layer_norm_backward(*[cases.wide(a) for a in (g, x, w)], 1e-5, False)
        for forward in (norms.layer_forward, _normalize.layer_forward):
            for backward in (norms.layer_backward, _normalize.layer_backward):
                kept = forward(xp, x, w, b, **static)[1:]
                found = backward(xp, g, x, w, *kept, needs=(True, True, True), **static)
                for a, expected in zip(found, exact):
                    cases.close(a, expected, slack=128, scale=64)


@pytest.mark.parametrize("name", _optimizers.RULES)
@pytest.mark.parametrize("layout", _optimizers.LAYOUTS, ids=lambda a: f"{a[0]}-{a[1]}-{a[2]}")
def test_updates_have_the_bits_of_the_plain_rule(xp, rng, name, layout):
    _optimizers.steps(xp, rng, name, layout, [5, 2049, 1, 70_001, 768])


def test_a_model_of_many_parameters(xp, rng):
    _optimizers.steps(xp, rng, "adamw", (BFLOAT16, BFLOAT16, True), [768] * 100 + [5000] * 48)
    _optimizers.steps(xp, rng, "adamw", (FLOAT32, FLOAT32, False), [33] * 700)


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30, 1e38])
def test_the_norm_of_gradients(xp, rng, scale):
    sizes = [1, 31, 33, 32 * 1024, 32 * 1024 + 1, 1_000_003, *[2304] * 40]
    gradients = [(rng.uniform(-1, 1, n) * scale).astype(np.float32) for n in sizes]
    _optimizers.report(xp, gradients)
    gradients[5][999_999] = np.nan
    assert _optimizers.report(xp, gradients)[0] == 1
    for dtype in (FLOAT16, BFLOAT16):
        _optimizers.report(xp, [rng.standard_normal(n).astype(dtype) for n in sizes])


def test_more_than_2_to_the_31_elements(xp):
    cp, rows, n = backend.cupy(), 2**21 + 1, 1024
    x, at = cp.zeros((rows, n), np.float16), [0, rows // 2, rows - 2, rows - 1]
    out = softmax.forward(cp, x, axis=1, log=False)
    assert (backend.to_host(out[at]) == np.float16(1 / 1024)).all()
    bias = cp.full(n, 3, np.float16)
    out = norms.layer_forward(cp, x, None, bias, axes=1, eps=1e-5)[0]
    assert (backend.to_host(out[at]) == 3).all()
    ids = cp.full(rows, n - 1, np.int64)
    static = {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "none"}
    loss, top, whole = cross_entropy.forward(cp, x, ids, None, **static)
    assert backend.to_host(loss[at]).astype(float) == pytest.approx(math.log(1024), rel=1e-3)
    assert (backend.to_host(whole[at]) == 1024).all()
    g = cp.ones(rows, np.float16)
    dx = cross_entropy.backward(cp, g, x, ids, None, top, whole, **static, out=out)
    assert (backend.to_host(dx[at, n - 1]) == np.float16(1 / 1024 - 1)).all()
    p, g = x.reshape(-1), cp.ones(x.size, np.float16)
    optimizer.update(cp, optimizer.Shape("sgd"), optimizer.Numbers(0.5), [optimizer.Entry(p, g, None, [])])
    assert (backend.to_host(x[at]) == -0.5).all()
    report = backend.to_host(optimizer.gradient_report(cp, [g]))
    assert report[0] == 0 and report[1] == 1 and report[2] == pytest.approx(x.size, rel=1e-5)
    out = pointwise.activation_forward(cp, "relu", x)
    assert (backend.to_host(out[at]) == 0).all()
    assert columns.sum_columns(cp, g.reshape(rows, n), n, FLOAT16).shape == (n,)


def test_the_counter_counts_and_the_gate_shuts(xp):
    x = xp.ones((4, 8), np.float32)
    before = launch.HITS["softmax_forward"]
    assert softmax.forward(xp, x, axis=1, log=False) is not None
    assert launch.HITS["softmax_forward"] == before + 1
    with use_fused(False):
        assert softmax.forward(xp, x, axis=1, log=False) is None
    assert launch.HITS["softmax_forward"] == before + 1


def test_failures_name_the_kernel_and_leave_the_process_working(xp):
    x = xp.ones(8, np.float32)
    defines = {"STORAGE": "float", "VECTOR": 4, "BATCH": 1, "KIND": 0}
    broken = launch.Kernel("activation.cu", "activation_forward", "P P q", defines | {"STORAGE": "nothing"})
    with pytest.raises(launch.KernelError, match=r"activation_forward does not compile: .*error"):
        broken((1, 1), (256, 1), x, x, 8)
    good = launch.Kernel("activation.cu", "activation_forward", "P P q", defines)
    with pytest.raises(launch.KernelError, match=r"activation_forward with grid \(1, 1\), block \(4096, 1\).*float32\(8,\)"):
        good((1, 1), (4096, 1), x, x, 8)
    good((1, 1), (256, 1), x, x, 8)
    assert backend.to_host(x).tolist() == [1.0] * 8


def test_out_of_memory_says_how_much_and_leaves_the_process_working(xp):
    device, pool = rt.Cuda(0), backend.cupy().get_default_memory_pool()
    whole = backend.cupy().cuda.runtime.memGetInfo()[1]
    held = rt.ones(1 << 20, device=device)
    for ask in (
        lambda: rt.ones((whole // 4 + 1, 1), device=device),
        lambda: rt.softmax(rt.broadcast_to(held, (whole // 4 // held.size + 1, held.size))),
    ):
        rt.ones(1 << 28, device=device)
        assert pool.free_bytes() >= 1 << 30
        with pytest.raises(MemoryError, match=r"allocating [\d,]+ bytes \(allocated so far: [\d,]+ bytes"):
            ask()
        assert pool.free_bytes() < 1 << 30, "what was not in use went back to the driver"
        assert float(rt.softmax(held).sum().numpy()) == pytest.approx(1, rel=1e-4)


def test_code_that_the_driver_refuses_names_the_kernel(xp):
    machine = launch.current()
    with pytest.raises(launch.KernelError, match="the kernel nowhere cannot be loaded: CUDA_ERROR_NOT_FOUND"):
        machine.load('extern "C" __global__ void here() {}', "nowhere", (), 0)
    assert float(rt.softmax(rt.ones(4, device=rt.Cuda(0))).sum().numpy()) == 1


def test_the_current_stream_is_used(xp):
    cp = backend.cupy()
    x, stream = cp.ones((4096, 4096), np.float32), cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        for _ in range(20):
            x = softmax.forward(cp, x, axis=1, log=False)
    stream.synchronize()
    assert backend.to_host(x[0, 0]) == np.float32(1 / 4096)
