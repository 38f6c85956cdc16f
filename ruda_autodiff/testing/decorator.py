"""@check_operation: a property-based gradient test whose failure is the smallest one, as code."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda_tensor.tensor import Tensor

from .domains import hypothesis_strategies
from .gradients import check_gradients
from .report import GradientMismatch, Inconclusive, KinkNearby


def check_operation(
    *, order: int = 1, max_examples: int | None = None, kinks: str = "ignore", options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Callable[[Callable], Callable]:
    """Turn a function of tensors into a test of its derivatives on inputs that hypothesis searches.

    Each keyword is an argument of the function: a strategy, a plain value, or a function of earlier arguments, named
    by its parameters, that returns a strategy (`axis=lambda x: axes(x.ndim)`). Floating tensors are differentiated by.
    The result takes no arguments, so pytest collects it under its `test_` name; `.operation` is the function itself.
    A failure is shrunk to the smallest shape and the simplest values, and raised with code that reproduces it.
    `max_examples` and the rest follow hypothesis's current profile; `options` go to check_gradients. Entries at kinks
    are left out, unless kinks="raise".

    Errors: GradientMismatch, or Inconclusive where an input is outside of the domain of the function.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff.testing import axes, positive, shapes, tensors
    >>> @check_operation(x=tensors(shapes(min_dims=1), domain=positive), axis=lambda x: axes(x.ndim), max_examples=5)
    ... def test_log_of_sum(x, axis):
    ...     return rt.log(rt.sum(x, axis=axis))
    >>> test_log_of_sum()
    """
    st = hypothesis_strategies()
    if not arguments:
        raise TypeError("check_operation: name the arguments: @check_operation(x=tensors(shapes(max_dims=3)))")

    def decorate(f: Callable) -> Callable:
        _verify_names(f, arguments)

        @st.composite
        def inputs(draw: Any) -> dict[str, Any]:
            drawn: dict[str, Any] = {}
            for name, source in arguments.items():
                if callable(source) and not isinstance(source, st.SearchStrategy):
                    source = source(**{p: drawn[p] for p in inspect.signature(source).parameters})
                drawn[name] = draw(source) if isinstance(source, st.SearchStrategy) else source
            return drawn

        def one(drawn: dict[str, Any]) -> None:
            _check(f, drawn, order, kinks, options or {})

        def test() -> None:
            _search(one, inputs(), max_examples)

        test.__name__ = test.__qualname__ = getattr(f, "__name__", "test_operation")
        test.__doc__, test.__module__ = f.__doc__, f.__module__
        test.operation = f  # type: ignore[attr-defined]
        return test

    return decorate


def _verify_names(f: Callable, arguments: dict[str, Any]) -> None:
    parameters = inspect.signature(f).parameters
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [n for n in needed if n not in arguments]
    unknown = [n for n in arguments if n not in parameters]
    if missing or unknown:
        name = getattr(f, "__name__", "the function")
        raise TypeError(f"check_operation: {name} takes {list(parameters)}; missing {missing}, unknown {unknown}")


def _search(one: Callable[[dict[str, Any]], None], inputs: Any, max_examples: int | None) -> None:
    """Run hypothesis, and raise its smallest failure without the notes that it adds: the message says it all."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable

    more: dict[str, Any] = {} if max_examples is None else {"max_examples": max_examples}
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = [phase for phase in settings().phases if phase != Phase.explain]  # it runs the failure over and over
    run = settings(
        deadline=None, report_multiple_bugs=False, suppress_health_check=quiet, phases=phases, **more
    )(given(drawn=inputs)(one))  # fmt: skip
    try:
        run()
    except (GradientMismatch, Inconclusive) as error:
        error.__notes__ = []
        raise error.with_traceback(None) from None
    except Unsatisfiable:
        raise Inconclusive("every input that was tried lies at a kink of the function; choose a domain away from it") from None


def _check(f: Callable, drawn: dict[str, Any], order: int, kinks: str, options: dict[str, Any]) -> None:
    """Check one example; what goes wrong is raised with the code that shows it again."""
    from hypothesis import reject

    names = list(drawn)
    call = lambda *values: f(**dict(zip(names, values, strict=True)))
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    try:
        check_gradients(call, *drawn.values(), order=order, kinks=kinks, **options)
    except KinkNearby:
        if kinks == "raise":
            raise
        reject()
    except (GradientMismatch, Inconclusive) as error:
        code = reproduction(f, drawn, order, options)
        error.args = (f"{error.args[0]}\nThe smallest failing input that was found, as code:\n\n{code}",)
        raise
    except Exception as error:
        error.add_note(f"raised by this input:\n\n{reproduction(f, drawn, order, options)}")
        raise


def reproduction(f: Callable, drawn: dict[str, Any], order: int, options: dict[str, Any]) -> str:
    """A program that repeats one check."""
    name, module = getattr(f, "__qualname__", "f"), getattr(f, "__module__", "__main__")
    lines = ["import numpy as np", "import ruda_tensor as rt", "from ruda_autodiff.testing import check_gradients"]
    if "<" in name or module == "__main__":
        lines.append(f"# {name} is the function that @check_operation decorates")
        target = f"{name.rpartition('.')[2]}.operation"
    else:
        lines.append(f"from {module} import {name}")
        target = f"{name}.operation"
    lines.append("")
    lines += [f"{key} = {as_code(value)}" for key, value in drawn.items()]
    extras = "".join(f", {key}={value!r}" for key, value in {"order": order, **options}.items())
    lines.append(f"check_gradients({target}, {', '.join(drawn)}{extras})")
    return "\n".join("    " + line if line else "" for line in lines)


def as_code(value: Any) -> str:
    """A Python expression for an argument; the memory layout of a tensor is named in a comment."""
    if isinstance(value, Tensor):
        host = value.numpy()
        place = f"device=rt.{value.device!r}"
        if not host.size:
            return f"rt.zeros({host.shape}, dtype=rt.{_name(value)}, {place})"
        layout = ""
        if value.device.kind == "cpu" and not value._data.flags.c_contiguous:
            layout = f"  # strides {value._data.strides}"
        return f"rt.tensor({_numbers(host.tolist())}, dtype=rt.{_name(value)}, {place}){layout}"
    if isinstance(value, np.ndarray):
        return f"np.array({_numbers(value.tolist())}, np.{value.dtype})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {as_code(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_code, value)) + "]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + ", ".join(map(as_code, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def _name(x: Tensor) -> str:
    return str(x.dtype)


def _numbers(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(map(_numbers, values)) + "]"
    if isinstance(values, float) and not np.isfinite(values):
        return f'float("{values}")'
    return repr(values)
