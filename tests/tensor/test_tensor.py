"""What a tensor is, and how it meets Python, NumPy and other libraries."""
from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import ruda_autodiff  # noqa: F401  (installs the tape)
import ruda_tensor as rt

CPU = rt.Cpu()


def test_metadata(device):
    x = rt.tensor(np.zeros((2, 3, 4), np.float32), device=device)
    assert (x.shape, x.ndim, x.size, x.dtype, x.device, x.nbytes) == ((2, 3, 4), 3, 24, rt.float32, device, 96)
    assert x.mT.shape == (2, 4, 3) and x[0].T.shape == (4, 3)
    with pytest.raises(ValueError, match="mT"):
        _ = x.T


def test_python_numbers_get_default_dtypes_and_arrays_keep_theirs():
    assert rt.tensor([1.0, 2.0]).dtype == rt.float32 and rt.tensor([1, 2]).dtype == rt.int32
    assert rt.tensor([True]).dtype == rt.bool and rt.tensor(3).shape == () and rt.tensor([]).dtype == rt.float32
    assert rt.tensor(np.array([1.0])).dtype == rt.float64 and rt.tensor(np.array([1], np.int8)).dtype == rt.int8
    assert rt.tensor([1.5], dtype=rt.bfloat16).dtype == rt.bfloat16
    wide = rt.Cpu(float_dtype=rt.float64, int_dtype=rt.int64)
    assert rt.tensor([1.0], device=wide).dtype == rt.float64 and rt.tensor([1], device=wide).dtype == rt.int64


@pytest.mark.parametrize(
    "values, error, words",
    [
        ([[1.0], [2.0, 3.0]], ValueError, "rectangle"),
        ([2**40], OverflowError, "int64"),
        ([1j], TypeError, "complex|supported"),
        (["a"], TypeError, "supported"),
        ([rt.tensor([1.0], device=CPU)], TypeError, "stack"),
        ({"a": 1}, TypeError, "supported"),
    ],
)
def test_tensor_refuses(values, error, words):
    with pytest.raises(error, match=words):
        rt.tensor(values, device=CPU)


def test_scalars_and_truth():
    x = rt.tensor([[2.5]], device=CPU)
    assert (x.item(), float(x), int(x), bool(x), len(x)) == (2.5, 2.5, 2, True, 1)
    assert [1, 2, 3][rt.tensor(1, device=CPU)] == 2
    for wrong, words in ((lambda: rt.ones(2, device=CPU).item(), "one"), (lambda: bool(rt.ones(2, device=CPU)), "ambiguous")):
        with pytest.raises(ValueError, match=words):
            wrong()
    scalar = rt.tensor(1.0, device=CPU)
    for wrong in (lambda: len(scalar), lambda: list(scalar), lambda: [1][scalar]):
        with pytest.raises(TypeError):
            wrong()
    assert [float(row.sum()) for row in rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=CPU)] == [3.0, 7.0]
    assert rt.tensor([1, 2], device=CPU).tolist() == [1, 2]


def test_numpy_is_a_copy_and_asarray_a_read_only_view():
    x = rt.tensor([1.0, 2.0], device=CPU)
    x.numpy()[0] = 9.0
    assert x.numpy().tolist() == [1.0, 2.0]
    view = np.asarray(x)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9.0
    assert np.asarray(x, dtype=np.float64).dtype == np.float64 and np.array(x, copy=True).flags.writeable
    with pytest.raises(ValueError, match="memory"):
        np.asarray(x, dtype=np.float64, copy=False)


def test_numpy_functions_refuse_instead_of_losing_the_tape():
    x = rt.tensor([1.0, 2.0], device=CPU)
    tracked = x.require_grad()
    for f in (lambda: np.exp(x), lambda: np.add(np.ones(2), x), lambda: np.concatenate([x, x]), lambda: np.where(x, x, x)):
        with pytest.raises(TypeError):
            f()
    with pytest.raises(TypeError, match="detach"):
        np.asarray(tracked)
    assert (np.ones(2, np.float32) + x).numpy().tolist() == [2.0, 3.0]
    assert isinstance(np.ones(2, np.float32) * x, rt.Tensor)
    assert tracked.numpy().tolist() == [1.0, 2.0]


def test_dlpack_both_ways():
    x = rt.tensor([[1.0, 2.0]], device=CPU)
    out = np.from_dlpack(x)
    assert np.shares_memory(out, np.asarray(x)) and not out.flags.writeable
    source = np.arange(3.0)
    assert np.shares_memory(np.asarray(rt.from_dlpack(source)), source)
    with pytest.raises(BufferError, match="detach"):
        np.from_dlpack(x.require_grad())
    with pytest.raises(BufferError, match="bfloat16"):
        x.astype(rt.bfloat16).__dlpack__(max_version=(1, 0))
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(x).tolist() == [[1.0, 2.0]]
    assert rt.from_dlpack(torch.ones(2)).numpy().tolist() == [1.0, 1.0]


@pytest.mark.gpu
def test_dlpack_and_interfaces_on_a_gpu():
    cp = pytest.importorskip("cupy")
    x = rt.tensor([[1.0, 2.0]], device=rt.Cuda(0))
    assert cp.from_dlpack(x).data.ptr == x._data.data.ptr and cp.asarray(x).tolist() == [[1.0, 2.0]]
    assert rt.from_dlpack(cp.arange(3)).device == rt.Cuda(0)
    assert rt.tensor(cp.arange(3.0)).device == rt.Cuda(0) and rt.tensor(cp.arange(3.0), device=CPU).device == CPU
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(x)
    with pytest.raises(ValueError, match="to_device"):
        x + rt.ones(2, device=CPU)
    assert not hasattr(rt.ones(1, device=CPU), "__cuda_array_interface__")
    tracked = rt.tensor([2.0], device=CPU).require_grad()
    g = (tracked.to_device(rt.Cuda(0)) * 3.0).sum().backward()
    assert g[tracked].device == CPU and g[tracked].item() == 3.0
    torch = pytest.importorskip("torch")
    half = torch.ones(3, dtype=torch.bfloat16, device="cuda")
    assert rt.from_dlpack(half).dtype == rt.bfloat16 and torch.from_dlpack(rt.from_dlpack(half)).dtype == torch.bfloat16


def test_array_namespace():
    x = rt.ones(1, device=CPU)
    assert x.__array_namespace__() is rt and x.__array_namespace__(api_version="2024.12") is rt
    with pytest.raises(ValueError, match="2024.12"):
        x.__array_namespace__(api_version="2030.01")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_pickle_and_copies(dtype, device):
    x = rt.tensor(np.array([[1, 0], [1, 1]]), dtype=getattr(rt, dtype), device=device)
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype == x.dtype and again.device == device and np.array_equal(again.numpy(), x.numpy())
    assert copy.copy(x) is x and copy.deepcopy(x) is not x and x.copy().numpy().tolist() == x.numpy().tolist()


def test_a_pickled_or_copied_leaf_is_a_new_leaf():
    x = rt.tensor([1.0], device=CPU).require_grad()
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.copy()):
        assert other.is_require_grad() and (other * 2.0).backward()[other].item() == 2.0
    assert not (x * 2.0).copy().is_require_grad()


def test_identity_hash_and_elementwise_equality():
    x, y = rt.ones(2, device=CPU), rt.ones(2, device=CPU)
    table = {x: "x", y: "y"}
    assert table[x] == "x" and table[y] == "y"
    assert (x == y).numpy().tolist() == [True, True] and (x != y).numpy().tolist() == [False, False]
    assert x != "text" and 1.0 in x and 2.0 not in x


def test_operators_with_foreign_operands():
    x = rt.ones(2, device=CPU)
    for wrong in (lambda: x + "a", lambda: x * None, lambda: {} - x, lambda: x @ "b"):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="slice_assign"):
        x[0] = 1.0
    with pytest.raises(TypeError, match="rt.tensor"):
        rt.Tensor([1.0])


def test_shape_errors_name_the_operation_and_the_axis():
    with pytest.raises(ValueError, match=r"multiply: shapes \(2, 3\) and \(2, 4\).*axis -1 is 3 and 4"):
        rt.ones((2, 3), device=CPU) * rt.ones((2, 4), device=CPU)
    with pytest.raises(IndexError, match="sum: axis 2"):
        rt.sum(rt.ones((2, 3), device=CPU), axis=2)
    with pytest.raises(ValueError, match="twice"):
        rt.sum(rt.ones((2, 3), device=CPU), axis=(0, -2))
    with pytest.raises(TypeError, match="sum: axis"):
        rt.sum(rt.ones((2, 3), device=CPU), axis=1.5)
    with pytest.raises(ValueError, match="reshape"):
        rt.reshape(rt.ones((2, 3), device=CPU), (4, 2))


def test_devices(monkeypatch):
    import ruda_tensor.devices as devices

    assert rt.Cpu() is rt.Cpu() and rt.Cuda(1) is rt.CudaDevice(1) and rt.Cpu() != rt.Cuda(0)
    assert pickle.loads(pickle.dumps(rt.Cuda(1))) is rt.Cuda(1)
    assert devices.parse_device("cuda:2") == rt.Cuda(2) and devices.parse_device("cpu") == CPU
    for wrong in ("gpu", "cuda:x", "cpu:1"):
        with pytest.raises(ValueError, match="cuda:1"):
            devices.parse_device(wrong)
    for wrong in (-1, True, 1.0):
        with pytest.raises(ValueError, match="index"):
            rt.Cuda(wrong)
    with pytest.raises(TypeError, match="Cpu"):
        rt.ones(1, device=3)
    monkeypatch.setenv("RUDA_DEVICE", "cpu")
    monkeypatch.setitem(devices._default, "device", None)
    assert rt.default_device() == CPU
    rt.set_default_device("cuda:3")
    assert rt.default_device() == rt.Cuda(3)
    rt.set_default_device(None)


def test_no_usable_gpu_says_why():
    from ruda_tensor.backend import gpu_problem

    if gpu_problem() is None:
        pytest.skip("a GPU is usable here")
    with pytest.raises(rt.NoUsableGpu, match="no usable GPU: .*Cpu"):
        rt.ones(1, device=rt.Cuda(0))


@pytest.mark.gpu
def test_CUDA_12_a_forked_child_is_told_to_spawn():
    import os

    rt.ones(1, device=rt.Cuda(0))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert (rt.ones(2, device=CPU) + 1.0).numpy().tolist() == [2.0, 2.0]
            rt.ones(1, device=rt.Cuda(0))
            os.write(write, b"no error")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"spawn" in os.read(read, 4096)


def test_bfloat16_is_the_dtype_of_ml_dtypes():
    assert rt.bfloat16 == np.dtype(ml_dtypes.bfloat16) and rt.FloatDType.BF16.dtype is rt.bfloat16


def test_a_number_is_formatted_as_one(device):
    loss = rt.tensor(1.25, dtype=rt.bfloat16, device=device).require_grad()
    assert f"{loss:.1f} {loss:8.3f}" == "1.2    1.250" and f"{rt.tensor(7, device=device):03d}" == "007"
    assert f"{loss}" == repr(loss)
    with pytest.raises(TypeError, match=r"format: a tensor of shape \(1,\)"):
        format(rt.ones(1, device=device), ".1f")
