"""The tensor: an immutable array on a device, perhaps with a place on a tape.

Arithmetic and array methods are in `methods.py`; this file holds what a tensor is and how it meets the outside.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import backend
from .devices import Device, resolve_device
from .dtypes import BFLOAT16, BOOL, as_dtype, is_floating
from .methods import Methods

_leaf_maker: dict[str, Callable | None] = {"make": None}


def install_tape(make_leaf: Callable) -> None:
    """Called once by ruda_autodiff: `make_leaf(tensor)` returns the tape's node for a new leaf."""
    _leaf_maker["make"] = make_leaf


def leaf_maker() -> Callable | None:
    """What `install_tape` was given, or None where there is no tape."""
    return _leaf_maker["make"]


def common_device(name: str, a: Device, b: Device) -> Device:
    """Return the device of two operands, or raise where they are on different ones."""
    if a != b:
        raise ValueError(f"{name}: operands are on {a} and {b}; move one first: x.to_device({a!r})")
    return a


class Tensor(Methods):
    """An n-dimensional array of one dtype on one device; immutable, and hashed by identity.

    Make one with `tensor`, `zeros`, `arange` and the like. Operators broadcast as in NumPy; `==` is elementwise.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())
    >>> x.shape, x.dtype, x.device
    ((2, 2), dtype('float32'), Cpu())
    >>> (x @ x).numpy()
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    """

    __slots__ = ("_data", "device", "_node", "__weakref__")
    _data: Any
    device: Device
    _node: Any

    __array_ufunc__ = None  # NumPy's operators give way to ours, and np.exp(tensor) raises instead of losing the tape
    __hash__ = object.__hash__  # type: ignore[assignment]  (`==` is elementwise, and dicts go by identity)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("make a tensor with a function: rt.tensor([1.0, 2.0]), rt.zeros((2, 3)), rt.asarray(array)")

    @classmethod
    def _wrap(cls, data: Any, device: Device) -> Tensor:
        """A tensor over an array that nobody else will change."""
        out = Tensor.__new__(Tensor)
        out._data = data
        out.device = device
        out._node = None
        return out

    # what it is
    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    # the tape
    def require_grad(self) -> Tensor:
        """Return a leaf: a tensor of the same values whose gradient `backward` will give."""
        if not is_floating(self.dtype):
            raise TypeError(f"require_grad: a tensor of {self.dtype} has no gradient; convert first: x.astype(rt.float32)")
        make = _leaf_maker["make"]
        if make is None:
            raise RuntimeError("require_grad: the tape is in ruda_autodiff; first: import ruda_autodiff")
        out = Tensor._wrap(self._data, self.device)
        out._node = make(out)
        return out

    def is_require_grad(self) -> bool:
        """True for a leaf and for anything computed from one while recording."""
        return self._node is not None

    def detach(self) -> Tensor:
        """Return the same values without a place on the tape."""
        return Tensor._wrap(self._data, self.device)

    def backward(self, retain_graph: bool = False, order: int = 1) -> Any:
        """Differentiate the sum of this tensor by every leaf it depends on; consumes the graph unless `retain_graph`.

        Returns `Gradients`, which `x.grad(gradients)` reads. `order=2` makes the gradients differentiable again; the
        graph must then have been recorded with order 2 (see ruda_autodiff.record).
        """
        if self._node is None:
            raise RuntimeError(
                "backward: this tensor depends on no leaf, or was computed under no_grad; make one first: "
                "x = x.require_grad(), or model = model.train() for a model that was made on a plain device"
            )
        return self._node.backward(self, retain_graph, order)

    def grad(self, gradients: Any) -> Tensor | None:
        """Return this tensor's gradient, or None where it took no part."""
        return gradients.get(self)

    # to the outside
    def numpy(self) -> np.ndarray:
        """Return a copy of the values as a NumPy array on the host, for any tensor on any device."""
        host = backend.to_host(self._data)
        return host.copy() if host is self._data else host

    def item(self) -> Any:
        """Return the only element as a Python number (a synchronizing copy on a GPU)."""
        if self.size != 1:
            raise ValueError(f"item: a tensor of shape {self.shape} has {self.size} elements, not one; pick one: x[0, 0].item()")
        return backend.to_host(self._data).item()

    def tolist(self) -> Any:
        """Return the values as nested Python lists (a number for a 0-d tensor)."""
        return backend.to_host(self._data).tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if is_floating(self.dtype) or self.dtype == BOOL or self.ndim:
            raise TypeError(f"only a 0-d integer tensor is an index, not one of shape {self.shape} and {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape} is ambiguous; write rt.any(x) or rt.all(x)")
        return bool(self.item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len: a 0-d tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iter: a 0-d tensor cannot be iterated over; its value is x.item()")
        from .ops.join import unstack

        return iter(unstack(self))  # one gradient for all rows, not one of full size for each

    def __repr__(self) -> str:
        from .printing import describe

        return describe(self)

    def __format__(self, spec: str) -> str:
        """A number's own format for a 0-d tensor, as in f"{loss:.4f}"; more elements have none but the plain one."""
        if not spec:
            return repr(self)
        if self.ndim:
            raise TypeError(f"format: a tensor of shape {self.shape} is no number to format by {spec!r}; pick one: x[0]")
        return format(self.item(), spec)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"array API version {api_version!r} is not known here; the newest is '2024.12'")
        import ruda_tensor

        return ruda_tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._node is not None:
            raise TypeError("NumPy would drop this tracked tensor from the tape; write x.detach().numpy(), or use rt functions")
        if self.device.kind != "cpu":
            raise TypeError(f"NumPy would copy from {self.device} silently; write x.numpy()")
        if copy or (dtype is not None and np.dtype(dtype) != self._data.dtype):
            if copy is False:
                raise ValueError(f"a NumPy array of {dtype} cannot share memory with a tensor of {self.dtype}; use x.numpy()")
            return self._data.astype(self._data.dtype if dtype is None else dtype)
        view = self._data.view()
        view.flags.writeable = False  # the tensor stays immutable
        return view

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented  # np.concatenate([tensor]) raises instead of losing the tape

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        if self._node is not None:
            raise BufferError("a tracked tensor cannot leave through DLPack without losing the tape; first: x.detach()")
        if self.device.kind == "cuda":
            return self._data.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if self.dtype == BFLOAT16:
            raise BufferError("NumPy cannot export bfloat16 through DLPack; convert first: x.astype(rt.float32)")
        data = self._data.view()
        if copy or max_version is None or max_version[0] < 1:
            return self._data.copy().__dlpack__(stream=stream)  # an old consumer cannot be told that memory is read-only
        data.flags.writeable = False
        return data.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict:
        if self.device.kind != "cuda":
            raise AttributeError("a CPU tensor has no __cuda_array_interface__")
        if self._node is not None:
            raise TypeError("a tracked tensor cannot be shared without losing the tape; first: x.detach()")
        return self._data.__cuda_array_interface__

    def __reduce__(self) -> tuple:
        return _rebuild, (to_pickle(self._data), self.device, self._node is not None)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: dict) -> Tensor:
        return self.copy()

    def copy(self) -> Tensor:
        """Return the same values in memory of its own; a leaf gives a new leaf, and no other place on the tape is kept."""
        out = Tensor._wrap(self._data.copy(), self.device)
        return out.require_grad() if self._node is not None and self._node.is_leaf else out

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Return the tensor on another device (itself if it is there already); differentiable.

        Errors: NoUsableGpu, with the reason, where a GPU is named and none can be used.
        """
        if stream is not None:
            raise ValueError("to_device: streams are not taken here; use the current stream (stream=None)")
        target = resolve_device(device)
        if target == self.device:
            return self
        from .ops.device import move

        return move(self, target)


def to_pickle(data: Any) -> np.ndarray:
    """The values of a tensor for pickle, which may hand out this very memory (protocol 5): nobody can write there."""
    values = backend.to_host(data).view()
    values.flags.writeable = False
    return values


def from_pickle(array: np.ndarray, device: Device) -> Any:
    """What `to_pickle` gave, in memory that nobody else sees, as an array of `device`."""
    own = array.base is None  # the out-of-band buffers of protocol 5 are the caller's, who may write to them
    array = (array if own else array.copy()).view(as_dtype(array.dtype))  # pickle makes a dtype object of its own
    return device.put(array)


def _rebuild(array: np.ndarray, device: Device, leaf: bool) -> Tensor:
    out = Tensor._wrap(from_pickle(array, device), device)
    return out.require_grad() if leaf else out
