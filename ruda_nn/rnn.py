"""Recurrent layers: plain, gated (GRU) and with a memory cell (LSTM)."""
from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Any

import ruda_tensor as rt
from ruda_tensor.dtypes import HALF, INTEGER, promote_types
from ruda_tensor.ops._common import floating

from .config import Config
from .creation import Creation
from .initializers import Uniform
from .module import Module
from .param import Param

State = tuple[rt.Tensor, ...]


class RecurrentWeights(Module):
    """The parameters of one direction of one recurrent layer, for G = 1 (plain), 3 (GRU) or 4 (LSTM) parts.

    weight_ih is [d_in, G hidden], weight_hh [hidden, G hidden], bias_ih and bias_hh [G hidden]; the parts follow each
    other in PyTorch's order: r, z, n for a GRU and i, f, g, o for an LSTM.

    >>> RnnConfig(3, 2).init(rt.Cpu()).layers[0].weight_ih.shape
    (3, 2)
    """

    weight_ih: Param
    weight_hh: Param
    bias_ih: Param | None
    bias_hh: Param | None

    transposed_in_torch = ("weight_ih", "weight_hh")


class Recurrent(Module):
    """Base of the recurrent layers: all layers and directions over [batch, T, d_in]; a subclass says what one step is.

    >>> isinstance(GruConfig(3, 2).init(rt.Cpu()), Recurrent)
    True
    """

    layers: list[RecurrentWeights]
    bidirectional: bool
    dropout: float
    training: bool

    @property
    def torch_names(self) -> dict[str, str]:
        """Return our paths -> PyTorch's names: "layers.0.weight_ih" is "weight_ih_l0", the other way round "..._reverse"."""
        count = 1 + self.bidirectional
        ends = [f"_l{i // count}{'_reverse' if i % count else ''}" for i in range(len(self.layers))]
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return {f"layers.{i}.{name}": name + end for i, end in enumerate(ends) for name in names}

    def _project(self, x: rt.Tensor, weights: RecurrentWeights) -> tuple[rt.Tensor, rt.Tensor, rt.Tensor | None]:
        """The input's part of all steps at once; what the state is multiplied by, and what is added to that."""
        dtype, w, u = x.dtype, weights.weight_ih, weights.weight_hh
        if weights.bias_ih is None or weights.bias_hh is None:
            return rt.linear(x, w.astype(dtype)), u.astype(dtype), None
        bias = weights.bias_ih.astype(dtype) + weights.bias_hh.astype(dtype)
        return rt.linear(x, w.astype(dtype), bias), u.astype(dtype), None

    def _step(self, projected: rt.Tensor, state: State, u: rt.Tensor, bias: rt.Tensor | None) -> State:
        """Return the next state from the input's part [batch, G hidden] and the state; its first tensor is the output."""
        raise TypeError(f"{type(self).__name__} does not say what a step is")

    def _run(self, x: rt.Tensor, states: list[State], lengths: Any) -> tuple[rt.Tensor, list[State]]:
        """All layers over x, from one state per layer and direction to the outputs and the last states."""
        valid = None if lengths is None else _valid(x, lengths)
        steps = None if valid is None else rt.unstack(valid, axis=1)
        x = x if valid is None else rt.where(valid, x, 0.0)
        last, count = [], 1 + self.bidirectional
        for i in range(0, len(self.layers), count):
            if i:
                x = rt.dropout(x, self.dropout, training=self.training)
            sides = [self._scan(x, self.layers[j], states[j], steps, j > i) for j in range(i, i + count)]
            last += [state for _, state in sides]
            x = sides[0][0] if count == 1 else rt.concat([out for out, _ in sides], axis=-1)
            x = x if valid is None else rt.where(valid, x, 0.0)
        return x, last

    def _scan(
        self, x: rt.Tensor, weights: RecurrentWeights, state: State, valid: Any, reverse: bool
    ) -> tuple[rt.Tensor, State]:
        """One direction of one layer. Where a step is not valid its state stays, and what it puts out is not used."""
        projected, u, bias = self._project(x, weights)
        parts = rt.unstack(projected, axis=1)
        if not parts:
            return rt.zeros((x.shape[0], 0, u.shape[0]), dtype=x.dtype, device=x.device), state
        outputs: list[Any] = [None] * len(parts)
        for t in reversed(range(len(parts))) if reverse else range(len(parts)):
            new = self._step(parts[t], state, u, bias)
            state = new if valid is None else tuple([rt.where(valid[t], a, b) for a, b in zip(new, state, strict=True)])
            outputs[t] = state[0]
        return rt.stack(outputs, axis=1), state

    def _over(self, x: rt.Tensor, initial: State | None, lengths: Any, kinds: int) -> tuple[rt.Tensor, State]:
        """Check, run in float32 or wider, and round once: `kinds` tensors make up a state."""
        name, first = type(self).__name__, self.layers[0]
        d_in, hidden, places = first.weight_ih.shape[0], first.weight_hh.shape[0], len(self.layers)
        x = floating(x, name)
        if x.ndim != 3 or x.shape[2] != d_in:
            raise ValueError(f"{name}: x must be [batch, T, {d_in}], got {x.shape}; one sequence: x[None]")
        shape = (places, x.shape[0], hidden)
        for part in initial or ():
            if not isinstance(part, rt.Tensor):
                raise TypeError(f"{name}: the initial state must be a tensor, got {type(part).__name__}; rt.zeros({shape})")
            if part.shape != shape:
                raise ValueError(
                    f"{name}: the initial state must be [layers x directions, batch, hidden] = {shape}, got {part.shape}; "
                    f"rt.zeros({shape})"
                )
        dtype = promote_types(x.dtype, first.weight_ih.dtype)
        wide = rt.float32 if dtype in HALF else dtype
        if initial is None:
            initial = (rt.zeros(shape, dtype=wide, device=x.device),) * kinds
        starts = list(zip(*[rt.unstack(part.astype(wide)) for part in initial], strict=True))
        out, last = self._run(x.astype(wide), starts, lengths)
        return out.astype(dtype), tuple([rt.stack(part).astype(dtype) for part in zip(*last, strict=True)])


def _valid(x: rt.Tensor, lengths: Any) -> rt.Tensor:
    """Which steps of each batch entry count: bool [batch, T, 1]."""
    known = rt.int32 if isinstance(lengths, (list, tuple)) and not lengths else None  # [] alone says nothing
    if not isinstance(lengths, rt.Tensor):  # checked on the host, where they are
        lengths = rt.asarray(lengths, dtype=known, device=rt.Cpu())
    good = lengths.shape == x.shape[:1] and lengths.dtype in INTEGER
    if good and lengths.size:
        least, most = int(rt.min(lengths)), int(rt.max(lengths))
        if not 0 <= least <= most <= x.shape[1]:
            raise ValueError(
                f"lengths must be from 0 to the {x.shape[1]} steps of x, got {least if least < 0 else most}; "
                f"rt.clip(lengths, 0, {x.shape[1]})"
            )
    if not good:
        raise ValueError(
            f"lengths must be {x.shape[0]} integers, one per batch entry, got shape {lengths.shape} of {lengths.dtype}; "
            f"lengths=[{x.shape[1]}] * {x.shape[0]}"
        )
    return rt.arange(x.shape[1], device=x.device)[None, :, None] < rt.asarray(lengths, device=x.device)[:, None, None]


class Rnn(Recurrent):
    """A plain recurrent layer: h_t = f(x_t W_ih + b_ih + h_(t-1) W_hh + b_hh), f = tanh or relu.

    x is [batch, T, d_in]; the outputs are the last layer's h_t, [batch, T, hidden], or with two directions [batch, T, 2
    hidden], forward beside backward. The state is [layers x directions, batch, hidden], each layer's last h; `initial`
    (zeros) has the same shape. Layers above the first take the outputs of the one below, with dropout in training mode.

    `lengths` (a list or a tensor of integers) gives how many steps of each entry count: behind them outputs are 0, the
    state stays as it is, and the backward direction starts at the last step that counts. They are checked; where
    they are a tensor on a GPU, that waits for it.

    Half types are computed in float32 through all steps and rounded at the end.

    Errors: ValueError for shapes that do not fit.
    Source: Elman, "Finding structure in time", 1990.

    >>> rnn = RnnConfig(3, 5, num_layers=2, bidirectional=True).init(rt.Cpu())
    >>> outputs, state = rnn(rt.ones((4, 7, 3), device=rt.Cpu()), lengths=[7, 3, 1, 0])
    >>> outputs.shape, state.shape
    ((4, 7, 10), (4, 4, 5))
    """

    activation: str

    def forward(self, x: rt.Tensor, initial: rt.Tensor | None = None, *, lengths: Any = None) -> tuple[rt.Tensor, rt.Tensor]:
        out, (h,) = self._over(x, None if initial is None else (initial,), lengths, 1)
        return out, h

    def _step(self, projected: rt.Tensor, state: State, u: rt.Tensor, bias: rt.Tensor | None) -> State:
        total = projected + state[0] @ u
        return (rt.relu(total) if self.activation == "relu" else rt.tanh(total),)


class Gru(Recurrent):
    """A gated recurrent layer, whose reset gate works behind the product, as PyTorch's and cuDNN's.

        r = sigmoid(x_t W_ir + b_ir + h W_hr + b_hr),   z = sigmoid(x_t W_iz + b_iz + h W_hz + b_hz)
        n = tanh(x_t W_in + b_in + r (h W_hn + b_hn)),   h_t = (1 - z) n + z h,   where h is h_(t-1)

    Shapes, layers, directions, dropout and `lengths` are those of `Rnn`.

    Errors: ValueError for shapes that do not fit.
    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, version 1 (arXiv:1406.1078v1).

    >>> outputs, state = GruConfig(3, 5).init(rt.Cpu())(rt.ones((4, 7, 3), device=rt.Cpu()))
    >>> outputs.shape, state.shape
    ((4, 7, 5), (1, 4, 5))
    """

    def forward(self, x: rt.Tensor, initial: rt.Tensor | None = None, *, lengths: Any = None) -> tuple[rt.Tensor, rt.Tensor]:
        out, (h,) = self._over(x, None if initial is None else (initial,), lengths, 1)
        return out, h

    def _project(self, x: rt.Tensor, weights: RecurrentWeights) -> tuple[rt.Tensor, rt.Tensor, rt.Tensor | None]:
        w, u = weights.weight_ih.astype(x.dtype), weights.weight_hh.astype(x.dtype)
        if weights.bias_ih is None or weights.bias_hh is None:
            return rt.linear(x, w), u, None
        return rt.linear(x, w, weights.bias_ih.astype(x.dtype)), u, weights.bias_hh.astype(x.dtype)

    def _step(self, projected: rt.Tensor, state: State, u: rt.Tensor, bias: rt.Tensor | None) -> State:
        (h,), n = state, u.shape[0]
        gates_x, new_x = rt.split(projected, [2 * n, n], axis=-1)
        gates_h, new_h = rt.split(rt.linear(h, u, bias), [2 * n, n], axis=-1)
        r, z = rt.split(rt.sigmoid(gates_x + gates_h), [n, n], axis=-1)
        new = rt.tanh(new_x + r * new_h)
        return (new + z * (h - new),)


class Lstm(Recurrent):
    """A recurrent layer with a memory cell c beside its output h.

        i, f, o = sigmoid(x_t W_i + b_i + h W_h + b_h),   g = tanh(same form),   each of its own part of the weights
        c_t = f c_(t-1) + i g,   h_t = o tanh(c_t),   where h is h_(t-1)

    The state is (h, c), each [layers x directions, batch, hidden]; the rest is as in `Rnn`.

    Errors: ValueError for shapes that do not fit.
    Source: Hochreiter and Schmidhuber, "Long short-term memory", 1997; Gers, Schmidhuber and Cummins, "Learning to
    forget", 2000, for f.

    >>> outputs, (h, c) = LstmConfig(3, 5).init(rt.Cpu())(rt.ones((4, 7, 3), device=rt.Cpu()))
    >>> outputs.shape, h.shape, c.shape
    ((4, 7, 5), (1, 4, 5), (1, 4, 5))
    """

    def forward(
        self, x: rt.Tensor, initial: tuple[rt.Tensor, rt.Tensor] | None = None, *, lengths: Any = None
    ) -> tuple[rt.Tensor, tuple[rt.Tensor, rt.Tensor]]:
        if initial is not None and (isinstance(initial, rt.Tensor) or len(initial) != 2):
            raise ValueError("Lstm: the initial state is a pair of tensors, lstm(x, (h, c))")
        out, (h, c) = self._over(x, initial, lengths, 2)
        return out, (h, c)

    def _step(self, projected: rt.Tensor, state: State, u: rt.Tensor, bias: rt.Tensor | None) -> State:
        (h, c), n = state, u.shape[0]
        gates, g, o = rt.split(projected + h @ u, [2 * n, n, n], axis=-1)
        i, f = rt.split(rt.sigmoid(gates), [n, n], axis=-1)
        c = f * c + i * rt.tanh(g)
        return rt.sigmoid(o) * rt.tanh(c), c


class RnnConfig(Config):
    """Settings of `Rnn`: `d_in`, `d_hidden`, `num_layers` (1), `bidirectional` (False), `dropout` between layers (0),
    `bias` (True) and `activation` ("tanh" or "relu"). All parameters start from U(-k, k), k = 1/sqrt(d_hidden).

    >>> RnnConfig(3, 5, activation="relu").init(rt.Cpu()).paths()
    ['layers.0.weight_ih', 'layers.0.weight_hh', 'layers.0.bias_ih', 'layers.0.bias_hh']
    """

    d_in: int
    d_hidden: int
    num_layers: int = 1
    _: KW_ONLY
    bidirectional: bool = False
    dropout: float = 0.0
    bias: bool = True
    activation: str = "tanh"

    def init(self, device: Any = None) -> Rnn:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        self.require(self.activation in ("tanh", "relu"), "activation", "'tanh' or 'relu'")
        return Rnn(**_parts(self, 1, device), activation=self.activation)


class GruConfig(Config):
    """Settings of `Gru`: those of `RnnConfig` without `activation`.

    >>> GruConfig(3, 5).init(rt.Cpu()).layers[0].weight_ih.shape
    (3, 15)
    """

    d_in: int
    d_hidden: int
    num_layers: int = 1
    _: KW_ONLY
    bidirectional: bool = False
    dropout: float = 0.0
    bias: bool = True

    def init(self, device: Any = None) -> Gru:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        return Gru(**_parts(self, 3, device))


class LstmConfig(Config):
    """Settings of `Lstm`: those of `RnnConfig` without `activation`.

    >>> LstmConfig(3, 5).init(rt.Cpu()).layers[0].weight_hh.shape
    (5, 20)
    """

    d_in: int
    d_hidden: int
    num_layers: int = 1
    _: KW_ONLY
    bidirectional: bool = False
    dropout: float = 0.0
    bias: bool = True

    def init(self, device: Any = None) -> Lstm:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        return Lstm(**_parts(self, 4, device))


def _parts(config: Any, gates: int, device: Any) -> dict[str, Any]:
    """The fields that all recurrent layers have, made from checked settings."""
    config.require_count("d_in", "d_hidden", "num_layers")
    config.require_within("dropout", 1.0, zero=True)
    config.require_bools()
    make, n = Creation(device), config.d_hidden
    count, bound = 1 + config.bidirectional, 1 / math.sqrt(n)

    def param(*shape: int) -> Param:
        return make.param(Uniform(-bound, bound), shape)

    layers = []
    for i in range(config.num_layers * count):
        d_in = config.d_in if i < count else count * n
        biases = [param(gates * n) if config.bias else None for _ in range(2)]
        layers.append(RecurrentWeights(param(d_in, gates * n), param(n, gates * n), *biases))
    settings = {"bidirectional": config.bidirectional, "dropout": float(config.dropout), "training": make.training}
    return {"layers": layers, **settings}
