"""The cases of kernels, through the public functions: on a GPU, and where that is possible by the sources run on the CPU."""
from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Embedding, Module, Param
from ruda_optim import AdamWConfig, GradientsParams
from tests.kernels._hooks import launching

from ._fused import FUSED, NARROWEST, check, draw, exact, run


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.fixture
def gpu(place):
    return place.kind == "cuda"


def names(width: int) -> list[str]:
    return [name for name in FUSED if width >= NARROWEST.get(name, 1)]


class Table(Module):
    weight: Param


@pytest.mark.gpu
def test_CUDA_01_more_than_2_to_the_31_elements():
    device, rows, n = rt.Cuda(0), 2**21 + 1, 1024
    x, at = rt.zeros((rows, n), dtype=rt.float16, device=device), rt.tensor([0, rows // 2, rows - 1], device=device)

    def seen(y):
        return rt.take(y, at, axis=0).astype(rt.float64).numpy()

    assert (seen(rt.softmax(x)) == 0.0009765625).all()
    bias = rt.full(n, 3.0, dtype=rt.float16, device=device)
    assert (seen(rt.layer_norm(x, None, bias)) == 3).all()
    ids = rt.full(rows, n - 1, dtype=rt.int64, device=device)
    losses = seen(rt.cross_entropy(x, ids, reduction="none"))
    assert losses == pytest.approx(math.log(1024), rel=1e-3)
    model = Table(weight=Param(x, device=Autodiff(device)))
    y = rt.take(model.weight, rt.tensor([rows - 1, 0, rows - 1], device=device), axis=0)
    assert not y.numpy().any()
    gradients = GradientsParams.from_grads(rt.sum(y.astype(rt.float32)).backward(), model)
    assert (seen(gradients[model.weight])[:, 0] == [1, 0, 2]).all()
    del x, y
    model = AdamWConfig().init().step(0.5, model, gradients)
    assert np.abs(seen(model.weight)[:, 0] - [-0.5, 0, -0.5]).max() < 1e-3
    device.xp.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("dtype", [rt.float32, rt.float16], ids=str)
def test_CUDA_03_contiguous_but_not_aligned(place, dtype, rng, gpu):
    for offset in (1, 2, 3, 5) if gpu else (1,):
        for width in (64, 63) if gpu else (64,):
            for name in names(width):
                fused, shape = FUSED[name], (9, width)
                arrays = draw(rng, fused, shape)
                tensors = []
                for a in arrays:
                    around = np.concatenate([np.full(offset, np.nan), a.ravel(), [np.nan] * 8])
                    buffer = rt.tensor(around, dtype=dtype, device=place)
                    tensors.append(rt.reshape(buffer[offset : offset + a.size], a.shape))
                    assert tensors[-1]._data.flags.c_contiguous
                check(name, tensors, exact(fused, arrays))


def widths(gpu: bool) -> list[int]:
    return [1, 2, 3, 5, 31, 33, 63, 65, 127, 129, 255, 257, 1023, 1025, 4097] if gpu else [1, 5, 129]


def test_CUDA_04_every_width_between_nans(place, rng, gpu):
    for width in widths(gpu):
        for rows in (1, 2, 3):
            for name in names(width):
                arrays = draw(rng, FUSED[name], (rows, width))
                tensors = []
                for a in arrays:
                    guarded = np.full([n + 2 for n in a.shape], np.nan)
                    guarded[(slice(1, -1),) * a.ndim] = a
                    tensors.append(rt.tensor(guarded, dtype=rt.float32, device=place)[(slice(1, -1),) * a.ndim])
                contiguous_alone = name == "embedding"
                check(name, tensors, exact(FUSED[name], arrays), slack=2, kernel=not contiguous_alone)


DTYPES = (rt.float32, rt.bfloat16, rt.float16)
ROWWISE = ("softmax", "log_softmax", "cross_entropy", "layer_norm", "rms_norm", "embedding", "rotary", "column sums")


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 3, 33, 129])
def test_CUDA_04_many_rows(width, rng):
    for name in names(width) if width < 33 else ROWWISE:
        arrays = draw(rng, FUSED[name], (65_537, width))
        expected = exact(FUSED[name], arrays)
        for dtype in DTYPES:
            check(name, [rt.tensor(a, dtype=dtype, device=rt.Cuda(0)) for a in arrays], expected, slack=4)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [65_535, 65_536, 65_537, 131_073, 262_147])
def test_CUDA_05_rows_wider_than_a_block(width, rng):
    for name in ROWWISE:
        arrays = draw(rng, FUSED[name], (3, width))
        expected = exact(FUSED[name], arrays)
        for dtype in DTYPES:
            check(name, [rt.tensor(a, dtype=dtype, device=rt.Cuda(0)) for a in arrays], expected, slack=4)
    for dtype in DTYPES:
        flat = rt.softmax(rt.zeros((2, width), dtype=dtype, device=rt.Cuda(0))).astype(rt.float64).numpy()
        half_a_unit = 2.0**-25 if dtype == rt.float16 else 0  # of float16's smallest numbers
        assert np.abs(flat - 1 / width).max() <= 4e-3 / width + half_a_unit


# An id needs a class, or a row of the table.
NOTHING_TO_ASK = {("cross_entropy", (4, 0)), ("cross_entropy", (0,)), ("embedding", (0, 6)), ("embedding", (0,))}


def test_CUDA_06_empty_inputs_give_empty_results_and_nothing_breaks(place):
    for name, fused in FUSED.items():
        for shape in ((0, 6), (4, 0), (0,)):
            if (name, shape) in NOTHING_TO_ASK or (name == "rotary" and shape == (0,)):
                continue
            inputs = [rt.zeros(s, device=place) for s in (shape, *fused.more(shape))]
            y, *gradients = run(fused, inputs)
            assert [g.shape for g in gradients] == [x.shape for x in inputs]
            assert not any(np.asarray(g.numpy()).any() for g in gradients), name
            assert 0 in y.shape or name in ("cross_entropy", "column sums")
            assert (rt.zeros(3, device=place) + 1.0).tolist() == [1.0, 1.0, 1.0]
    x = rt.zeros((0, 6), device=place).require_grad()
    w, b = rt.ones(6, device=place).require_grad(), rt.ones(6, device=place).require_grad()
    found = rt.sum(rt.layer_norm(x, w, b)).backward()
    assert not found[w].numpy().any() and not found[b].numpy().any()
    place.synchronize()


def layouts(place) -> dict[str, rt.Tensor]:
    base = rt.reshape(rt.arange(12.0, dtype=rt.float32, device=place), (3, 4)) / 4.0
    wide = rt.tensor(np.arange(64.0).reshape(2, 32) / 16.0, dtype=rt.float32, device=place)
    with place.guard():
        fortran = rt.Tensor._wrap(place.xp.asfortranarray(base._data), place)
    return {
        "columns": base[:, :3], "transposed": rt.matrix_transpose(base), "broadcast": rt.broadcast_to(base[0], (5, 4)),
        "Fortran": fortran, "backwards": base[::-1, ::-1], "every other": wide[:, ::2],
        "one row": rt.broadcast_to(wide[:1], (5, 32)),
    }  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_CUDA_07_strided_views_are_read_as_what_they_show(place, name):
    fused = FUSED[name]
    for x in layouts(place).values():
        if x.shape[1] < NARROWEST.get(name, 1):
            continue
        # The other inputs are strided too: a column of a matrix, or the view itself.
        pairs = rt.reshape(rt.arange(2.0 * x.shape[1], dtype=rt.float32, device=place), (-1, 2))
        views = [x, *[x if len(shape) == 2 else pairs[:, 0] for shape in fused.more(x.shape)]]
        with place.guard():
            copies = [rt.Tensor._wrap(v._data.copy(order="C"), place) for v in views]
        assert not views[0]._data.flags.c_contiguous
        for a, b in zip(run(fused, views), run(fused, copies), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes(), name


def test_CUDA_07_columns_are_0_1_2_4_5_6_8_9_10(place):
    x = rt.reshape(rt.arange(12.0, dtype=rt.float32, device=place), (3, 4))[:, :3]
    assert rt.relu(x).numpy().ravel().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def _ids(device, shape, size):
    return rt.tensor(np.arange(np.prod(shape)).reshape(shape) * 7919 % size, device=device)


@functools.cache
def _waves(device):
    return rt.tensor(np.sin(np.arange(96e5)).reshape(-1, 96), dtype=rt.float32, device=device)


# The shape of the leaf, and what is done with it.
REPEATS = {
    "embedding": ((7, 64), lambda d, w: rt.take(w, _ids(d, 100_000, 7), axis=0)),
    "bias": (33, lambda d, b: rt.linear(rt.ones((1_000_000, 2), device=d), rt.ones((2, 33), device=d), b)),
    "layer_norm's weight": (96, lambda d, w: rt.layer_norm(_waves(d), w, None)),
    "gather": ((50, 40), lambda d, x: rt.take_along_axis(x, _ids(d, (10_000, 40), 50), axis=0)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", REPEATS)
def test_CUDA_14_gradients_have_the_same_bits_20_times(name):
    device, rng = rt.Cuda(0), np.random.default_rng(0)
    shape, call = REPEATS[name]
    leaf = rt.tensor(rng.standard_normal(shape), dtype=rt.float32, device=device).require_grad()
    seed = None
    found = set()
    for _ in range(20):
        y = call(device, leaf)
        seed = rt.tensor(rng.standard_normal(y.shape), dtype=rt.float32, device=device) if seed is None else seed
        found.add(leaf.grad(rt.sum(y * seed).backward()).numpy().tobytes())
    assert len(found) == 1


def script(name: str, **env: str) -> str:
    """What a function of _cuda_scripts.py prints in a process of its own."""
    command = [sys.executable, "-m", "tests.cases._cuda_scripts", name]
    root, where = Path(__file__).parents[2], {**os.environ, "RUDA_DEVICE": "cpu", **env}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, env=where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.gpu
def test_CUDA_09_what_another_stream_reads_is_not_overwritten_once_it_is_waited_for():
    assert script("streams") == "100 right"


@pytest.mark.gpu
@pytest.mark.parametrize("own", ["0", "1"], ids=["one stream", "a stream per thread"])
def test_CUDA_10_threads_train_as_if_alone(own):
    assert script("threads", CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=own) == "8 threads alike"


@pytest.mark.gpu
def test_CUDA_12_a_forked_child_uses_the_cpu_and_is_told_to_spawn():
    first, *others = script("fork").splitlines()
    assert first == "cpu [2.0, 2.0]"
    assert len(others) == 6 and all("spawn" in line for line in others), others


def test_CUDA_12_importing_touches_no_gpu():
    assert script("imported") == "no CuPy, no driver"


@pytest.mark.gpu
def test_CUDA_12_a_child_forked_after_the_import_alone_has_the_gpu():
    assert script("fork_first") == "[2.0, 2.0]"


def test_embedding_modules_use_the_kernels_and_a_padding_row_gets_nothing(place):
    from ruda_tensor.kernels.launch import HITS

    table = Embedding(weight=Param(rt.ones((5, 2), device=place), device=Autodiff(place)), padding_idx=0)
    HITS.clear()
    ids = rt.tensor([[0, 1, 4], [0, 0, 4]] * 60, device=place)
    g = rt.sum(table(ids)).backward()[table.weight].numpy()
    assert g.tolist() == [[0, 0], [60, 60], [0, 0], [0, 0], [120, 120]]
    assert HITS["take_rows"] and HITS["segments_sum"]
