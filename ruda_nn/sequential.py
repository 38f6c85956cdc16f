"""Layers one after another, and the two that only change shapes or nothing."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, overload

import ruda_tensor as rt

from .config import Config
from .module import Module


class Sequential(Module):
    """Layers applied one after another: modules, or functions of one argument such as `rt.relu`.

    It has a length, is indexed (a slice gives a Sequential) and is iterated over. Paths are "layers.0.weight" and so on.

    Errors: TypeError for what cannot be called, such as a configuration.

    >>> from ruda_nn import LinearConfig
    >>> model = Sequential(LinearConfig(3, 4).init(rt.Cpu()), rt.relu, LinearConfig(4, 2).init(rt.Cpu()))
    >>> model(rt.ones((5, 3), device=rt.Cpu())).shape, len(model), model[2].weight.shape
    ((5, 2), 3, (4, 2))
    """

    layers: list[Callable[..., Any]]
    torch_names = {"layers": ""}

    def __init__(self, *given: Callable[..., Any], layers: Any = None) -> None:
        found = list(given if layers is None else layers)
        if len(found) == 1 and isinstance(found[0], (list, tuple)):
            found = list(found[0])
        for layer in found:
            if not callable(layer) or isinstance(layer, Config):
                advice = f"{type(layer).__name__}(...).init(device)" if isinstance(layer, Config) else "a module or a function"
                raise TypeError(f"Sequential: {layer!r} cannot be called; give {advice}")
        vars(self)["layers"] = found

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequential: ...

    def __getitem__(self, index: Any) -> Any:
        return Sequential(*self.layers[index]) if isinstance(index, slice) else self.layers[index]


class SequentialConfig(Config):
    """Settings of `Sequential`: `layers`, a tuple of configurations, which it initializes, and of ready layers.

    >>> from ruda_nn import LinearConfig, Relu
    >>> config = SequentialConfig((LinearConfig(3, 4), Relu(), LinearConfig(4, 2)))
    >>> config.init(rt.Cpu()).paths()
    ['layers.0.weight', 'layers.0.bias', 'layers.2.weight', 'layers.2.bias']
    """

    layers: tuple[Any, ...]

    def init(self, device: Any = None) -> Sequential:
        """Return the layers on a device; on a recording device their parameters are tracked."""
        self.require(isinstance(self.layers, (tuple, list)), "layers", "a tuple of configurations and layers")
        return Sequential(*[layer.init(device) if isinstance(layer, Config) else layer for layer in self.layers])


class Flatten(Module):
    """Merge the axes from `start_axis` (1) to `end_axis` (-1) into one.

    >>> Flatten()(rt.ones((2, 3, 4), device=rt.Cpu())).shape
    (2, 12)
    """

    start_axis: int = 1
    end_axis: int = -1

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.flatten(x, self.start_axis, self.end_axis)


class Identity(Module):
    """x itself: what stands where a layer may be.

    >>> Identity()(rt.ones(2, device=rt.Cpu())).tolist()
    [1.0, 1.0]
    """

    def forward(self, x: Any) -> Any:
        return x
