"""Products for the GPU, on the CPU: what is asked of cuBLASLt and of cuBLAS, by stand-ins that read memory as they do."""
from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import blaslt, gemm
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS, KernelError

from ._blaslt import FakeBlasLt, gelu, on_fake

UNIT = {FLOAT64: 1e-14, FLOAT32: 1e-6, FLOAT16: 1e-3, BFLOAT16: 8e-3}


@pytest.fixture(autouse=True)
def no_old_plans():
    gemm._recipes.known.clear()
    yield
    gemm._recipes.known.clear()


def normal(*shape, dtype=FLOAT32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def wide(a):
    return np.asarray(a, np.float64)


def close(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == dtype
    assert np.abs(wide(found) - expected).max(initial=0.0) <= UNIT[dtype] * (1 + np.abs(expected).max(initial=0.0))


def laid_out(values, how):
    """The same numbers in another layout."""
    if how == "transposed":
        return values.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if how == "moved":
        return np.moveaxis(np.moveaxis(values, 0, -1).copy(), -1, 0)
    if how == "reversed":
        return values[..., ::-1].copy()[..., ::-1]
    if how == "steps":
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if how == "a part":
        return np.pad(values, [(1, 1)] * values.ndim)[(slice(1, -1),) * values.ndim]
    return values


LAYOUTS = st.sampled_from(["plain", "transposed", "moved", "reversed", "steps", "a part"])


@given(st.data())
def test_operands_describe_the_memory(data):
    """Reads memory as BLAS would, by flag, leading dimension and batch stride, and finds the operand again."""
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(data.draw(st.integers(2, 4))))
    order = data.draw(st.permutations(range(len(shape))))
    steps = [data.draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    a = np.arange(np.prod(shape) * 40, dtype=np.float16)[: np.prod(shape)].reshape(shape).transpose(order)
    a = a[tuple(slice(None, None, s) for s in steps)]
    batch = (data.draw(st.integers(1, 2)), *[b if b > 1 else data.draw(st.integers(1, 3)) for b in a.shape[:-2]])
    batch = batch if a.ndim > 2 else data.draw(st.sampled_from([(), batch]))
    array, (flag, lead, stride) = gemm.operand(np, a, batch)
    rows, columns = a.shape[-2:]
    assert lead >= (rows if flag else columns) and stride >= 0
    count = int(np.prod(batch))
    strides = [stride * 2, 2, lead * 2] if flag else [stride * 2, lead * 2, 2]
    read = np.lib.stride_tricks.as_strided(array, (count, rows, columns), strides)
    expected = np.broadcast_to(a, (*batch, rows, columns)).reshape(count, rows, columns)
    assert np.array_equal(read, expected)


@pytest.mark.parametrize("shape", [(64, 64), (3, 64, 64), (2, 3, 64, 64)])
def test_transposed_and_shared_operands_are_not_copied(shape):
    a = np.zeros(shape, np.float16)
    for view in (a, a.swapaxes(-1, -2), a[..., :32], a[:1]):
        assert gemm.operand(np, view, view.shape[:-2] or (5,))[0] is view
    assert gemm.operand(np, np.zeros((64, 64), np.float16), (7,))[1].stride == 0


@st.composite
def factors(draw):
    """x [..., m, k] and y [..., k, n] of one dtype in some layouts, and the dtype of their product."""
    m, k, n = (draw(st.integers(0, 3)) for _ in range(3))
    dtype = draw(st.sampled_from([FLOAT16, BFLOAT16, FLOAT32, FLOAT64]))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    first, second = ([draw(st.sampled_from([1, b])) for b in batch[draw(st.integers(0, 2)) :]] for _ in "xy")
    rng = np.random.default_rng(m + 4 * k)
    x, y = (
        laid_out(rng.integers(-3, 4, (*b, r, c)).astype(dtype), draw(LAYOUTS)) for b, r, c in ((first, m, k), (second, k, n))
    )
    return x, y, FLOAT32 if draw(st.booleans()) and dtype != FLOAT64 else dtype


@given(factors())
def test_what_cublaslt_is_asked_for_is_the_product(case):
    x, y, dtype = case
    with on_fake():
        for _ in range(2):
            found = gemm.matmul(np, x, y, dtype)
            assert found.dtype == dtype and np.array_equal(wide(found), wide(x) @ wide(y))


def test_rows_that_share_a_weight_are_one_product():
    fake = FakeBlasLt()
    x, w = normal(2, 3, 5, 8), normal(8, 4)
    with blaslt.substitute(fake):
        for rows, batch in ((x, 1), (x[..., :4, :], 6), (x[..., :6], 1), (x[:, :2], 1), (x.swapaxes(1, 2), 1), (x[0], 1)):
            close(gemm.matmul(np, rows, w[: rows.shape[-1]]), wide(rows) @ wide(w[: rows.shape[-1]]), FLOAT32)
            assert fake.log[-1]["batch"] == batch


class Addressed(np.ndarray):
    """A host array that tells its address as CuPy's arrays do."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class FakeCublas:
    """cuBLAS's contract in NumPy: column-major matrices at addresses, op(A) op(B) for each of a batch."""

    KINDS = {0: rt.float32, 1: rt.float64, 2: rt.float16, 14: rt.bfloat16}
    modes = []

    def setMathMode(self, handle, mode):
        self.modes.append(mode)

    def read(self, address, kind, rows, columns, lead, stride, count):
        dtype = self.KINDS[kind]
        assert lead >= rows
        size = (count - 1) * stride + (columns - 1) * lead + rows
        memory = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
        strides = [n * dtype.itemsize for n in (stride, 1, lead)]
        return np.lib.stride_tricks.as_strided(memory, (count, rows, columns), strides)

    def gemmStridedBatchedEx(self, handle, ta, tb, m, n, k, alpha, a, a_kind, lda, sa, b, b_kind, ldb, sb, beta,
                             c, c_kind, ldc, sc, count, compute, algorithm):  # fmt: skip
        scalar = ctypes.c_double if compute == 70 else ctypes.c_float
        assert (scalar.from_address(alpha).value, scalar.from_address(beta).value) == (1, 0)
        left = self.read(a, a_kind, *((k, m) if ta else (m, k)), lda, sa, count).astype(np.float64)
        right = self.read(b, b_kind, *((n, k) if tb else (k, n)), ldb, sb, count).astype(np.float64)
        left, right = (x.swapaxes(1, 2) if flag else x for x, flag in ((left, ta), (right, tb)))
        out = self.read(c, c_kind, m, n, ldc, sc, count)
        out[...] = left @ right


FAKE_CUPY = SimpleNamespace(
    __name__="cupy",
    empty=lambda *args: np.empty(*args).view(Addressed),
    zeros=np.zeros,
    ascontiguousarray=lambda a: np.ascontiguousarray(a).view(Addressed),
    broadcast_to=lambda a, shape: np.broadcast_to(a, shape, subok=True),
    cuda=SimpleNamespace(device=SimpleNamespace(get_cublas_handle=lambda: 0)),
)


@given(factors())
def test_without_cublaslt_the_older_interface_is_asked_for_it(case):
    x, y, dtype = (a.view(Addressed) if isinstance(a, np.ndarray) else a for a in case)
    FakeCublas.modes = []
    with pytest.MonkeyPatch.context() as patch, use_fused(False):  # kernels of ours would ask for a GPU
        patch.setitem(blaslt._found, "cupy", None)
        for name, module in (("", {}), (".cuda", {}), (".cuda.libs", {"cublas": FakeCublas()})):
            patch.setitem(sys.modules, f"cupy_backends{name}", SimpleNamespace(**module))
        assert gemm.available(FAKE_CUPY)
        found = gemm.matmul(FAKE_CUPY, x, y, dtype)
        assert gemm.affine(FAKE_CUPY, x, y) is None
    assert found.dtype == dtype and np.array_equal(wide(found), wide(x) @ wide(y))
    assert FakeCublas.modes in ([], [16, 0])  # the math mode is put back


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_epilogues(dtype, data):
    rows = data.draw(st.sampled_from([(1,), (5,), (2, 3), (2, 1, 4)]))
    k, n = data.draw(st.sampled_from([(8, 16), (16, 8), (8, 8)]))
    how = data.draw(st.sampled_from(["plain", "transposed", "steps"]))
    x = laid_out(normal(*rows, k, dtype=dtype), how if len(rows) < 3 else "plain")
    w, b = laid_out(normal(k, n, dtype=dtype), data.draw(st.sampled_from(["plain", "transposed"]))), normal(n, dtype=dtype)
    residual = normal(*rows, n, dtype=dtype, seed=1)
    with on_fake():
        z = wide(x) @ wide(w)
        close(gemm.affine(np, x, w, b), z + wide(b), dtype)
        close(gemm.affine(np, x, w, b, residual), z + wide(b) + wide(residual), dtype)
        close(gemm.affine(np, x, w, None, residual), z + wide(residual), dtype)
        for bias, value in ((b, z + wide(b)), (None, z)):
            found = gemm.affine_gelu(np, x, w, bias)
            assert (found is None) == (dtype == FLOAT32)
            if found is not None:
                close(found[1], value, dtype)
                close(found[0], gelu(value), dtype)


def test_epilogues_that_are_not_there_are_declined():
    x, w, b, h = (normal(*shape, dtype=FLOAT16) for shape in ((4, 8), (8, 16), (16,), (4, 16)))
    with on_fake(refuses=("bias", "gelu_aux_bias", "gelu_aux")):
        assert gemm.affine(np, x, w, b) is None and gemm.affine(np, x, w, None, h) is not None
        assert gemm.affine_gelu(np, x, w, b) is None and gemm.affine_gelu(np, x, w, None) is None
    with on_fake():
        assert gemm.affine_gelu(np, x, w[:, :9].copy(), b[:9].copy()) is None, "a leading dimension that is no multiple of 8"
        assert gemm.affine(np, x, w, b.astype(FLOAT32)) is None and gemm.affine(np, x, w, b, h[:, ::-1]) is None
        assert gemm.affine(np, x, w.astype(FLOAT64), b) is None
        for empty in (x[:0], x[:, :0]):
            assert gemm.affine(np, empty, w[: empty.shape[1]], b) is None
        x, w, b = (a.astype(FLOAT64) for a in (x, w, b))
        assert gemm.affine(np, x, w, b) is None
        with use_fused(False):
            assert gemm.affine(np, x, w) is None
            assert gemm.matmul(np, x, w) is not None


def test_a_plan_is_made_once_per_kind_of_product_and_thread():
    fake = FakeBlasLt()
    x, w, b = normal(4, 8), normal(8, 16), normal(16)
    with blaslt.substitute(fake):
        HITS.clear()
        first = gemm.affine(np, x, w, b)
        made = fake.count
        close(gemm.affine(np, x, w, b + 1), wide(first) + 1, FLOAT32)
        assert fake.count == made and HITS == {"matmul_bias": 2}
        gemm.affine(np, x.T.copy().T, w, b)  # another layout
        assert fake.count > made
        others = []
        thread = threading.Thread(target=lambda: others.append((gemm.affine(np, x, w, b), fake.count)))
        thread.start()
        thread.join()
        assert others[0][1] > made and np.array_equal(others[0][0], first)


def test_old_plans_are_dropped_with_what_the_library_made_for_them(monkeypatch):
    fake = FakeBlasLt()
    monkeypatch.setattr(gemm, "MOST_PLANS", 4)
    with blaslt.substitute(fake):
        most = 0
        for n in range(1, 30):
            gemm.matmul(np, normal(2, 3), normal(3, n))
            gc.collect()
            most = max(most, len(fake.things))
    assert most <= 1 + 4 * 5, "a handle, and for each plan a description, three layouts and a preference"


def test_alignment_is_that_of_the_worst_address():
    fake = FakeBlasLt()
    big = np.zeros(4096, FLOAT16)
    start = (-big.ctypes.data % 256) // 2
    with blaslt.substitute(fake):
        for shift, expected in ((0, 16), (4, 8), (2, 4), (1, 2), (64, 16)):
            gemm._recipes.known.clear()
            gemm.matmul(np, big[start + shift :][:64].reshape(8, 8), big[start + 1024 :][:64].reshape(8, 8))
            assert [r.problem and r.problem.alignment for r in gemm._recipes.known.values()] == [expected]


def test_a_private_workspace_serves_all_products_inside():
    fake = FakeBlasLt()
    x = normal(8, 8)
    with blaslt.substitute(fake):
        gemm.matmul(np, x, x)
        shared = set(fake.workspaces)
        fake.workspaces.clear()
        with blaslt.private_workspace(np) as own:
            gemm.matmul(np, x, x)
            gemm.affine(np, x, x, x[0])
            fake.current += 1
            gemm.matmul(np, x, x)
            assert own.nbytes == blaslt.WORKSPACE and fake.workspaces == {own.address} != shared
        fake.workspaces.clear()
        gemm.matmul(np, x, x)
        assert len(fake.workspaces) == 1 and not fake.workspaces & (shared | {own.address}), "another stream's"
        fake.current -= 1
        gemm.matmul(np, x, x)
        assert shared < fake.workspaces


def test_tf32_is_for_float32_and_holds_inside():
    fake = FakeBlasLt()

    def computes(dtype):
        gemm.matmul(np, np.ones((2, 2), dtype), np.ones((2, 2), dtype))
        return fake.log[-1]["compute"]

    with blaslt.substitute(fake):
        assert computes(FLOAT32) == blaslt.COMPUTE_32F
        with rt.use_tf32():
            assert computes(FLOAT32) == blaslt.COMPUTE_TF32
            assert computes(FLOAT64) == blaslt.COMPUTE_64F and computes(BFLOAT16) == blaslt.COMPUTE_32F
            with rt.use_tf32(False):
                assert computes(FLOAT32) == blaslt.COMPUTE_32F
            assert computes(FLOAT32) == blaslt.COMPUTE_TF32
        assert computes(FLOAT32) == blaslt.COMPUTE_32F


@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("0", "False"), ("", "False")])
def test_tf32_by_the_environment(value, expected):
    code = "from ruda_tensor.kernels import gemm; print(gemm._tf32.get())"
    done = subprocess.run([sys.executable, "-c", code], env={"RUDA_TF32": value}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_a_library_that_is_not_there_is_an_error_that_says_so(monkeypatch):
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13000)
    cp = SimpleNamespace(cuda=SimpleNamespace(device=SimpleNamespace(get_cublas_handle=lambda: 0), runtime=runtime))

    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(blaslt.ctypes, "PyDLL", absent)
    with pytest.raises(KernelError, match=r"cuBLASLt cannot be used: libcublasLt.so.13: .*pip install 'cupy-cuda13x\[ctk\]'"):
        blaslt.load(cp)
    monkeypatch.setattr(blaslt.ctypes, "PyDLL", lambda name: SimpleNamespace(cublasLtCreate=None))
    with pytest.raises(KernelError, match="cublasLtMatmulDescCreate"):
        blaslt.load(cp)

    def missing():
        raise KernelError("it is missing")

    monkeypatch.setattr(blaslt, "CudaMachine", missing)
    monkeypatch.setattr(blaslt, "_found", {})
    monkeypatch.setattr(blaslt, "problems", [])
    assert blaslt.machine(FAKE_CUPY) is None and blaslt.problems == ["it is missing"]


def test_a_product_that_fails_names_itself_and_the_next_one_works():
    fake = FakeBlasLt()
    x = normal(8, 8)
    with blaslt.substitute(fake):
        expected = gemm.matmul(np, x, x)
        fake.current, fake.stream = 8, lambda: 9
        with pytest.raises(KernelError, match=r"cublasLtMatmul of Problem\(m=8, n=8, k=8.*invalid value \(7\)"):
            gemm.matmul(np, x, x)
        fake.current = 9
        assert np.array_equal(gemm.matmul(np, x, x), expected)
