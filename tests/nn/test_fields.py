"""A module's or configuration's fields: how they are given, checked where it is made, compared and never changed."""
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import pytest

import ruda_nn as nn
import ruda_tensor as rt
from ruda_nn import Config, Linear, LinearConfig, Module, Param, Sequential

T = TypeVar("T")


class Scale(Module):
    factor: Param

    def forward(self, x):
        return x * self.factor


class Settings(Config):
    """One field of each kind; one with a default comes before one without, as a base class may have it."""

    size: int
    names: list[str] = dataclasses.field(default_factory=list)
    rate: float = 0.5
    hidden: int = dataclasses.field(default=1, repr=False, compare=False)
    loud: bool = dataclasses.field(default=False, kw_only=True)


class Wider(Settings):
    width: int


def test_a_tracked_tensor_is_no_parameter():
    with pytest.raises(TypeError, match="no optimizer would find.*Param"):
        Scale(factor=rt.ones(2, device=rt.Cpu()).require_grad())
    assert Scale(factor=Param(rt.ones(2, device=rt.Cpu()))).num_params() == 2


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Linear(2, 1), r"Linear: weight is a Param, got int 2.*LinearConfig\(2, 1\)\.init\(device\)"),
        (lambda: nn.Embedding(10, 3), r"EmbeddingConfig\(10, 3\)\.init\(device\)"),
        (lambda: nn.Conv2d(3, 4, 5), r"Conv2d: padding, dilation, groups are missing; .*Conv2dConfig\(3, 4, 5\)\.init\(device\)"),
        (lambda: nn.Dropout(0.5), r"training is missing.*DropoutConfig\(0\.5\)\.init"),
        (lambda: nn.MultiHeadAttention(d_model=8), r"there is no 'd_model'.*MultiHeadAttentionConfig\(d_model=8\)\.init"),
        (lambda: nn.BatchNorm(rt.ones(3)), r"BatchNormConfig\(\.\.\.\)\.init"),
        (lambda: nn.MseLoss(), r"reduction is missing.*MseLossConfig\(\)\.init"),
        (lambda: nn.Softmax(dim=1), r"Softmax: there is no 'dim'; it takes Softmax\(axis\)$"),
        (lambda: LinearConfig(d_in=2, dout=1), r"LinearConfig: there is no 'dout'; .*d_in, d_out, bias, initializer\)$"),
        (lambda: LinearConfig(2), r"LinearConfig: d_out is missing"),
        (lambda: LinearConfig(2, 1, True, None, 7), r"5 values were given by position, and there are 4"),
        (
            lambda: nn.TransformerEncoderConfig(128, 4, 4),
            r"3 values were given by position, and there are 2; give the others by name: "
            r"TransformerEncoderConfig\(128, 4, d_ff=\.\.\.\); it takes TransformerEncoderConfig\(d_model, n_heads, \*, d_ff, ",
        ),
        (lambda: nn.RotaryConfig(64, 2048), r"2 values .* there are 1; .* by name: RotaryConfig\(64, theta=\.\.\.\)"),
        (lambda: LinearConfig(2, 1, d_in=2), r"'d_in' is given twice, by position and by name"),
        (lambda: Settings(1, [], 0.5, 1, True), r"5 values were given by position, and there are 4"),
        (lambda: LinearConfig(2, 1)(rt.ones(2)), r"LinearConfig holds settings.*LinearConfig\(\.\.\.\)\.init\(device\)"),
        (lambda: nn.Normal()(rt.ones(2)), r"Normal holds settings, and is not called$"),
        (lambda: Sequential(LinearConfig(2, 1)), r"cannot be called; give LinearConfig\(\.\.\.\)\.init"),
        (lambda: LinearConfig(2, 1).with_bias(True, False), r"LinearConfig\.with_bias\(\) takes 1"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused_with_what_is_meant(make, line):
    with pytest.raises(TypeError, match=line):
        make()


def test_fields_are_those_of_a_dataclass():
    s = Settings(3, loud=True)
    assert (s.size, s.names, s.rate, s.hidden, s.loud) == (3, [], 0.5, 1, True) and s.names is not Settings(3).names
    assert repr(s) == "Settings(size=3, names=[], rate=0.5, loud=True)"
    assert s == Settings(3, [], hidden=9, loud=True) and s != Settings(3) and s != LinearConfig(3, 1)
    assert dataclasses.is_dataclass(s) and dataclasses.replace(s, rate=1.0).rate == 1.0 == s.with_rate(1.0).rate
    assert dataclasses.asdict(s) == {"size": 3, "names": [], "rate": 0.5, "hidden": 1, "loud": True}
    w = Wider(3, width=4)
    assert (w.size, w.width, w.rate) == (3, 4, 0.5) and w != s
    linear = LinearConfig(2, 1)
    assert hash(linear) == hash(LinearConfig(2, 1)) and {linear: 1}[LinearConfig(2, 1)] == 1
    assert pickle.loads(pickle.dumps(linear)) == linear == copy.deepcopy(linear) == copy.copy(linear)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"LinearConfig\.bias.*config\.with_bias\(value\)"):
        linear.bias = False
    with pytest.raises(dataclasses.FrozenInstanceError):
        del linear.bias
    assert linear == LinearConfig(2, 1)


def test_signatures_show_the_fields():
    assert str(inspect.signature(LinearConfig)).startswith("(d_in: 'int', d_out: 'int', bias: 'bool' = True")
    assert list(inspect.signature(Scale).parameters) == ["factor"]
    assert list(inspect.signature(Settings).parameters) == ["size", "names", "rate", "hidden", "loud"]
    assert list(inspect.signature(Sequential).parameters) == ["given", "layers"]
    assert list(inspect.signature(Scale(factor=Param(rt.ones(1)))).parameters) in (["args", "kwargs"], ["x"])


def test_an_own_init_is_kept_and_may_hand_its_fields_on():
    class Pair(Module):
        a: Linear
        b: Linear

        def __init__(self, width):
            super().__init__(LinearConfig(width, width).init(rt.Cpu()), b=LinearConfig(width, 1).init(rt.Cpu()))

    class Named(Pair):
        pass

    class More(Pair):
        c: Param

    class Stack(Sequential):
        pass

    assert Pair(3).paths() == Named(3).paths() == ["a.weight", "a.bias", "b.weight", "b.bias"]
    pair = Pair(2)
    assert More(pair.a, pair.b, Param(rt.ones(1, device=rt.Cpu()))).paths()[-1] == "c"
    assert len(Stack(rt.relu, rt.tanh)) == 2


CONFIGS = [
    nn.AvgPool1dConfig(2), nn.AvgPool2dConfig(2), nn.MaxPool1dConfig(2), nn.MaxPool2dConfig(2), nn.BatchNormConfig(2),
    nn.BinaryCrossEntropyLossConfig(), nn.Conv1dConfig(1, 1, 2), nn.Conv2dConfig(1, 1, 2), nn.ConvTranspose2dConfig(1, 1, 2),
    nn.CrossEntropyLossConfig(), nn.CtcLossConfig(), nn.GroupNormConfig(1, 1), nn.GruConfig(1, 1), nn.InstanceNormConfig(1),
    nn.KlDivLossConfig(), nn.LayerNormConfig(1), nn.LinearConfig(1, 1), nn.LstmConfig(1, 1), nn.MultiHeadAttentionConfig(2, 1),
    nn.PoissonNllLossConfig(), nn.RmsNormConfig(1), nn.RnnConfig(1, 1), nn.SwiGluConfig(1, 1),
    nn.TransformerDecoderConfig(2, 1, n_layers=1), nn.TransformerDecoderLayerConfig(2, 1),
    nn.TransformerEncoderConfig(2, 1, n_layers=1), nn.TransformerEncoderLayerConfig(2, 1),
]  # fmt: skip


def test_every_configuration_with_a_switch_is_in_the_list():
    found = {
        c for c in vars(nn).values()
        if isinstance(c, type) and issubclass(c, Config) and hasattr(c, "init") and c is not Config
        and any(f.type == "bool" for f in dataclasses.fields(c))
    }  # fmt: skip
    assert found == {type(c) for c in CONFIGS}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_a_switch_is_true_or_false(config):
    config.init(rt.Cpu())
    for f in dataclasses.fields(config):
        if f.type == "bool":
            for wrong in (0, 1.0, "False", None, (), np.ones(2)):
                with pytest.raises(ValueError, match=rf"{type(config).__name__}: {f.name}=.*give True or False"):
                    dataclasses.replace(config, **{f.name: wrong}).init(rt.Cpu())


def test_switches_of_initializers_are_checked_where_they_fill():
    with pytest.raises(ValueError, match="fan_out_only='no' is not allowed; give True or False"):
        nn.KaimingNormal(fan_out_only="no").fill((2, 2), 2, 2, rt.Cpu())


POSITIONAL = {
    "TransformerEncoderConfig": 2, "TransformerEncoderLayerConfig": 2, "TransformerDecoderConfig": 2,
    "TransformerDecoderLayerConfig": 2, "MultiHeadAttentionConfig": 2, "RnnConfig": 3, "GruConfig": 3, "LstmConfig": 3,
    "Conv1dConfig": 5, "Conv2dConfig": 5, "ConvTranspose2dConfig": 5, "MaxPool1dConfig": 3, "MaxPool2dConfig": 3,
    "AvgPool1dConfig": 3, "AvgPool2dConfig": 3, "RotaryConfig": 1,
}  # fmt: skip


def test_a_setting_that_may_be_taken_for_another_goes_by_name():
    """A number of layers in the place of a hidden width, or a length in that of theta, would make a model without a word."""
    for name, count in POSITIONAL.items():
        fields = dataclasses.fields(getattr(nn, name))
        assert [f.kw_only for f in fields] == [i >= count for i in range(len(fields))], name


def test_a_field_hides_no_method():
    with pytest.raises(TypeError, match=r"Net\.params: a field of this name would hide the method Module\.params.*own_params"):

        class Net(Module):
            params: list[Param]

    with pytest.raises(TypeError, match=r"Odd\.describe: .*Config\.describe"):

        class Odd(Config):
            describe: bool = True

    class Wrap(Module):
        forward: Callable[..., rt.Tensor]

    assert Wrap(rt.relu)(rt.tensor([-1.0, 2.0], device=rt.Cpu())).tolist() == [0.0, 2.0]


def test_modules_may_be_generic_or_abstract():
    class Box(Module, Generic[T]):
        inner: T

        def forward(self, x):
            return self.inner(x)  # type: ignore[operator]

    class Plan(Module, abc.ABC):
        width: int

        @abc.abstractmethod
        def forward(self, x): ...

    class Real(Plan):
        def forward(self, x):
            return x * self.width

    x = rt.tensor([2.0], device=rt.Cpu())
    assert Box[Real](Real(3))(x).tolist() == Real(width=3)(x).tolist() == [6.0]
    with pytest.raises(TypeError, match="abstract"):
        Plan(3)  # pyright: ignore[reportAbstractUsage]


class Measured(Config):
    count: int = 2
    rate: float = 0.5
    share: float = 0.5
    exact: bool = False
    other: bool = True

    def check(self):
        self.require_count("count", low=2)
        self.require_number("rate", open=True)
        self.require_within("share", 1.0)
        self.require_bools()


@pytest.mark.parametrize(
    ("field", "good", "bad", "allowed"),
    [
        ("count", [2, np.int64(3)], [1, 2.0, True, "2", None], "an integer >= 2"),
        ("rate", [1e-9, 3, np.float32(1)], [0.0, -1, np.inf, np.nan, 10**400, True, "1"], "a finite number > 0"),
        ("share", [1, 1e-9], [0.0, 1.001, np.nan, True], r"a number in \(0, 1\]"),
        ("exact", [True], [0, None, "False", np.bool_(True)], "True or False"),
        ("other", [False], [1], "True or False"),
    ],
)
def test_settings_are_refused_by_field_value_and_range(field, good, bad, allowed):
    for value in good:
        Measured(**{field: value}).check()
    for value in bad:
        with pytest.raises(ValueError, match=rf"^Measured: {field}=.* is not allowed; give {allowed}$"):
            Measured(**{field: value}).check()
    if field == "exact":
        Measured(exact=None).require_bools("other")  # type: ignore[arg-type]
