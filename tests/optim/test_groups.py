"""Parameter groups: who matches, what changes, and what a record keeps of them."""
from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig, Module, Param
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsParams,
    Optimizer,
    ParamGroup,
    RecordMismatch,
    SgdConfig,
)  # fmt: skip
from ruda_record import BinBytesRecorder, RecorderError

from ._helpers import REFERENCES, Pair, give, param


class Layer(Module):
    weight: Param
    bias: Param


class Net(Module):
    layers: list[Layer]
    scale: Param


def net(device=None, dtype=rt.float64):
    layers = [Layer(param([[1.0, 2.0]], dtype, device), param([3.0, 4.0], dtype, device)) for _ in range(2)]
    return Net(layers, param(5.0, dtype, device))


def zeros(model):
    return GradientsParams({p: rt.zeros(p.shape, dtype=p.dtype, device=p.device) for p in model.params()})


def decayed(model, groups, lr=0.1):
    """The paths whose parameters a zero gradient moves."""
    before = {path: p.numpy() for path, p in model.named_params()}
    new = AdamWConfig(weight_decay=0.5).init(groups=groups).step(lr, model, zeros(model))
    return {path for path, p in new.named_params() if p.numpy().tobytes() != before[path].tobytes()}


def is_first(path, p):
    return path.startswith("layers.0")


ALL = {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "scale"}
BIASES = {path for path in ALL if "bias" in path}


@pytest.mark.parametrize(
    ("make", "exempt"),
    [
        (lambda m: ParamGroup.vectors(weight_decay=0.0), BIASES | {"scale"}),
        (lambda m: ParamGroup("*bias", weight_decay=0.0), BIASES),
        (lambda m: ParamGroup("layers.1.*", weight_decay=0.0), {"layers.1.weight", "layers.1.bias"}),
        (lambda m: ParamGroup("layers.[0].bias", weight_decay=0.0), {"layers.0.bias"}),
        (lambda m: ParamGroup("scale", weight_decay=0.0), {"scale"}),
        (lambda m: ParamGroup([m.scale, m.layers[0].bias.id], weight_decay=0.0), {"scale", "layers.0.bias"}),
        (lambda m: ParamGroup((p for p in [m.scale]), weight_decay=0.0), {"scale"}),
        (lambda m: ParamGroup(m.scale, weight_decay=0.0), {"scale"}),
        (lambda m: ParamGroup(is_first, weight_decay=0.0), {"layers.0.weight", "layers.0.bias"}),
        (lambda m: ParamGroup(lambda path, p: p.shape == (2,), weight_decay=0.0), BIASES),
        (lambda m: ParamGroup("*", weight_decay=0.0), ALL),
        (lambda m: ParamGroup("*bias", lr_scale=0.0), BIASES),
    ],
)
def test_who_is_in_a_group(make, exempt, device):
    model = net(device)
    assert decayed(model, [make(model)]) == ALL - exempt


def test_the_first_group_that_matches_takes_a_parameter_and_the_rest_go_by_the_configuration():
    groups = [ParamGroup("layers.0.*", weight_decay=0.25), ParamGroup("*.weight", weight_decay=0.0)]
    model = net()
    new = AdamWConfig(weight_decay=0.5).init(groups=groups).step(1.0, model, zeros(model))
    assert new.layers[0].weight.tolist() == [[0.75, 1.5]] and new.layers[0].bias.tolist() == [2.25, 3.0]
    assert new.layers[1].weight.tolist() == [[1.0, 2.0]] and new.layers[1].bias.tolist() == [1.5, 2.0]
    assert new.scale.item() == 2.5


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("name", [*REFERENCES, "MuonConfig"])
def test_every_rule_takes_groups_and_each_group_is_an_optimizer_of_its_own(name, masters, device):
    """Two groups in one optimizer give the bits of two optimizers."""
    config, rng = getattr(ro, name)(), np.random.default_rng(0)
    other = {"SgdConfig": {"momentum": 0.5}, "AdanConfig": {"no_prox": True}, "AdamConfig": {"amsgrad": True}}.get(name, {})
    changed = {"weight_decay": 0.3, **other}

    def made(config, groups=()):
        return Fp32MasterOptimizer(config.build()).init(groups=groups) if masters else config.init(groups=groups)

    dtype = rt.bfloat16 if masters else rt.float32
    model = Pair(param(np.ones((3, 2)), dtype, device), param(np.ones((2, 3)), dtype, device))
    optimizer = made(config, [ParamGroup("b", lr_scale=0.5, **changed)])
    apart = model.clone()
    first, second = made(config), made(type(config)(**changed))
    for _ in range(4):
        a, b = rng.standard_normal((2, 3, 2)).astype(np.float32)
        model = optimizer.step(0.1, model, give((model.a, a), (model.b, b.T)))
        apart = first.step(0.1, apart, give((apart.a, a)))
        apart = second.step(0.05, apart, give((apart.b, b.T)))
    for ours, theirs in zip(model.params(), apart.params()):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_groups_equal_those_of_torch():
    torch = pytest.importorskip("torch")
    rng, model = np.random.default_rng(0), net()
    ours = [ParamGroup.vectors(weight_decay=0.0), ParamGroup("layers.1.*", lr_scale=3.0)]
    optimizer = AdamWConfig(weight_decay=0.1).init(groups=ours)
    leaves = {path: torch.tensor(p.numpy(), requires_grad=True) for path, p in model.named_params()}
    vectors = [leaf for leaf in leaves.values() if leaf.ndim < 2]
    groups = [
        {"params": vectors, "weight_decay": 0.0},
        {"params": [leaves["layers.1.weight"]], "lr": 3e-2},
        {"params": [leaves["layers.0.weight"]]},
    ]
    theirs = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    for _ in range(5):
        grads = {path: rng.standard_normal(p.shape) for path, p in model.named_params()}
        for path, leaf in leaves.items():
            leaf.grad = torch.tensor(grads[path])
        theirs.step()
        model = optimizer.step(1e-2, model, give(*[(p, grads[path]) for path, p in model.named_params()]))
    for path, p in model.named_params():
        np.testing.assert_allclose(p.numpy(), leaves[path].detach().numpy(), rtol=1e-12)


def test_a_tied_parameter_goes_by_its_first_path():
    w = param([1.0], rt.float64)
    new = AdamWConfig(weight_decay=0.5).init(groups=[ParamGroup("b", weight_decay=0.0)]).step(1.0, Pair(w, w), give((w, [0.0])))
    assert new.a.tolist() == [0.5]
    new = AdamWConfig(weight_decay=0.5).init(groups=[ParamGroup("a", weight_decay=0.0)]).step(1.0, new, give((new.a, [0.0])))
    assert new.b.tolist() == [0.5]


def test_a_group_is_decided_once_and_new_parameters_are_decided_when_they_come():
    asked = []

    def ask(path, p):
        asked.append(path)
        return path == "a"

    model, optimizer = Pair(param([1.0]), param([1.0])), SgdConfig().init(groups=[ParamGroup(ask, lr_scale=0.0)])
    for _ in range(3):
        model = optimizer.step(1.0, model, give((model.a, [1.0]), (model.b, [1.0])))
    assert set(asked) == {"a", "b"} and len(asked) <= 4
    turned = Pair(model.b, model.a)  # the parameters keep their groups
    turned = optimizer.step(1.0, turned, give((turned.a, [1.0]), (turned.b, [1.0])))
    assert (turned.a.item(), turned.b.item()) == (-3.0, 1.0)
    fresh = Pair(param([1.0]), turned.b)
    fresh = optimizer.step(1.0, fresh, give((fresh.a, [1.0])))
    assert fresh.a.item() == 1.0


def test_one_global_norm_for_all_groups(device):
    config = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(1.0))
    model = Pair(param([0.0], device=device), param([0.0], device=device))
    new = config.init(groups=[ParamGroup("b", lr_scale=10.0)]).step(1.0, model, give((model.a, [3.0]), (model.b, [4.0])))
    assert new.a.item() == pytest.approx(-0.6) and new.b.item() == pytest.approx(-8.0)
    for clipping in (None, GradientClippingConfig.global_norm(2.0)):
        with pytest.raises(ValueError, match="one for all groups"):
            config.init(groups=[ParamGroup("b", grad_clipping=clipping)])
    with pytest.raises(ValueError, match="one for all groups"):
        SgdConfig().init(groups=[ParamGroup("b", grad_clipping=GradientClippingConfig.global_norm(2.0))])
    apart = SgdConfig().init(groups=[ParamGroup("b", grad_clipping=GradientClippingConfig.value(1.0))])
    new = apart.step(1.0, new, give((new.a, [3.0]), (new.b, [4.0])))
    assert new.b.item() == pytest.approx(-9.0)


# refusals
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: ParamGroup(3), TypeError, r"ParamGroup\(\"\*\.bias\""),
        (lambda: ParamGroup([1, 2]), TypeError, "a pattern, a list"),
        (lambda: ParamGroup("*", lr_scale=-1.0), ValueError, "lr_scale=-1.0"),
        (lambda: ParamGroup("*", lr_scale=float("nan")), ValueError, "lr_scale=nan"),
        (lambda: ParamGroup("*", lr_scale=True), ValueError, "lr_scale=True"),
        (lambda: AdamConfig().init(groups=[ParamGroup("*", decay=0.0)]), ValueError, "'decay'.*weight_decay.*lr_scale"),
        (lambda: AdamConfig().init(groups=[ParamGroup("*", weight_decay=-1.0)]), ValueError, "weight_decay=-1.0"),
        (lambda: AdamConfig().init(groups=[{"params": []}]), TypeError, r"ParamGroup\.vectors"),
        (lambda: AdamConfig().init(groups=ParamGroup("*")), TypeError, r"list of ParamGroup.*groups=\[ParamGroup"),
        (lambda: AdamConfig().init(groups=3), TypeError, r"got int; init\(groups=\[ParamGroup"),
        (lambda: Fp32MasterOptimizer(AdamConfig().build()).init(groups=[ParamGroup("*", eps=0.0)]), ValueError, "eps=0.0"),
    ],
)
def test_wrong_groups_are_refused_at_init(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("where", ["layers.*.bais", "bias", ["no such id"], lambda path, p: False, []])
def test_a_group_that_matches_nothing_is_refused_at_the_first_step_and_nothing_changes(where):
    model, optimizer = net(), AdamWConfig().init(groups=[ParamGroup("*", lr_scale=1.0), ParamGroup(where, weight_decay=0.0)])
    said = "'layers.*.bais'" if where == "layers.*.bais" else "ParamGroup"
    with pytest.raises(ValueError, match=r"no parameter matches ParamGroup.*layers\.0\.weight") as error:
        optimizer.step(0.1, model, zeros(model))
    assert said in str(error.value) and not optimizer.states and not model.scale.is_consumed()


@pytest.mark.parametrize("config", [AdamWConfig(), AdamWConfig(fused_step=True)])
def test_a_refused_step_decides_no_groups(config):
    """A first step with another model is refused, and would have hidden that a group matches nothing in the right one."""
    other, optimizer = Pair(param([1.0]), param([1.0])), config.init(groups=[ParamGroup("b", weight_decay=0.0)])
    with pytest.raises(ValueError, match="another model"):
        optimizer.step(0.1, other, zeros(net()))
    assert not optimizer._grouping.index
    with pytest.raises(ValueError, match="no parameter matches"):
        optimizer.step(0.1, net(), zeros(net()))


# records
def test_groups_are_compared_by_a_restore_and_come_back_in_a_fresh_process(device):
    def made():
        model = LinearConfig(2, 3).init(Autodiff(device))
        listed = ParamGroup([model.weight], betas=(0.5, 0.6), amsgrad=True)  # ids that a fresh model does not have
        return model, AdamWConfig().init(groups=[ParamGroup("bias", weight_decay=0.0), listed])

    def go(model, optimizer, steps):
        for _ in range(steps):
            loss = model(rt.ones((4, 2), device=device)).square().mean()
            model = optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))
        return model

    for steps in (2, 0):  # 0: captured before the first step
        model, optimizer = made()
        model = go(model, optimizer, steps)
        recorder = BinBytesRecorder()
        stored = recorder.load(recorder.save({"model": model.to_record(), "optimizer": optimizer.to_record(model)}))
        fresh, again = made()
        fresh = fresh.load_record(stored["model"])
        again.load_record(stored["optimizer"], fresh)
        straight, resumed = go(model, optimizer, 3), go(fresh, again, 3)
        for ours, theirs in zip(straight.params(), resumed.params()):
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_other_groups_are_a_two_sided_mismatch_and_nothing_changes():
    model = Pair(param([1.0]), param([1.0]))
    groups = [ParamGroup("a", weight_decay=0.0, lr_scale=2.0)]
    record = AdamWConfig().init(groups=groups).to_record(model)
    for wrong in (
        [], [ParamGroup("b", weight_decay=0.0, lr_scale=2.0)], [ParamGroup("a", weight_decay=0.1, lr_scale=2.0)],
        [ParamGroup("a", weight_decay=0.0)], [*groups, ParamGroup("b")], [ParamGroup(is_first, weight_decay=0.0, lr_scale=2.0)],
    ):  # fmt: skip
        optimizer = AdamWConfig().init(groups=wrong)
        with pytest.raises(RecordMismatch, match=r"(?s)record \| here.*groups"):
            optimizer.load_record(record, model)
        assert not optimizer.states
    plain = AdamWConfig().init().to_record(model)
    with pytest.raises(RecordMismatch, match="groups"):
        AdamWConfig().init(groups=groups).load_record(plain, model)
    AdamWConfig().init(groups=groups).load_record(record, model)
    assert "groups" not in plain and "groups" not in plain["config"]


def test_a_damaged_record_of_groups_is_refused():
    model = Pair(param([1.0]), param([1.0]))
    optimizer = SgdConfig(momentum=0.5).init(groups=[ParamGroup("a", lr_scale=2.0)])
    model = optimizer.step(0.1, model, give((model.a, [1.0]), (model.b, [1.0])))
    record = optimizer.to_record(model)
    assert sorted(record["groups"].values()) == [0, 1]
    for bad in (None, [], {model.a.id: 2}, {model.a.id: -1}, {model.a.id: "1"}, {model.a.id: True}, {model.a.id: 1}):
        with pytest.raises(RecorderError, match="groups should be|in no group"):
            optimizer.load_record({**record, "groups": bad}, model)
    assert optimizer.states[model.a.id]["time"] == 1
    optimizer.load_record(record, model)


def test_groups_are_shown_described_and_copied():
    group = ParamGroup("*.bias", weight_decay=0.0)
    assert repr(group) == "ParamGroup('*.bias', weight_decay=0.0)"
    assert ParamGroup.vectors(eps=1.0).describe() == {"where": "vectors", "lr_scale": 1.0, "eps": 1.0}
    assert "partial" in ParamGroup(functools.partial(is_first)).describe()["where"]
    model, optimizer = Pair(param([1.0]), param([1.0])), SgdConfig().init(groups=[ParamGroup.vectors(lr_scale=2.0)])
    assert repr(optimizer) == "Optimizer(Sgd, 1 groups, 0 states)"
    model = optimizer.step(0.5, model, give((model.a, [1.0])))
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        other = twin.step(0.5, model.clone(), give((model.a, [1.0])))
        assert other.a.item() == -1.0


def test_a_rule_of_ones_own_takes_the_scale_of_a_group():
    class SignSgd(ro.Rule):
        def kernel(self, lr, time):
            def body(xp, p, g, t):
                xp.subtract(p, xp.multiply(xp.sign(g, out=t), lr, out=t), out=p)

            return body

    model = Pair(param([1.0]), param([1.0]))
    optimizer = Optimizer(SignSgd(ro.OptimizerConfig()), [ParamGroup("b", lr_scale=2.0)])
    new = optimizer.step(0.25, model, give((model.a, [9.0]), (model.b, [9.0])))
    assert (new.a.item(), new.b.item()) == (0.75, 0.5)
