"""cuBLASLt's contract in NumPy, behind the same C functions: tests call it through ctypes as the binding calls the library."""
from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, c_double, c_float, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import partial
from typing import Any

import numpy as np

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import blaslt

DTYPES = {0: FLOAT32, 1: FLOAT64, 2: FLOAT16, 14: BFLOAT16}
DESCRIPTION = {3: c_int32, 4: c_int32, 7: c_uint32, 8: c_uint64, 11: c_uint64, 12: c_int64}
LAYOUT = {5: c_int32, 6: c_int64}
PREFERENCE = {1: c_uint64, 3: c_uint32, 5: c_uint32, 6: c_uint32, 7: c_uint32, 8: c_uint32}
OK, INVALID, UNSUPPORTED = 0, 7, 15
BIAS, GELU, AUX = 4, 32, 128  # bits of cublasLtEpilogue_t
C = 0.7978845608028654


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(C * (x + 0.044715 * x**3))) / 2


class FakeBlasLt:
    """A machine over NumPy arrays. `refuses` has the epilogues for which there is no algorithm; `log` what was multiplied."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        self.refuses = {blaslt.EPILOGUES[name] for name in refuses}
        self.things: dict[int, dict] = {}
        self.count = 0
        self.log: list[dict] = []
        self.current, self.workspaces = 7, set()
        self.functions = {}
        for name, arguments in blaslt.FUNCTIONS.items():
            self.functions[name] = CFUNCTYPE(c_int, *arguments)(self._guarded(name))

    def _guarded(self, name: str) -> Any:
        """The method of a C function: an exception in a callback would be lost, a status is not."""
        method = self._method(name)

        def call(*arguments: Any) -> int:
            try:
                with np.errstate(all="ignore"):
                    return method(*arguments)
            except AssertionError:
                return INVALID

        return call

    def _method(self, name: str) -> Any:
        for suffix in ("Create", "Destroy", "SetAttribute"):
            if name.endswith(suffix):
                return partial(getattr(self, suffix.lower()), name[: -len(suffix)])
        return getattr(self, name)

    def serves(self, xp: Any) -> bool:
        return xp.__name__ == "numpy"

    def device(self) -> int:
        return 0

    def stream(self) -> int:
        return self.current

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        out = np.empty(shape, dtype)
        out.view(np.uint8).reshape(-1)[:] = 0xFF  # NaN in every float type
        return out

    def create(self, kind: str, at: int, *arguments: int) -> int:
        self.count += 1
        self.things[self.count] = {"kind": kind, "made of": arguments}
        c_void_p.from_address(at).value = self.count
        return OK

    def destroy(self, kind: str, thing: int) -> int:
        assert self.things.pop(thing)["kind"] == kind
        return OK

    def setattribute(self, kind: str, thing: int, attribute: int, at: int, size: int) -> int:
        known = {"cublasLtMatmulDesc": DESCRIPTION, "cublasLtMatrixLayout": LAYOUT, "cublasLtMatmulPreference": PREFERENCE}
        ctype = known[kind].get(attribute)
        assert ctype is not None and self.things[thing]["kind"] == kind and ctypes.sizeof(ctype) == size
        self.things[thing][attribute] = ctype.from_address(at).value
        return OK

    def cublasLtMatmulAlgoGetHeuristic(self, handle, op, a, b, c, d, preference, most, results, count):
        wishes, what = self.things[preference], self.things[op]
        assert wishes[3] == 2 and wishes[1] == blaslt.WORKSPACE and most == 1
        epilogue = what.get(7, 1)
        if epilogue in self.refuses or (epilogue != 1 and self.things[d]["made of"][0] == 1):
            return UNSUPPORTED
        assert not epilogue & BIAS or what.get(8), "its alignment is wanted"
        assert not epilogue & AUX or (what.get(11) and what.get(12)), "its alignment is wanted"
        found = blaslt.Heuristic.from_address(results)
        found.algorithm[0] = 1234
        found.workspace, found.state = 1 << 20, 0
        self.things[op]["alignment"] = wishes[5]
        c_int.from_address(count).value = 1
        return OK

    def read(self, address: int, layout: int) -> np.ndarray:
        """The matrices that a layout describes at an address: column-major, one per member of the batch."""
        thing = self.things[layout]
        kind, rows, columns, lead = thing["made of"]
        return self.view(address, DTYPES[kind], rows, columns, lead, thing.get(5, 1), thing.get(6, 0))

    def view(self, address: int, dtype: Any, rows: int, columns: int, lead: int, count: int = 1, stride: int = 0) -> np.ndarray:
        assert lead >= rows and address % dtype.itemsize == 0
        size = (count - 1) * stride + (columns - 1) * lead + rows
        memory = np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)
        steps = [n * dtype.itemsize for n in (stride, 1, lead)]
        return np.lib.stride_tricks.as_strided(memory, (count, rows, columns), steps)

    def cublasLtMatmul(self, handle, op, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                       workspace, size, stream):  # fmt: skip
        what = self.things[op]
        compute, scale = what["made of"]
        number = c_double if scale == 1 else c_float
        one, beta = (number.from_address(v).value for v in (alpha, beta))
        assert one == 1 and blaslt.Heuristic.from_address(algorithm).algorithm[0] == 1234
        assert (compute == 70) == (scale == 1) and size == blaslt.WORKSPACE and workspace and stream == self.current
        assert all(p % what["alignment"] == 0 for p in (a, b, c, d))
        self.workspaces.add(workspace)
        left, right = self.read(a, a_layout).astype(np.float64), self.read(b, b_layout).astype(np.float64)
        left = left.swapaxes(1, 2) if what.get(3) else left
        right = right.swapaxes(1, 2) if what.get(4) else right
        out = self.read(d, d_layout)
        assert left.shape[2] == right.shape[1] and out.shape[1:] == (left.shape[1], right.shape[2])
        value = left @ right + (beta * self.read(c, c_layout).astype(np.float64) if beta else 0.0)
        self.log.append({"compute": compute, "epilogue": what[7], "batch": len(out), "beta": beta})
        out[...] = self.epilogue(what, value, out.dtype).astype(out.dtype)
        return OK

    def epilogue(self, what: dict, value: np.ndarray, dtype: Any) -> np.ndarray:
        code, rows, columns = what[7], value.shape[1], value.shape[2]
        if code & BIAS:
            value = value + self.view(what[8], dtype, rows, 1, rows)[0].astype(np.float64)
        if code & AUX:
            assert what[12] % 8 == 0 and what[11] % 16 == 0 and len(value) == 1
            self.view(what[11], dtype, rows, columns, what[12])[...] = value.astype(dtype)
        return gelu(value) if code & GELU else value


def on_fake(**options: Any):
    """A context in which products of NumPy arrays by `ruda_tensor.kernels.gemm` are made by the stand-in."""
    return blaslt.substitute(FakeBlasLt(**options))
