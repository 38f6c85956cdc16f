"""Parameters: tensors with an identity that survives updates, dtype changes and records."""
from __future__ import annotations

import secrets
import weakref
from typing import Any, NoReturn, cast

from ruda_autodiff import Autodiff
from ruda_autodiff.device import STRATEGIES
from ruda_autodiff.tape import make_leaf
from ruda_tensor.devices import resolve_device
from ruda_tensor.dtypes import is_floating
from ruda_tensor.tensor import Tensor, from_pickle, to_pickle


class _Consumed:
    """What a consumed parameter holds in the place of its numbers: any use raises, at no cost to the others."""

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            "this parameter was consumed by optimizer.step, which reuses its memory for the new model; "
            "go on with the model that step returned: model = optimizer.step(lr, model, gradients). "
            "To keep the old one, take model.clone() before the step; a loss of it needs its backward before the step"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what Python itself asks of any object
        self._refuse()

    # NumPy would wrap an unknown object instead of asking it for anything.
    __array__ = __array_ufunc__ = __array_function__ = __len__ = __getitem__ = _refuse


CONSUMED = _Consumed()


def new_id() -> str:
    """Return a parameter id that no other parameter has, in this process or in a record: 64 random bits in hex."""
    return secrets.token_hex(8)


class Place:
    """Memory of a parameter, and which parameter it belongs to: an update in place hands it on."""

    __slots__ = ("owner",)

    def __init__(self, owner: Param) -> None:
        self.owner: weakref.ref[Param] = weakref.ref(owner)


class Param(Tensor):
    """A tensor that an optimizer may change: it has an `id`, and is a leaf of the tape while it is trained.

    Two fields with one id are tied: one leaf, one gradient, one update, one state, one stored copy. `trainable` is
    False for a frozen parameter. `device` may be a recording device, which gives its checkpointing strategy.

    >>> import ruda_tensor as rt
    >>> p = Param(rt.tensor([1.0, 2.0], device=rt.Cpu()))
    >>> p.is_require_grad(), p.shape
    (True, (2,))
    """

    __slots__ = ("id", "trainable", "strategy", "_place")
    id: str
    trainable: bool
    strategy: str
    _place: Place | None  # only where somebody asked for it

    def __init__(self, value: Tensor, *, trainable: bool = True, device: Any = None, id: str | None = None) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"Param: expected a tensor, got {type(value).__name__}; Param(rt.tensor(values))")
        if id is not None and (not isinstance(id, str) or not id):
            raise TypeError(f"Param: an id is a string, got {id!r}; leave it out for a new one")
        strategy = device.checkpointing if isinstance(device, Autodiff) else getattr(value, "strategy", "none")
        tracked = trainable and (device is None or isinstance(device, Autodiff))
        place = value.device if device is None else resolve_device(device)
        self._fill(value.detach().to_device(place)._data, place, id or new_id(), trainable, strategy, tracked)

    def _fill(self, data: Any, device: Any, id: str, trainable: bool, strategy: str, tracked: bool) -> None:
        self._data, self.device, self._node, self._place = data, device, None, None
        self.id, self.strategy = id, strategy
        self.trainable = trainable and is_floating(data.dtype)
        if tracked and self.trainable:
            self._node = make_leaf(self, STRATEGIES[strategy])

    def like(
        self, data: Any, *, device: Any = None, id: str | None = None, trainable: bool | None = None,
        tracked: bool | None = None, strategy: str | None = None,
    ) -> Param:
        """Return a parameter over other numbers; what is not named stays as it is."""
        out = Param.__new__(Param)
        out._fill(
            data,
            self.device if device is None else device,
            self.id if id is None else id,
            self.trainable if trainable is None else trainable,
            self.strategy if strategy is None else strategy,
            self.is_require_grad() if tracked is None else tracked,
        )
        return out

    def successor(self, data: Any) -> Param:
        """Return the parameter that goes on from this one: over its updated numbers, of the same shape and dtype."""
        if data.dtype != self._data.dtype:
            return self.like(data)
        out = Param.__new__(Param)
        out._data, out.device, out._node, out._place = data, self.device, None, None
        out.id, out.strategy, out.trainable = self.id, self.strategy, self.trainable
        if self._place is not None and data is self._data:
            out._take_place(self._place)
        if self._node is not None and self.trainable:
            out._node = make_leaf(out, STRATEGIES[self.strategy])
        return out

    def require_grad(self) -> Param:
        """Return this parameter as one that is trained: a leaf of the same id."""
        return self.set_require_grad(True)

    def set_require_grad(self, flag: bool) -> Param:
        """Return this parameter frozen (False), or as one that is trained (True); the id stays.

        Errors: TypeError where integers or bools should be trained.
        """
        if flag and not is_floating(self.dtype):
            raise TypeError(f"a parameter of {self.dtype} has no gradient; convert first: Param(p.astype(rt.float32))")
        return self.like(self._data, trainable=flag, tracked=flag)

    def place(self) -> Place:
        """Return what says to which parameter this memory belongs, also after updates in place."""
        if self._place is None:
            self._place = Place(self)
        return self._place

    def _take_place(self, place: Place) -> None:
        self._place, place.owner = place, weakref.ref(cast(Param, self))

    def take_back(self, successor: Param) -> None:
        """Undo `consume`: the memory is this parameter's again, as the update in place of its successor never was."""
        self._data = successor._data
        if self._place is not None:
            self._take_place(self._place)

    def consume(self) -> None:
        """Mark this parameter as used up: its memory now belongs to its successor."""
        self._data = CONSUMED

    def is_consumed(self) -> bool:
        """Return whether an optimizer's step has taken this parameter's memory."""
        return self._data is CONSUMED

    def numpy(self) -> Any:
        """Return a copy of the values as a NumPy array on the host."""
        return super().numpy() if self._data is not CONSUMED else CONSUMED._refuse()

    def tolist(self) -> Any:
        """Return the values as nested Python lists."""
        return super().tolist() if self._data is not CONSUMED else CONSUMED._refuse()

    def __copy__(self) -> Param:
        return self

    def __deepcopy__(self, memo: dict) -> Param:
        return self.copy()

    def copy(self) -> Param:
        """Return an independent parameter with the same id, values and tracking."""
        with self.device.guard():
            return self.like(self._data.copy())

    def __reduce__(self) -> tuple:
        values = to_pickle(self._data) if self._data is not CONSUMED else CONSUMED._refuse()
        return _rebuild, (values, self.device, self.id, self.trainable, self.strategy, self.is_require_grad())

    def __repr__(self) -> str:
        if self.is_consumed():
            return f"Param({self.id}, consumed)"
        return f"Param({self.id}, {super().__repr__()})"


def _rebuild(array: Any, device: Any, id: str, trainable: bool, strategy: str, tracked: bool) -> Param:
    out = Param.__new__(Param)
    out._fill(from_pickle(array, device), device, id, trainable, strategy, tracked)
    return out
