"""The gate and the launcher: what is declined, what is packed, what errors say."""
from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import columns, cross_entropy, gate, launch, norms, plans, pointwise, softmax


class Recorder:
    """A runtime that keeps what is launched."""

    problem: str | None = None

    def __init__(self) -> None:
        self.loaded: list[tuple] = []
        self.launched: list[tuple] = []

    def serves(self, xp):
        return xp is np

    def device(self):
        return 0

    def processors(self):
        return 132

    def address(self, array):
        return array.ctypes.data

    def capability(self):
        return 90

    def load(self, text, name, options, shared):
        self.loaded.append((text, name, options))
        return name

    def launch(self, handle, grid, block, arguments):
        self.launched.append((handle, grid, block, arguments))
        return self.problem

    def board(self):
        return None

    def wait(self):
        pass

    def free(self):
        pass


@pytest.fixture
def machine():
    recorder = Recorder()
    with launch.substitute(recorder):
        yield recorder


def relu(x):
    return pointwise.activation_forward(np, "relu", x)


def test_without_a_gpu_every_binding_declines():
    x = np.ones((2, 8), np.float32)
    assert relu(x) is None and softmax.forward(np, x, axis=1, log=False) is None
    assert norms.layer_forward(np, x, None, None, axes=1, eps=1e-5) is None
    assert columns.sum_columns(np, x, 8, FLOAT32) is None and gate.opened(np, x) is None
    assert not launch._current, "asking must not start a runtime"


def test_a_kernel_is_compiled_once_and_its_arguments_are_packed_as_a_struct(machine):
    kernel = launch.Kernel("activation.cu", "activation_forward", "P i d P q", {"A": 1, "B": "float"}, ("--fmad=false",))
    x = np.ones(3, np.float32)
    for _ in range(2):
        kernel((2, 1), (256, 1), x, 7, 0.5, None, 2**40)
    ((text, name, options),) = machine.loaded
    assert text.startswith('#define A 1\n#define B float\n#line 1 "activation.cu"\n')
    assert (name, options) == ("activation_forward", ("--fmad=false",))
    _, grid, block, packed = machine.launched[1]
    assert (grid, block) == ((2, 1), (256, 1))
    assert struct.unpack("<QixxxxdQq", packed) == (x.ctypes.data, 7, 0.5, 0, 2**40)


def test_a_grid_without_blocks_is_not_launched(machine):
    launch.Kernel("activation.cu", "activation_forward", "q", {})((0, 1), (256, 1), 1)
    assert not machine.launched


def test_a_wrong_signature_is_refused():
    with pytest.raises(ValueError, match=r"k: the signature has \['h'\]; known are I, P, Q, d, f, i, q and sizes as '64s'"):
        launch.Kernel("activation.cu", "k", "P h", {})


def test_a_failed_launch_names_the_kernel_the_grid_and_the_shapes(machine):
    machine.problem = "CUDA_ERROR_INVALID_VALUE (1)"
    message = r"softmax_forward with grid \(1, 1\), block \(32, 4\) failed: CUDA_ERR.*float32\(3, 8\)"
    with pytest.raises(launch.KernelError, match=message):
        softmax.forward(np, np.ones((3, 8), np.float32), axis=1, log=False)
    before = launch.HITS["softmax_forward"]
    machine.problem = None
    assert softmax.forward(np, np.ones((3, 8), np.float32), axis=1, log=False) is not None
    assert launch.HITS["softmax_forward"] == before + 1


def test_a_launch_without_memory_is_tried_again_after_giving_some_back(machine):
    x, freed = np.ones((3, 8), np.float32), []
    answers = ["CUDA_ERROR_OUT_OF_MEMORY (2)", None]
    machine.launch = lambda *args: answers.pop(0)
    machine.free = lambda: freed.append(True)
    assert softmax.forward(np, x, axis=1, log=False) is not None and freed == [True] and not answers
    answers += ["CUDA_ERROR_OUT_OF_MEMORY (2)"] * 2
    with pytest.raises(launch.KernelError, match=r"softmax_forward .*CUDA_ERROR_OUT_OF_MEMORY.*float32\(3, 8\)"):
        softmax.forward(np, x, axis=1, log=False)


def test_the_first_error_of_a_log_is_shown():
    log = "\n warning: w\n softmax.cu(3): error: no such thing\n more\n"
    assert launch.first_error(log) == "softmax.cu(3): error: no such thing"
    assert launch.first_error("only this") == "only this" and launch.first_error("") == "no message"


def test_the_gate_shuts_and_opens(machine):
    x = np.ones(8, np.float32)
    with gate.use_fused(False):
        assert relu(x) is None and not gate.fused()
        with gate.use_fused(True):
            assert relu(x) is not None
        assert relu(x) is None
    assert relu(x) is not None and gate.fused()


@pytest.mark.parametrize("x", [np.ones(3, np.int32), np.ones((0, 3), np.float32), np.ones(3, bool)])
def test_what_is_not_floating_or_empty_is_declined(machine, x):
    assert relu(x) is None and not machine.launched


def test_weights_have_the_dtype_of_x_or_float32_beside_halves(machine):
    def norm(dtype, weight, bias):
        made = [None if d is None else np.ones(8, d) for d in (weight, bias)]
        return norms.layer_forward(np, np.ones((2, 8), dtype), *made, axes=1, eps=1e-5) is not None

    assert norm(BFLOAT16, BFLOAT16, BFLOAT16) and norm(BFLOAT16, FLOAT32, None) and norm(FLOAT64, None, FLOAT64)
    assert not norm(BFLOAT16, FLOAT16, None) and not norm(FLOAT32, FLOAT64, None) and not norm(BFLOAT16, FLOAT32, BFLOAT16)


def test_softmax_and_cross_entropy_take_the_last_axis(machine):
    x, ids = np.ones((2, 3, 4), np.float32), np.zeros((2, 4), np.int64)
    static = {"ignore": None, "smoothing": 0.0, "reduction": "mean"}
    assert softmax.forward(np, x, axis=1, log=False) is None
    assert cross_entropy.forward(np, x, ids, None, axis=1, **static) is None
    assert softmax.forward(np, np.ones((2, 4, 1), np.float32), axis=1, log=False) is not None
    assert cross_entropy.forward(np, x, np.zeros((2, 3), np.int64), None, axis=2, **static) is not None


def test_what_is_not_aligned_is_read_one_by_one(machine):
    memory = np.ones(64, np.float32)
    start = -(memory.ctypes.data // 4) % 4
    for offset, vector in ((start, 4), (start + 1, 1), (start + 4, 4)):
        relu(memory[offset : offset + 16])
        assert gate.vector_of(np, 16, memory[offset : offset + 16]) == vector
    assert gate.vector_of(np, 6, memory[start : start + 12]) == 1, "row 1 would not be aligned"


def test_what_the_driver_gets():
    """Of a launch by CUDA's runtime: the numbers, and the packed arguments behind the bytes before the first one."""
    got = []

    def start(*arguments):
        extra = ctypes.cast(arguments[10], ctypes.POINTER(ctypes.c_void_p))
        size = ctypes.c_size_t.from_address(extra[3]).value
        got.append((*arguments[:10], extra[0], extra[2], extra[4], ctypes.string_at(extra[1], size)))
        return 0

    runtime: Any = object.__new__(launch.CudaRuntime)
    stream = SimpleNamespace(ptr=0)
    runtime.scratch, runtime.stream = launch._Scratch(), lambda: stream
    driver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)(start)
    runtime.start = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.cast(driver, ctypes.c_void_p).value or 0)
    code = 0x7F0012345678
    for grid, shared, lead, packed in (
        ((2**31 - 1, 3), 0, 0, b"0123456789"), ((2**31 - 1, 3), 1 << 16, 0, b"01"), ((1, 3), 0, 48, b"abc"), ((1, 3), 0, 0, b"")
    ):  # fmt: skip
        for stream.ptr in (0, 0x7FFE00000010):
            assert runtime.launch((code, shared, lead), grid, (256, 4), packed) is None
            expected = (code, *grid, 1, 256, 4, 1, shared, stream.ptr or None, None, 1, 2, None)
            assert got[-1][:13] == expected and len(got[-1][13]) == lead + len(packed) and got[-1][13].endswith(packed)
    assert len(runtime.scratch.calls) == 6


def test_copies_are_made_of_what_is_not_contiguous(machine):
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    with gate.use_fused(False):
        (copy,) = gate.contiguous(np, x[:, :3])
    assert copy.flags.c_contiguous and copy.tolist() == x[:, :3].tolist() and not machine.launched
    (copy,) = gate.contiguous(np, x[:, :3])
    assert copy.flags.c_contiguous and copy.shape == (3, 3) and machine.launched[0][0] == "permute_rows"
    assert gate.contiguous(np, x)[0] is x and gate.contiguous(np, None) == [None]


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_plans_cover_every_row(vector):
    for n in [*range(1, 300), 1023, 1024, 4096, 4097, 8192, 32768, 50304, 65537, 262147, 2**30]:
        n *= vector
        width = 16 // vector if vector > 1 else 2
        stays = [plans.norm_plan(n, vector, width, wider, add) for wider in (False, True) for add in (False, True)]
        stays.append(plans.sums_plan(n, vector, width))
        for plan in (plans.row_plan(n, vector, 32), *[stay.plan for stay in stays]):
            assert plan.group % 32 == 0 and 32 <= plan.group <= 1024 and plan.group * plan.rows <= 1024
            assert plan.rows == 1 or plan.group == 32
            assert plan.items == 0 or plan.items * plan.group * vector >= n
            assert plan.items * vector <= 64
        for stay in stays:
            plan = stay.plan
            assert stay.resident >= plan.group * plan.rows and (stay.stages == 0 or plan.items or stay is stays[-1])
            assert stay.stages < 2 or stay.stages * plan.items * plan.group * plan.rows * 16 <= plans.STATIC_SHARED


def test_dropout_of_nothing_or_everything_is_left_to_the_plain_body(machine):
    x = np.ones(8, np.float32)
    assert pointwise.dropout(np, x, p=1.0, seed=0, offset=0) is None
    assert pointwise.dropout(np, x, p=0.0, seed=0, offset=0) is not None
