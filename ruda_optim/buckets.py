"""Buckets: small parameters of one dtype updated together, as one flat array with one flat state.

A rule makes a dozen passes over a parameter, and each costs a call (a launch, on a GPU) however small the parameter is. The
parameters of a bucket live as views in one array from step to step, and so do their states: all that is copied
is the gradients. Elementwise rules cannot tell the difference, so the bits are those of one parameter at a time.
"""
from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from ruda_nn import Param
from ruda_tensor.dtypes import FLOAT32, HALF

# A CPU pays for the copy of the gradients: at twice this size it costs as much as the calls that are saved (measured: 16
# parameters of 8 Ki numbers take 420 us against 499 with Adam, of 16 Ki 740 against 744 and with Sgd 336 against 265). On a
# GPU a pass is a launch of some 10 us from Python, which is what it takes to read and write 4 Mi numbers at 5 TB/s.
SMALL = {"cpu": 8 * 1024, "cuda": 4 * 1024 * 1024}
# A view that somebody keeps of one parameter keeps the bucket's memory, so buckets end where nothing is gained any more.
LARGEST = {"cpu": 1024 * 1024, "cuda": 16 * 1024 * 1024}

Member = tuple[int, Param, Any]  # number, parameter, gradient


class _Holder:
    __slots__ = ("_data",)


def _references(p: Any) -> int:
    return sys.getrefcount(p._data)


def _listed(views: list, i: int) -> int:
    return sys.getrefcount(views[i])


def _named(state: dict[str, Any], name: str) -> int:
    return sys.getrefcount(state[name])


def _measure() -> tuple[int, int, int]:
    holder = _Holder()
    holder._data = object()
    return _references(holder), _listed([object()], 0), _named({"x": object()}, "x")


# What sys.getrefcount says, on this interpreter, of an array that only its parameter holds, only a list, or only a dict.
_ALONE, _ONLY_LISTED, _ONLY_NAMED = _measure()


def own_array(p: Param) -> Any:
    """Return the parameter's array if nobody else can see it, else a copy: what a tape or a valid() model holds stays.

    Every view of an array, NumPy's, CuPy's or over DLPack, holds a reference to it, and so is seen here.
    """
    return p._data if is_alone(p) else p._data.copy(order="C")


def is_alone(p: Param) -> bool:
    """Return whether only the parameter sees its array, which is whole and in row-major order."""
    return _references(p) <= _ALONE and p._data.flags.c_contiguous and getattr(p._data, "base", None) is None


def own_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state after putting a copy in the place of each array that somebody else can see: a record may hold it."""
    for name in state:
        if isinstance(state[name], dict):
            own_state(state[name])
        elif hasattr(state[name], "shape") and _named(state, name) > _ONLY_NAMED:
            state[name] = state[name].copy()
    return state


def states_are_alone(state: dict[str, Any]) -> bool:
    """Return whether nobody else sees an array of the state."""
    for name in state:
        if isinstance(state[name], dict):
            if not states_are_alone(state[name]):
                return False
        elif hasattr(state[name], "shape") and _named(state, name) > _ONLY_NAMED:
            return False
    return True


def own_arrays(state: dict[str, Any], names: Iterable[str]) -> list[Any]:
    """Return these arrays of a state, each that somebody else can see replaced by a copy before."""
    found = []
    for name in names:
        if _named(state, name) > _ONLY_NAMED:
            state[name] = state[name].copy()
        found.append(state[name])
    return found


class Bucket:
    """Parameters `ids` in `_data`, one flat array, with the flat arrays of their states in `state`.

    `views[i]` is the part of `_data` that belongs to member i, and what its parameter holds. `states[i]` is its state, of
    views and a counter of its own: members may miss gradients, and those with one counter are updated together.
    """

    def __init__(self, rule: Any, members: list[tuple[Param, dict[str, Any]]]) -> None:
        params = [p for p, _ in members]
        self.rule, self.device, self.ids = rule, params[0].device, [p.id for p in params]
        self.shapes = [p.shape for p in params]
        self.ends = [0, *accumulate(p.size for p in params)]
        xp = self.device.xp
        self._data = xp.concatenate([p._data.reshape(-1) for p in params])
        self.state = _join(xp, [state for _, state in members])
        self.states = [_cut(self.state, *self._span(i), self.shapes[i]) for i in range(len(members))]
        # Of an elementwise rule's state all but the counter is arrays.
        self._counter, self._counters = rule.counter(self.state), [rule.counter(state) for state in self.states]
        for mine, (_, state) in zip(self._counters, members):
            mine["time"] = rule.counter(state)["time"]
        self._look()

    def _span(self, i: int) -> tuple[int, int]:
        return self.ends[i], self.ends[i + 1]

    def _look(self) -> None:
        self.views = [self._data[slice(*self._span(i))].reshape(shape) for i, shape in enumerate(self.shapes)]

    def fits(self, i: int, p: Param) -> bool:
        """Return whether a parameter can still be member i."""
        return p.dtype == self._data.dtype and p.shape == self.shapes[i] and p.device == self.device

    def hold(self, members: list[Member]) -> None:
        """Make the memory ours alone, and holding the values of these parameters.

        Somebody who sees a member's view, or a view of that (which refers to the whole array), keeps the old memory.
        """
        views = self.views
        foreign = [(i, p._data) for i, p, _ in members if p._data is not views[i]]
        seen = _references(self) > _ALONE + len(views)
        if foreign:
            seen = seen or any(p._data is not views[i] and _listed(views, i) > _ONLY_LISTED for i, p, _ in members)
        for i, p, _ in () if seen else members:
            if _references(p) > _ALONE + 1 and p._data is views[i]:
                seen = True
                break
        if seen:
            self._data = self._data.copy()
            self._look()
        for i, array in foreign:
            self.views[i][...] = array
        self._hold_state(self.state, self.states)

    def _hold_state(self, joint: dict[str, Any], states: list[dict[str, Any]]) -> None:
        """The same for the states, whose views refer to the whole arrays."""
        for name in joint:
            if isinstance(joint[name], dict):
                self._hold_state(joint[name], [state[name] for state in states])
            elif hasattr(joint[name], "shape") and _named(joint, name) > _ONLY_NAMED + len(states):
                joint[name] = joint[name].copy()
                for i, state in enumerate(states):
                    state[name] = joint[name][slice(*self._span(i))].reshape(self.shapes[i])

    def update(self, lr: float, members: list[Member], extra: tuple) -> None:
        """Update members (number, parameter, gradient) that `hold` has been asked for, in runs of equal counters."""
        for run in self._runs(members):
            first, last = run[0][0], run[-1][0]
            p, state, counter = self._data, self.state, self._counter
            if len(run) < len(self.ids):
                p, state = p[self.ends[first] : self.ends[last + 1]], _cut(state, self.ends[first], self.ends[last + 1])
                counter = self.rule.counter(state)
            counter["time"] = self._counters[first]["time"]
            out, _ = self.rule.step(self.device.xp, lr, p, self._gather([g._data for _, _, g in run]), state, *extra)
            if out is not p:
                p[...] = out
            time = counter["time"]
            for i, _, _ in run:
                self._counters[i]["time"] = time

    def _runs(self, members: list[Member]) -> list[list[Member]]:
        """Cut members, in order, where one is missing or has been updated more or less often than the one before."""
        runs, next_, time = [], -1, -1
        for member in members:
            i, now = member[0], self._counters[member[0]]["time"]
            if i != next_ or now != time:
                runs.append([])
            runs[-1].append(member)
            next_, time = i + 1, now
        return runs

    def _gather(self, arrays: list[Any]) -> Any:
        if len(arrays) == 1:
            return arrays[0].reshape(-1)
        dtype = arrays[0].dtype
        if any(a.dtype != dtype for a in arrays):
            wide = FLOAT32 if self._data.dtype in HALF else self._data.dtype
            arrays = [a.astype(wide, copy=False) for a in arrays]
        return self.device.xp.concatenate([a.reshape(-1) for a in arrays])

    def leave(self) -> list[dict[str, Any]]:
        """Return the members' states in memory of their own."""
        return [_copied(state) for state in self.states]


def is_small(p: Param) -> bool:
    """Return whether a parameter is updated faster in a bucket than by itself."""
    return p.size <= SMALL[p.device.kind]


def fill(candidates: dict[Any, list[tuple[Param, dict[str, Any]]]], rules: list[Any]) -> list[Bucket]:
    """Return buckets of parameters that agree in (group, ...), where there are at least two; none is over the limit."""
    made = []
    for key, members in candidates.items():
        piece, size = [], 0
        for member in [*members, None]:
            if member is None or (piece and size + member[0].size > LARGEST[member[0].device.kind]):
                if len(piece) > 1:
                    made.append(Bucket(rules[key[0]], piece))
                piece, size = [], 0
            if member is not None:
                piece.append(member)
                size += member[0].size
    return made


def kinds(state: dict[str, Any]) -> tuple:
    """Return names and dtypes of a state's arrays: states that agree in them can be joined."""
    return tuple((k, kinds(v)) if isinstance(v, dict) else (k, getattr(v, "dtype", None)) for k, v in state.items())


def _join(xp: Any, states: list[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for name, value in states[0].items():
        parts = [state[name] for state in states]
        if isinstance(value, dict):
            out[name] = _join(xp, parts)
        else:
            out[name] = xp.concatenate([a.reshape(-1) for a in parts]) if hasattr(value, "shape") else value
    return out


def _cut(state: dict[str, Any], start: int, end: int, shape: tuple[int, ...] | None = None) -> dict[str, Any]:
    out = {}
    for name, value in state.items():
        if isinstance(value, dict):
            out[name] = _cut(value, start, end, shape)
        elif hasattr(value, "shape"):
            out[name] = value[start:end] if shape is None else value[start:end].reshape(shape)
        else:
            out[name] = value
    return out


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, dict) else v.copy() if hasattr(v, "shape") else v for k, v in state.items()}
