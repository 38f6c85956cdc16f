"""A user's own operation: a forward and its derivative rule, perhaps around a kernel of another library."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ruda_tensor.tensor import Tensor

from .backward import HigherDerivativeUnsupported
from .several import Own, attach_results
from .tape import Node, enable_grad, mode, no_grad
from .trees import tensors_of


class Custom(Own):
    """The tape's side of a `custom_gradient` operation."""

    def __init__(self, name: str, shapes: list[tuple[int, ...] | None]) -> None:
        self.name, self.shapes = name, shapes

    def pull(self, walk: Any, node: Node, g: list) -> list:
        (rule, zeros), _ = node.kept
        found = rule(*[zero() if part is None else part for part, zero in zip(g, zeros, strict=True)])
        found = list(found) if isinstance(found, (tuple, list)) else [found]
        wanted = [(p, s) for p, s in zip(node.parents or (), self.shapes, strict=True) if s is not None]
        if len(found) != len(wanted):
            raise ValueError(
                f"{self.name}: the derivative rule returned {len(found)} gradients for {len(wanted)} tensor arguments; "
                "return one per tensor argument, None where there is none: return dx, dy"
            )
        for gradient, (_, shape) in zip(found, wanted, strict=True):
            if gradient is None:
                continue
            if not isinstance(gradient, Tensor):
                raise TypeError(f"{self.name}: the derivative rule must return tensors, got {type(gradient).__name__}")
            if gradient.shape != shape and not _stretches(gradient.shape, shape):
                raise ValueError(f"{self.name}: the derivative rule gave shape {gradient.shape} for an argument of shape {shape}")
        return [(parent, gradient) for gradient, (parent, _) in zip(found, wanted, strict=True)]


def _stretches(shape: tuple[int, ...], target: tuple[int, ...] | None) -> bool:
    """True where a gradient came from broadcasting the argument, or is a smaller one that is the same everywhere."""
    assert target is not None
    grown = len(shape) >= len(target) and all(b in (a, 1) for a, b in zip(shape[::-1], target[::-1], strict=False))
    return grown or (len(shape) <= len(target) and all(a in (b, 1) for a, b in zip(shape[::-1], target[::-1], strict=False)))


def custom_gradient(f: Callable) -> Callable:
    """Make an operation of `f`, which returns its result (or a tuple of results) and its derivative rule.

    The rule takes one incoming gradient per result and returns one gradient per tensor argument (None for none).
    `f` gets untracked tensors, so it may hand them to another library: `cupy.asarray(x)` on a GPU, `numpy.asarray(x)`
    on the CPU, and `rt.asarray(array)` back. A rule written in operations on tensors can be differentiated again;
    where a second derivative is asked for, `f` is run on tracked tensors, so its forward must be written in operations.

    Integer and bool results are constants to the tape. Tracked tensors must be given by position.

    Errors: ValueError or TypeError where the rule returns the wrong number, kind or shape of gradients; TypeError for a
    tracked tensor that is given by keyword or inside a list;
    HigherDerivativeUnsupported where a second derivative is asked of a forward that was not made of operations.

    >>> import ruda_tensor as rt
    >>> @custom_gradient
    ... def cube(x):
    ...     return x * x * x, lambda g: g * (3.0 * x * x)
    >>> x = rt.tensor([2.0], device=rt.Cpu()).require_grad()
    >>> x.grad(cube(x).sum().backward()).numpy()
    array([12.], dtype=float32)
    """

    @functools.wraps(f)
    def operation(*args: Any, **kwargs: Any) -> Any:
        name = getattr(f, "__name__", "custom operation")
        _check_arguments(name, args, kwargs)
        node = next((a._node for a in args if isinstance(a, Tensor) and a._node is not None), None)
        if node is None or not mode.recording:
            with no_grad():
                return _unpack(name, f(*args, **kwargs))[0]
        second = mode.order == 2
        with enable_grad() if second else no_grad():
            value, rule = _unpack(name, f(*(args if second else [_bare(a) for a in args]), **kwargs))
        results = list(value) if isinstance(value, (tuple, list)) else [value]
        if not results or not all(isinstance(y, Tensor) for y in results):
            got = [type(y).__name__ for y in results] or "none"
            raise TypeError(f"{name}: the results must be tensors, got {got}; return y, lambda g: ...")
        if second and not any(y.is_require_grad() for y in results):
            raise HigherDerivativeUnsupported(
                f"'{name}' computes its result outside the tape, so it has a first derivative only; "
                "write its forward in operations on tensors to differentiate it twice"
            )
        zeros = [functools.partial(_zeros, y.shape, y.dtype, y.device) for y in results]
        op = Custom(name, [a.shape if isinstance(a, Tensor) else None for a in args])
        outs = attach_results(op, node, args, (rule, zeros), results)
        return tuple(outs) if isinstance(value, (tuple, list)) else outs[0]

    return operation


def _check_arguments(name: str, args: tuple, kwargs: dict) -> None:
    """Refuse tracked tensors where the rule has no gradient to give: by keyword, or inside a list or dict."""
    hidden = [*kwargs.values(), *[a for a in args if not isinstance(a, Tensor)]]
    if hidden and mode.recording and any(x._node is not None for x in tensors_of(hidden)):
        raise TypeError(
            f"{name}: a tracked tensor given by keyword or inside a list has no place among the gradients that the rule "
            f"returns; give it by position: {name}(x, w), or x.detach() where none is wanted"
        )


def _zeros(shape: tuple[int, ...], dtype: Any, device: Any) -> Tensor:
    import ruda_tensor as rt

    return rt.zeros(shape, dtype=dtype, device=device)


def _bare(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _unpack(name: str, returned: Any) -> tuple[Any, Callable]:
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[1]):
        raise TypeError(f"{name}: a custom operation returns its result and its derivative rule: return y, lambda g: ...")
    return returned
