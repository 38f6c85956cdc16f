"""Making tensors: ranges, grids, triangles, fills, and DLPack both ways."""
from __future__ import annotations

from array import array

import numpy as np
import pytest

import ruda_tensor as rt

from ._helpers import CPU, close, gradient

FLOATS = (rt.float16, rt.bfloat16, rt.float32, rt.float64)
ALL = (*FLOATS, rt.bool, rt.int8, rt.int16, rt.int32, rt.int64, rt.uint8, rt.uint16, rt.uint32, rt.uint64)


def test_default_dtypes_are_those_of_the_device(device):
    wide = rt.Cpu(float_dtype=rt.float64, int_dtype=rt.int64)
    assert rt.arange(3, device=device).dtype == rt.int32 and rt.arange(3, device=wide).dtype == rt.int64
    assert rt.arange(3.0, device=device).dtype == rt.float32 and rt.arange(0, 1, 0.5, device=wide).dtype == rt.float64
    for make in (rt.zeros, rt.ones, rt.empty):
        assert make((2,), device=device).dtype == rt.float32 and make(2, device=wide).dtype == rt.float64
    assert rt.linspace(0, 1, 3, device=device).dtype == rt.float32 and rt.eye(2, device=wide).dtype == rt.float64
    assert rt.full(2, 1, device=device).dtype == rt.int32 and rt.full(2, True, device=device).dtype == rt.bool
    assert rt.full(2, np.float64(1), device=device).dtype == rt.float32


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_can_be_made(dtype, device):
    for make in (rt.zeros, rt.ones, rt.empty):
        x = make((2, 3), dtype=dtype, device=device)
        assert x.dtype == dtype and x.shape == (2, 3) and x.device == device
    assert rt.eye(3, dtype=dtype, device=device).astype(rt.int32).numpy().tolist() == np.eye(3).tolist()
    x = rt.full((2,), 1, dtype=dtype, device=device)
    for like in (rt.zeros_like(x), rt.ones_like(x), rt.empty_like(x), rt.full_like(x, 1)):
        assert like.dtype == dtype and like.shape == (2,) and like.device == device
    assert rt.zeros_like(x, dtype=rt.float64).dtype == rt.float64
    if dtype != rt.bool:
        assert rt.arange(5, dtype=dtype, device=device).astype(rt.float32).numpy().tolist() == [0, 1, 2, 3, 4]
        grid, expected = rt.tril(rt.arange(9, dtype=dtype, device=device).reshape(3, 3)), np.arange(9).reshape(3, 3)
        assert grid.dtype == dtype and np.array_equal(grid.astype(rt.int32).numpy(), np.tril(expected))


RANGES = [
    (5,), (0,), (-3,), (2, 7), (7, 2), (7, 2, -1), (0, 10, 3), (0, 9, 3), (10, 0, -3), (0.5,), (0.0, 1.0, 0.1), (3, 3),
    (1, 0, -0.25),
]  # fmt: skip


@pytest.mark.parametrize("arguments", RANGES)
def test_arange_is_that_of_numpy(arguments, device):
    found, expected = rt.arange(*arguments, device=device), np.arange(*arguments)
    assert found.shape == expected.shape
    close(found, expected, rtol=1e-6)


def test_arange_is_rounded_once_and_checked(device):
    x = rt.arange(0, 1, 1e-3, dtype=rt.float16, device=device).numpy()
    assert np.array_equal(x, (np.arange(1000) * 1e-3).astype(np.float16))
    assert rt.arange(2**40, 2**40 + 2, dtype=rt.int64, device=device).numpy().tolist() == [2**40, 2**40 + 1]
    top = 2**64 - 1
    assert rt.arange(top - 1, top, dtype=rt.uint64, device=device).numpy().tolist() == [top - 1]
    with pytest.raises(OverflowError, match="int32.*int64"):
        rt.arange(2**31, 2**31 + 1, device=device)
    with pytest.raises(OverflowError, match="uint8"):
        rt.arange(257, dtype=rt.uint8, device=device)
    for step in (0, 0.0, rt.nan):
        with pytest.raises(ValueError, match="arange: needs finite ends and a step that is not 0"):
            rt.arange(0, 5, step, device=device)
    with pytest.raises(TypeError, match="arange: expected a number"):
        rt.arange("5", device=device)


def test_linspace(device):
    for arguments in ((0, 1, 5), (1, 0, 4), (-2.5, 7.1, 11), (3, 3, 4), (0, 1, 1), (0, 1, 0)):
        for endpoint in (True, False):
            found = rt.linspace(*arguments, dtype=rt.float64, endpoint=endpoint, device=device)
            close(found, np.linspace(*arguments, endpoint=endpoint), rtol=1e-15)
    assert rt.linspace(0, 0.1, 4, device=device).numpy()[-1] == np.float32(0.1)
    with pytest.raises(ValueError, match="linspace: num must be at least 0, got -1"):
        rt.linspace(0, 1, -1, device=device)
    with pytest.raises(TypeError, match="linspace: num must be an integer"):
        rt.linspace(0, 1, 2.5, device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("k", [-5, -2, -1, 0, 1, 2, 5])
def test_triangles_and_diagonals_are_those_of_numpy(shape, k, device):
    a = np.arange(1.0, 1.0 + shape[0] * shape[1]).reshape(shape)
    x = rt.tensor(a, dtype=rt.float64, device=device)
    assert np.array_equal(rt.eye(*shape, k=k, device=device).numpy(), np.eye(*shape, k=k))
    assert np.array_equal(rt.tril(x, k=k).numpy(), np.tril(a, k))
    assert np.array_equal(rt.triu(x, k=k).numpy(), np.triu(a, k))
    if -shape[0] <= k <= shape[1]:
        assert np.array_equal(rt.diag(x, k).numpy(), np.diag(a, k))
        assert np.array_equal(rt.diag(rt.diag(x, k), k).numpy(), np.diag(np.diag(a, k), k))
    close(gradient(lambda x: rt.tril(x, k=k), a, device), np.tril(np.ones(shape), k))
    close(gradient(lambda x: rt.diag(x, k), a, device), np.eye(*shape, k=k))


def test_triangles_keep_no_nan_and_need_matrices(device):
    x = rt.full((2, 2), rt.nan, device=device)
    assert rt.tril(x).numpy()[0, 1] == 0 and rt.triu(x).numpy()[1, 0] == 0
    with pytest.raises(ValueError, match=r"tril: needs at least 2 axes, got shape \(3,\)"):
        rt.tril(rt.ones(3, device=device))
    with pytest.raises(ValueError, match=r"diag: needs a vector or a matrix"):
        rt.diag(rt.ones((2, 2, 2), device=device))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing, device):
    for sizes in ((), (3,), (3, 2), (3, 2, 4), (0, 2)):
        arrays = [np.arange(n, dtype=np.float32) for n in sizes]
        found = rt.meshgrid(*[rt.tensor(a, device=device) for a in arrays], indexing=indexing)
        assert isinstance(found, list)
        for x, e in zip(found, np.meshgrid(*arrays, indexing=indexing), strict=True):
            assert np.array_equal(x.numpy(), e)
    close(gradient(lambda x: rt.meshgrid(x, x, indexing=indexing)[0], [1.0, 2.0, 3.0], device), [3, 3, 3])
    with pytest.raises(ValueError, match="meshgrid: needs vectors"):
        rt.meshgrid(rt.ones((2, 2), device=device))
    with pytest.raises(ValueError, match="indexing must be"):
        rt.meshgrid(indexing="yx")


def test_shapes_are_checked(device):
    for make in (rt.zeros, rt.ones, rt.empty, lambda s, device: rt.full(s, 1.0, device=device)):
        with pytest.raises(ValueError, match="negative"):
            make((2, -1), device=device)
        with pytest.raises(TypeError, match="shape"):
            make(2.5, device=device)
        assert make((), device=device).shape == () and make((0, 3), device=device).shape == (0, 3)
    with pytest.raises(OverflowError, match="uint8"):
        rt.full(2, 300, dtype=rt.uint8, device=device)


def test_arrays_of_other_libraries_keep_their_dtype(device):
    for kind in ("d", "f", "q", "b"):
        plain = array(kind, [1, 2])
        for values in (plain, memoryview(plain), memoryview(np.asarray(plain))):
            assert rt.tensor(values, device=device).dtype == rt.asarray(values, device=device).dtype == np.asarray(plain).dtype
    assert rt.tensor([memoryview(np.ones(2))], device=device).dtype == rt.float64
    assert rt.tensor([np.float64(1), 2.0], device=device).dtype == rt.float32, "NumPy's numbers count as Python's"
    assert rt.tensor(range(3), device=device).dtype == rt.int32


def test_what_a_number_needs_is_said():
    for value, wide in ((2**31, "int64"), (-(2**31) - 1, "int64"), (2**63, "uint64")):
        with pytest.raises(OverflowError, match=f"dtype=rt.{wide}"):
            rt.tensor([value, value], device=CPU)
        assert rt.tensor(value, dtype=wide, device=CPU).item() == value


def test_dlpack_shares_numpy_memory():
    a = np.arange(6.0).reshape(2, 3)
    x = rt.from_dlpack(a)
    assert x.dtype == rt.float64 and x.device == CPU and np.shares_memory(x._data, a)
    assert not np.shares_memory(rt.from_dlpack(a, copy=True)._data, a)
    assert np.array_equal(rt.from_dlpack(a[::-1, ::2]).numpy(), a[::-1, ::2])
    y = rt.from_dlpack(x)
    assert y is not x and np.shares_memory(y._data, a)
    back = np.from_dlpack(x)
    assert np.array_equal(back, a)
    for dtype in ALL:
        values = np.ones(3, dtype)
        assert rt.from_dlpack(values).dtype == dtype


def test_dlpack_refuses_what_would_be_lost():
    x = rt.ones(2, device=CPU).require_grad()
    with pytest.raises(BufferError, match="detach"):
        rt.from_dlpack(x)
    with pytest.raises(TypeError, match="does not speak DLPack.*rt.tensor"):
        rt.from_dlpack([1.0])
    with pytest.raises(TypeError, match="complex"):
        rt.from_dlpack(np.ones(2, complex))
    strange = type("Strange", (), {"__dlpack_device__": lambda self: (8, 0), "__dlpack__": lambda self, **_: None})()
    with pytest.raises(ValueError, match="DLPack device 8"):
        rt.from_dlpack(strange)


def test_dlpack_with_pytorch():
    torch = pytest.importorskip("torch")
    t = torch.arange(6.0).reshape(2, 3)
    x = rt.from_dlpack(t)
    t[0, 0] = 7.0
    assert x[0, 0].item() == 7.0
    for kind in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool):
        x = rt.from_dlpack(torch.tensor([0, 1, 1]).to(kind))
        own = torch.tensor([0, 1, 1]).to(kind)
        y = rt.tensor(own, device=CPU)  # copies, in the same dtype
        own.zero_()
        assert y.dtype == x.dtype and y.tolist() == x.tolist()
        assert str(x.dtype) == str(kind).split(".")[1] and x.astype(rt.int32).numpy().tolist() == [0, 1, 1]
    assert torch.from_dlpack(rt.ones(3, device=CPU)).tolist() == [1, 1, 1]
    with pytest.raises(BufferError):
        rt.from_dlpack(torch.ones(2, requires_grad=True))
    assert np.array_equal(rt.from_dlpack(t.T).numpy(), t.T.numpy())


@pytest.mark.gpu
def test_dlpack_with_cupy():
    import cupy as cp

    a = cp.arange(4.0)
    for x in (rt.from_dlpack(a), rt.from_dlpack(rt.from_dlpack(a))):
        a[0] = 9.0
        assert x.device == rt.Cuda(0) and x[0].item() == 9.0
    assert rt.from_dlpack(a, device=CPU).device == CPU
    with pytest.raises(ValueError, match="copy=False"):
        rt.from_dlpack(a, device=CPU, copy=False)
    assert cp.from_dlpack(rt.ones(3, device=rt.Cuda(0))).sum() == 3
