"""State of a model that is no parameter: what a layer learns by looking, such as BatchNorm's running statistics.

A module is frozen, and its forward returns its result alone. Three designs can then carry a running mean: the forward
returns it (`y, state = layer(x, state)`), which every model between the layer and the training loop has to pass along;
the module's fields change in place, which would make every module a thing that may change under its holders; or one
field is a *cell*, and only what is in the cell is replaced. A `Buffer` is such a cell. What is in it is a tensor, and
immutable like every tensor, so a tape, a record or a copy that has seen one value keeps that value.

Who shares a cell follows from what a call means. The model goes on as the same model through `map`, and so through
`optimizer.step` and as the argument of `grad(f)(model)`: it keeps its cells. `valid`, `train`, `no_grad`, `clone`,
`to_dtype`, `to_device`, `fork` and `load_record` give another model, with cells of its own that start from the same
values: `model.valid()` is a snapshot of weights *and* statistics. One `Buffer` in two places is one cell in each copy.
"""
from __future__ import annotations

import sys
import weakref
from typing import Any

from ruda_autodiff import is_recomputing
from ruda_tensor.recording import FINE, SHARED, recording
from ruda_tensor.tensor import Tensor


class _Holder:
    __slots__ = ("held",)


_holder = _Holder()
_holder.held = object()
_ALONE = sys.getrefcount(_holder.held)  # what it says, on this interpreter, of an object that one attribute holds


class Buffer:
    """A field of a Module that holds a tensor which is state: recorded, moved and copied, and never trained.

    `buffer.value` is the tensor, without a place on the tape; `buffer.set(tensor)` replaces it by one of the same
    shape, dtype and device, without copying it and without waiting for the device. While `checkpoint` runs a function
    again for its gradients, `set` does nothing: the forward has done it already.

    Errors: TypeError for what is no tensor; ValueError for another shape, dtype or device, and the old value stays.

    >>> import ruda_tensor as rt
    >>> count = Buffer(rt.zeros((2,), device=rt.Cpu()))
    >>> count.set(count.value + 1.0)
    >>> count, count.tolist()
    (Buffer(2,) float32, [1.0, 1.0])
    """

    __slots__ = ("_value",)
    _value: Tensor

    def __init__(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"Buffer: expected a tensor, got {type(value).__name__}; Buffer(rt.zeros((3,)))")
        self._value = value.detach()

    @property
    def value(self) -> Tensor:
        """The tensor that is held now."""
        return self._value

    def set(self, value: Tensor) -> None:
        """Hold another tensor of the same shape, dtype and device from now on."""
        if not isinstance(value, Tensor):
            raise TypeError(f"Buffer.set: expected a tensor, got {type(value).__name__}; buffer.set(rt.asarray(value))")
        old = self._value
        if (value.shape, value.dtype, value.device) != (old.shape, old.dtype, old.device):
            raise ValueError(
                f"Buffer.set: got shape {value.shape}, {value.dtype} on {value.device}, and the buffer holds {old.shape}, "
                f"{old.dtype} on {old.device}; convert first: buffer.set(x.astype(buffer.dtype))"
            )
        if is_recomputing():
            return
        current = recording()
        if current is None:
            self._value = value.detach()
        else:
            self._set_in_place(value, current)

    def _set_in_place(self, value: Tensor, current: Any) -> None:
        """Keep the memory: a captured step reads and writes the same places at every replay."""
        old = self._value
        with old.device.guard():
            old.device.xp.copyto(old._data, value._data)
        held = weakref.ref(old)
        # Another tensor in the cell, by an eager step: the next one is eager too, and then recorded with that.
        current.watched.append(lambda: SHARED if held() is not self._value or self._seen() else FINE)

    def _seen(self) -> bool:
        """Whether anybody beside this cell sees the numbers."""
        return sys.getrefcount(self._value) > _ALONE or sys.getrefcount(self._value._data) > _ALONE

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> Any:
        return self._value.dtype

    @property
    def device(self) -> Any:
        return self._value.device

    @property
    def size(self) -> int:
        return self._value.size

    @property
    def nbytes(self) -> int:
        return self._value.nbytes

    def numpy(self) -> Any:
        """Return a copy of the values as a NumPy array on the host."""
        return self._value.numpy()

    def tolist(self) -> Any:
        """Return the values as nested Python lists."""
        return self._value.tolist()

    def __repr__(self) -> str:
        return f"Buffer{tuple(self.shape)} {self.dtype}"
