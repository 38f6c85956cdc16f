"""What is done with a checked plan before it runs: leaving out, fusing, and saying when a value has had its last use."""
from __future__ import annotations

from collections import Counter
from typing import Any

from .checks import Step


def pruned(steps: list[Step], outputs: tuple[str, ...]) -> list[Step]:
    """The steps that the outputs need, in their order."""
    needed = set(outputs)
    for step in reversed(steps):
        if step.output in needed:
            needed.update(step.inputs)
    return [step for step in steps if step.output in needed]


def fused(steps: list[Step], outputs: tuple[str, ...]) -> list[Step]:
    """The steps with mul(silu(x), y) as silu_mul(x, y), where nobody else sees the silu.

    silu_mul rounds silu(x) to the dtype before the product, so the numbers stay the same. The silu must be on the left:
    that is where silu_mul has it.
    """
    uses = Counter(name for step in steps for name in step.inputs)
    gates = {s.output: s.inputs[0] for s in steps if s.kind == "silu" and s.output not in outputs and uses[s.output] == 1}
    found, gone = [], set()
    for step in steps:
        left = step.inputs[0]
        if step.kind == "mul" and left in gates:
            gone.add(left)
            step = step._replace(kind="silu_mul", inputs=(gates[left], step.inputs[1]))
        found.append(step)
    return [step for step in found if step.output not in gone]


def last_uses(steps: list[Step], outputs: tuple[str, ...]) -> list[tuple[str, ...]]:
    """For each step the results that nobody needs after it: neither inputs nor outputs, but perhaps its own."""
    last = {step.output: i for i, step in enumerate(steps)}
    for i, step in enumerate(steps):
        last.update({name: i for name in step.inputs if name in last})
    dead: list[list[str]] = [[] for _ in steps]
    for name, i in last.items():
        if name not in outputs:
            dead[i].append(name)
    return [tuple(names) for names in dead]


def workspace(steps: list[Step], outputs: tuple[str, ...], dead: list[tuple[str, ...]] | None) -> int:
    """Bytes of one buffer per result or, where `dead` says what is free, with free buffers of one shape and dtype reused.

    Outputs have buffers of their own, and the result of a step never takes the buffer of what the step reads.
    """
    total = 0
    made: dict[str, Any] = {}
    free: Counter[Any] = Counter()
    for i, step in enumerate(steps):
        like = made[step.output] = step.shape, step.dtype
        if step.output not in outputs and free[like]:
            free[like] -= 1
        else:
            total += step.nbytes
        if dead is not None:
            free.update(made[name] for name in dead[i])
    return total
