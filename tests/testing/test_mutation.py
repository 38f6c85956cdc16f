"""The checker is tested by mutants of rules: of our own, and a sample of those of all operations."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff.testing import MutationReport, check_gradients, mutants_of, mutated, run_mutants
from ruda_autodiff.testing.source import definition, variants
from ruda_tensor.operation import Composite, Primitive, Variadic, apply, call

from .mutation_report import main, rows

_poly = Primitive("poly", lambda xp, x, y: x * x * y + y, dx=lambda g, x, y: g * (2.0 * x * y), dy=lambda g, x: g * (x * x + 1.0))
_norm = Primitive(
    "centre", lambda xp, x, *, axis: x - x.mean(axis=axis, keepdims=True),
    dx=lambda g, axis: g - rt.mean(g, axis=axis, keepdims=True),
)  # fmt: skip
_swish = Composite(
    "swish", lambda x: x / (1.0 + rt.exp(-x)), lambda xp, x: (x / (1.0 + xp.exp(-x)), 1.0 / (1.0 + xp.exp(-x))),
    lambda xp, g, x, s, *, needs: (g * (s + x * s * (1.0 - s)),), keeps="x",
)  # fmt: skip
_total = Variadic(
    "total", lambda xp, *arrays: sum(a.sum() for a in arrays),
    rule=lambda i, g, shapes, static, inputs: rt.broadcast_to(g, shapes[i]),
)  # fmt: skip


class Row:
    order = 1

    def __init__(self, name, call, *shapes):
        self.name, self.call, self.shapes = name, call, shapes

    def make(self, rng):
        return tuple(rng.standard_normal(shape) for shape in self.shapes)

    def __str__(self):
        return self.name


OWN = [
    Row("poly", lambda x, y: apply(_poly, (x, y)), (3, 4), (4,)),
    Row("centre", lambda x: apply(_norm, (x,), {"axis": 0}), (3, 4)),
    Row("swish", lambda x: call(_swish, (x,)), (3, 4)),
    Row("total", lambda x, y: apply(_total, (x, y)) ** 2, (3,), (2, 2)),
]


def test_every_mutant_of_our_own_rules_is_caught():
    report = run_mutants(OWN, only=lambda m: m.op in (_poly, _norm, _swish, _total))
    assert not report.survived
    assert len(report.killed) >= 45
    # flipping or shifting a constant gradient, and a broadcast that x has no part in, change nothing
    assert all(name.startswith(("total", "poly dx: broadcast")) for name, _ in report.unseen), report.unseen


def kinds(op):
    return {m.kind for m in mutants_of(op)}


def test_the_kinds_of_mutants():
    assert {"scale 1.01", "sign", "shift", "flip", "broadcast not summed", "broadcast averaged"} <= kinds(_poly)
    assert {
        "swapped with dy",
        "`g * (2.0 * x * y)` became `g`", "`g * (2.0 * x * y)` became `2.0 * x * y`", "`2.0 * x * y` became `2.0 * x`",
        "`2.0 * x` became `x`", "`x * x + 1.0` became `x * x`", "`x * x + 1.0` became `1.0`",
    } <= kinds(_poly)  # fmt: skip
    assert {"axis", "`rt.mean(g, axis=axis, keepdims=True)` became `g`"} <= kinds(_norm)
    assert {"`1.0 - s` became `1.0`", "`1.0 - s` became `-s`", "`s + x * s * (1.0 - s)` became `s`"} <= kinds(_swish)
    assert {"neighbour's", "scale 1.01"} <= kinds(_total)
    with pytest.raises(TypeError, match="Primitive"):
        mutants_of(rt.exp)


def test_rules_on_one_line_are_told_apart():
    pair = Primitive("pair", lambda xp, x, y: x + 2.0 * y, dx=lambda g: g * 1.0, dy=lambda g: g * 2.0)
    assert [what for what, _ in variants(pair.rules["y"])] == ["`g * 2.0` became `g`", "`g * 2.0` became `2.0`"]
    node = definition(pair.rules["x"])
    assert node is not None and node.col_offset != definition(pair.rules["y"]).col_offset


def _helper(g, x):
    return g * x + g


def _looping(g):
    n = 3
    while n > 0:
        n = n - 1
        g = g * 2.0
    return g


def test_helpers_are_varied_and_loops_left_alone():
    found = dict(variants(lambda g, x: _helper(g, x)))
    assert set(found) == {
        f"`{old}` became `{new}` in _helper"
        for old, new in (("g * x + g", "g * x"), ("g * x + g", "g"), ("g * x", "g"), ("g * x", "x"))
    }
    assert found["`g * x` became `x` in _helper"](2.0, 5.0) == 7.0
    assert not list(variants(_looping))
    assert not list(variants(np.exp)) and not list(variants(eval("lambda g: g * 2.0")))


def test_rules_are_restored_whatever_happens():
    x = rt.tensor([0.3, 0.7], dtype=rt.float64, device=rt.Cpu())
    f = lambda x: apply(_poly, (x, x))
    rules, plans = dict(_poly.rules), dict(_poly.plans)
    for mutant in mutants_of(_poly):
        with pytest.raises(RuntimeError, match="inside"), mutated(mutant):
            raise RuntimeError("inside")
        assert _poly.rules == rules
    check_gradients(f, x)
    assert set(plans) <= set(_poly.plans)


def test_a_checker_that_sees_nothing_is_reported(monkeypatch):
    from ruda_autodiff.testing import mutation_run

    monkeypatch.setattr(mutation_run, "check", lambda *a: None)
    report = run_mutants(OWN[:1], only=lambda m: m.kind == "sign")
    assert report.survived == ["poly dx: sign", "poly dy: sign"] and not report.killed
    assert "SURVIVED poly dx: sign" in str(report)


def test_mutants_without_effect_are_explained():
    flat = Primitive("flat", lambda xp, x: xp.floor(x), dx=lambda g: g * 0.0)
    report = run_mutants([Row("flat", lambda x: apply(flat, (x,)), (3,))], only=lambda m: m.kind == "scale 1.01")
    assert report.unseen == [("flat dx: scale 1.01", "its gradient is zero, or never asked for, on every row")]
    one = Row("poly", lambda x, y: apply(_poly, (x, y)), (1,), (1,))
    report = run_mutants([one], only=lambda m: m.kind == "shift")
    assert {reason for _, reason in report.unseen} == {"the same gradient on every row"}


def test_broadcasting_that_no_row_shows_is_made():
    row = Row("poly", lambda x, y: apply(_poly, (x, y)), (3, 4), (3, 4))
    report = run_mutants([row], only=lambda m: m.kind.startswith("broadcast"))
    assert len(report.killed) == 4 and not report.unseen
    square = Row("clash", lambda x, y: rt.linear(x, y), (3, 3), (3, 3))
    report = run_mutants([square], only=lambda m: m.kind.startswith("broadcast") and m.op.name == "linear")
    assert not report.killed
    assert {reason for _, reason in report.unseen} <= {"its inputs do not broadcast", "the same gradient on every row"}


def test_a_rule_that_cannot_run_is_counted_apart():
    clash = Primitive("clash", lambda xp, x, y: x @ y, dx=lambda g, y: g @ y.mT, dy=lambda g, x: x.mT @ g)
    row = Row("clash", lambda x, y: apply(clash, (x, y)), (2, 3), (3, 4))
    report = run_mutants([row], only=lambda m: m.kind.startswith("swapped"))
    assert report.crashed == ["clash dx: swapped with dy"] and report.total == 1
    assert report.counts_by_kind() == {"swapped": 1}


def test_a_sample_of_the_mutants_of_all_operations_is_caught():
    report = run_mutants(rows(), sample=150, seed=1)
    assert not report.survived, str(report)
    assert len(report.killed) > 100


def test_the_report_as_a_script(capsys):
    assert isinstance(main(["--sample", "5", "--unseen"]), MutationReport)
    assert "mutants of the rules of" in capsys.readouterr().out
