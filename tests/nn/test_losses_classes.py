"""Cross-entropies, relative entropy and CTC as layers: values, weights, smoothing, ignored rows, extremes, errors."""
from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients
from ruda_nn import BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, CtcLossConfig, KlDivLossConfig

CPU = rt.Cpu()
REDUCE = {"mean": np.mean, "sum": np.sum, "none": np.asarray}
Z = np.array([[2.0, 0, 1], [0, 3, 0], [1, 1, 1], [0, 0, 5]])
IDS = np.array([0, -100, 2, 1])


def rows_of(logs, ids, weight, smoothing, ignore=-100):
    """The loss and the weight of each row, by the definition."""
    losses, own = np.zeros(len(ids)), np.zeros(len(ids))
    for i, t in enumerate(ids):
        if t != ignore:
            own[i] = weight[t]
            losses[i] = -(1 - smoothing) * weight[t] * logs[i, t] - smoothing / len(weight) * (weight * logs[i]).sum()
    return losses, own


def cross_entropy(scores, ids, device=CPU, dtype=rt.float64, **settings):
    """The loss of logits and, with logits=False, of their softmax."""
    if settings.get("logits") is False:
        scores = scipy.special.softmax(scores, axis=settings.get("axis", -1))
    loss = CrossEntropyLossConfig(**settings).init(device)
    return loss(rt.tensor(scores, dtype=dtype, device=device), rt.tensor(ids, device=device))


# cross-entropy


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 4.0]])
def test_cross_entropy_is_its_definition(weight, smoothing, reduction, logits, device):
    losses, own = rows_of(scipy.special.log_softmax(Z, axis=-1), IDS, weight or [1.0] * 3, smoothing)
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / own.sum()}[reduction]
    found = cross_entropy(
        Z, IDS, device, weight=weight, label_smoothing=smoothing, reduction=reduction, logits=logits
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("logits", [True, False])
def test_LOSS_02_and_03_smoothing_weights_and_a_negative_ignore_index(logits, device):
    how = {"device": device, "logits": logits}
    weight = [1.0, 2.0, 4.0]
    assert cross_entropy(Z, IDS, label_smoothing=0.2, **how).item() == pytest.approx(2.12875694, abs=1e-8)
    assert cross_entropy(Z, IDS, label_smoothing=0.2, reduction="sum", **how).item() == pytest.approx(6.38627082, abs=1e-8)
    found = [cross_entropy(Z, IDS, weight=weight, label_smoothing=0.2, reduction=r, **how).item() for r in ("mean", "sum")]
    assert found == pytest.approx([2.01507764, 14.10554348], abs=1e-8)
    assert cross_entropy(Z, IDS, weight=weight, **how).item() == pytest.approx(2.11840385, abs=1e-8)


@pytest.mark.parametrize("logits", [True, False])
def test_LOSS_04_an_ignore_index_of_ones_own_still_competes(logits, device):
    each = cross_entropy(Z, [0, 255, 2, 1], device, ignore_index=255, reduction="none", logits=logits)
    np.testing.assert_allclose(each.numpy(), [0.40760596, 0, 1.09861229, 5.0133859], atol=1e-8)
    z = np.array([[2.0, 1, 1], [2, 1, 1], [0, 0, 3]])
    found = cross_entropy(z, [1, 2, 0], device, ignore_index=0, logits=logits)
    assert found.item() == pytest.approx(1.55144471, abs=1e-8)


@pytest.mark.parametrize("logits", [True, False])
def test_contract_90_padding_does_not_dilute_the_mean(logits, device):
    """The mean is over the rows that count, so batches with more padding weigh the same."""
    z, ids = np.concatenate([Z, Z]), np.array([0, 2, 1, 1] + [-100] * 4)
    padded = cross_entropy(z, ids, device, logits=logits).item()
    assert padded == pytest.approx(cross_entropy(Z, ids[:4], device, logits=logits).item(), rel=1e-12)
    assert cross_entropy(Z, [-100] * 4, device, logits=logits).item() == 0.0


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_the_classes_may_be_at_any_axis(axis, logits, device):
    rng = np.random.default_rng(0)
    scores, ids = rng.standard_normal((4, 2, 3)), rng.integers(0, 3, (4, 2))
    last = cross_entropy(scores, ids, device, reduction="none", logits=logits)
    moved = cross_entropy(np.moveaxis(scores, -1, axis), ids, device, reduction="none", axis=axis, logits=logits)
    np.testing.assert_allclose(moved.numpy(), last.numpy(), rtol=1e-12)


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("reduction", list(REDUCE))
def test_targets_may_be_probabilities(reduction, logits, device):
    rng = np.random.default_rng(1)
    q, weight = scipy.special.softmax(rng.standard_normal(Z.shape), axis=-1), np.array([1.0, 2.0, 4.0])
    smooth = 0.9 * q + 0.1 / 3
    each = -(smooth * weight * scipy.special.log_softmax(Z, axis=-1)).sum(-1)
    found = cross_entropy(Z, q, device, weight=weight, label_smoothing=0.1, reduction=reduction, logits=logits)
    np.testing.assert_allclose(found.numpy(), REDUCE[reduction](each), rtol=1e-12)


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("settings", [{}, {"weight": [1.0, 0.5, 2.0], "label_smoothing": 0.1}, {"reduction": "sum"}])
def test_cross_entropy_gradients(settings, logits):
    rng = np.random.default_rng(2)
    p = rt.tensor(rng.uniform(0.1, 0.9, (4, 3)), device=CPU)
    ids, q = rt.tensor(IDS, device=CPU), rt.tensor(rng.uniform(0.1, 0.9, (4, 3)), device=CPU)
    loss = CrossEntropyLossConfig(logits=logits, **settings).init(CPU)
    check_gradients(lambda x: loss(x, ids), p, order=2)
    check_gradients(loss, p, q, order=2)


@pytest.mark.parametrize("logits", [True, False])
def test_class_ids_may_be_of_any_integer_dtype(logits, device):
    expected = cross_entropy(Z, np.array([0, 1, 2, 1]), device, logits=logits).item()
    for dtype in (np.uint8, np.int8, np.uint16, np.uint64):
        assert cross_entropy(Z, np.array([0, 1, 2, 1], dtype), device, logits=logits).item() == expected


def test_probabilities_of_zero_are_finite_and_ignored_rows_may_hold_anything(device):
    p = rt.tensor([[0.0, 1.0], [np.nan, 0.5], [1.0, 0.0]], device=device).require_grad()
    loss = CrossEntropyLossConfig(logits=False, reduction="sum").init(device)
    found = loss(p, rt.tensor([0, -100, 0], device=device))
    assert found.item() == pytest.approx(63 * math.log(2), rel=1e-6)
    np.testing.assert_array_equal(p.grad(found.backward()).numpy(), [[0, 0], [0, 0], [-1, 0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, {"weight": [0.1, 1 / 3, 2.7]}, {"weight": [0.1, 1 / 3, 2.7], "label_smoothing": 0.1}])
@pytest.mark.parametrize("logits", [True, False])
def test_cross_entropy_in_half_precision_is_rounded_once(logits, settings, dtype, device):
    half = getattr(rt, dtype)
    loss = CrossEntropyLossConfig(logits=logits, **settings).init(device)
    scores = scipy.special.softmax(Z, axis=-1) if not logits else Z
    x, ids = rt.tensor(scores, dtype=half, device=device), rt.tensor(IDS, device=device)
    q = rt.tensor(scipy.special.softmax(-Z, axis=-1), dtype=half, device=device)
    for target in (ids, q):
        wide = target if target is ids else q.astype(rt.float32)
        found, exact = loss(x, target), loss(x.astype(rt.float32), wide)
        assert found.dtype == half and found.item() == exact.astype(half).item()


@pytest.mark.parametrize("logits", [True, False])
def test_what_cross_entropy_refuses(logits):
    scores = scipy.special.softmax(Z, axis=-1)
    loss = CrossEntropyLossConfig(logits=logits, weight=[1.0, 2.0, 4.0]).init(CPU)
    x = rt.tensor(scores, device=CPU)
    for ids, error, message in (
        ([0, 3, 1, 2], IndexError, "the target 3 is no class"),
        ([0, -1, 1, 2], IndexError, "the target -1 is no class"),
        ([[0], [1], [2], [1]], ValueError, "need class ids of shape"),
        ([True, False, True, True], TypeError, "must be integer class ids or float"),
        ([[0.5, 0.5]] * 4, ValueError, "probabilities must have the shape"),
    ):
        with pytest.raises(error, match=message):
            loss(x, rt.tensor(ids, device=CPU))
    with pytest.raises(ValueError, match=r"weight must have the shape \(2,\)"):
        loss(x[:, :2], rt.tensor([0, 1, 1, 0], device=CPU))


# binary cross-entropy


def binary(p, t, positive=1.0):
    with np.errstate(divide="ignore"):
        return -(positive * t * np.maximum(np.log(p), -100) + (1 - t) * np.maximum(np.log1p(-p), -100))


@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 0.0]])
@pytest.mark.parametrize("positive", [None, [3.0, 0.0, 1.5]])
def test_binary_cross_entropy_is_its_definition(positive, weight, reduction, device):
    rng = np.random.default_rng(3)
    p, t = rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0, 1, (4, 3))
    target = rt.tensor(t, device=device)
    each = binary(p, t, 1.0 if positive is None else np.array(positive)) * (1.0 if weight is None else np.array(weight))
    how = {"weight": weight, "reduction": reduction}
    x = rt.tensor(scipy.special.logit(p), device=device)
    found = BinaryCrossEntropyLossConfig(logits=True, pos_weight=positive, **how).init(device)(x, target)
    np.testing.assert_allclose(found.numpy(), REDUCE[reduction](each), rtol=1e-6)  # weights are float32
    if positive is None:
        found = BinaryCrossEntropyLossConfig(**how).init(device)(rt.tensor(p, device=device), target)
        np.testing.assert_allclose(found.numpy(), REDUCE[reduction](each), rtol=1e-12)


def test_certain_predictions(device):
    x = rt.tensor([1e4, -1e4, 1e4, -1e4], device=device).require_grad()
    t = rt.tensor([1.0, 0.0, 0.0, 1.0], device=device)
    loss = BinaryCrossEntropyLossConfig(logits=True, reduction="none").init()(x, t)
    assert loss.tolist() == [0, 0, 1e4, 1e4]
    assert x.grad(rt.sum(loss).backward()).tolist() == [0, 0, 1, -1]
    p = rt.tensor([1.0, 0.0, 1.0, 0.0], device=device).require_grad()
    loss = BinaryCrossEntropyLossConfig(reduction="none").init()(p, t)
    assert loss.tolist() == [0, 0, 100, 100]
    assert np.isfinite(p.grad(rt.sum(loss).backward()).numpy()).all()


def test_binary_cross_entropy_gradients():
    rng = np.random.default_rng(4)
    p, t = (rt.tensor(rng.uniform(0.1, 0.9, (3, 2)), device=CPU) for _ in range(2))
    check_gradients(BinaryCrossEntropyLossConfig(weight=[0.5, 2.0]).init(CPU), p, t, order=2)
    check_gradients(BinaryCrossEntropyLossConfig(logits=True, weight=[0.5, 2.0], pos_weight=[3.0]).init(CPU), p, t, order=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, {"logits": True}, {"weight": [0.1, 2.7]}, {"logits": True, "pos_weight": [0.1, 2.7]}])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_binary_cross_entropy_in_half_precision_is_rounded_once(reduction, settings, dtype, device):
    half, rng = getattr(rt, dtype), np.random.default_rng(5)
    p, t = (rt.tensor(rng.uniform(0, 1, (50, 2)), dtype=half, device=device) for _ in range(2))
    loss = BinaryCrossEntropyLossConfig(reduction=reduction, **settings).init(device)
    for target in (t, 1.0):
        wide = t.astype(rt.float32) if target is t else target
        found, exact = loss(p, target), loss(p.astype(rt.float32), wide)
        assert found.dtype == half and found.tolist() == exact.astype(half).tolist()


def test_weights_must_fit_the_prediction():
    loss = BinaryCrossEntropyLossConfig(weight=[[1.0], [2.0]]).init(CPU)
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(3,\)"):
        loss(rt.zeros((3,), device=CPU), rt.zeros((3,), device=CPU))
    with pytest.raises(ValueError, match="must have one shape"):
        loss(rt.zeros((2, 3), device=CPU), rt.zeros((3,), device=CPU))


# relative entropy


@pytest.mark.parametrize("reduction", [*REDUCE, "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_is_its_definition(log_target, reduction, device):
    rng = np.random.default_rng(6)
    x, q = rng.standard_normal((4, 3)), scipy.special.softmax(rng.standard_normal((4, 3)), axis=-1)
    q[0] = [0.0, 1.0, 0.0]
    each = scipy.special.xlogy(q, q) - q * x
    with np.errstate(divide="ignore"):
        t = np.log(q) if log_target else q
    found = KlDivLossConfig(log_target, reduction).init()(rt.tensor(x, device=device), rt.tensor(t, device=device))
    expected = each.sum() / 4 if reduction == "batchmean" else REDUCE[reduction](each)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_kl_div_gradients_and_half_types(device):
    rng = np.random.default_rng(7)
    x, q = rt.tensor(rng.standard_normal((3, 2)), device=CPU), rt.tensor(rng.uniform(0.1, 0.9, (3, 2)), device=CPU)
    check_gradients(KlDivLossConfig(reduction="batchmean").init(), x, q, order=2)
    check_gradients(KlDivLossConfig(log_target=True).init(), x, rt.log(q), order=2)
    for dtype in (rt.float16, rt.bfloat16):
        a, b = x.astype(dtype).to_device(device), q.astype(dtype).to_device(device)
        for loss in (KlDivLossConfig().init(), KlDivLossConfig(True, "batchmean").init()):
            found, exact = loss(a, b), loss(a.astype(rt.float32), b.astype(rt.float32))
            assert found.dtype == dtype and found.item() == exact.astype(dtype).item()


def test_kl_div_refuses_a_batch_of_no_axis_and_other_shapes():
    with pytest.raises(ValueError, match="batchmean"):
        KlDivLossConfig(reduction="batchmean").init()(rt.zeros((), device=CPU), rt.zeros((), device=CPU))
    with pytest.raises(ValueError, match="KlDivLoss: .*must have one shape"):
        KlDivLossConfig().init()(rt.zeros((2, 3), device=CPU), rt.zeros((3,), device=CPU))


# CTC


@given(seed=st.integers(0, 2**32 - 1))
def test_the_ctc_layer_is_the_function(seed):
    rng = np.random.default_rng(seed)
    x = rt.log_softmax(rt.tensor(rng.standard_normal((6, 2, 4)), device=CPU))
    targets = rt.tensor(rng.integers(0, 3, (2, 3)), device=CPU)
    how = {"blank": 3, "zero_infinity": bool(rng.integers(2)), "reduction": ["mean", "sum", "none"][rng.integers(3)]}
    found = CtcLossConfig(**how).init()(x, targets, [6, 4], target_lengths=[3, 2])
    assert found.tolist() == rt.ctc_loss(x, targets, [6, 4], [3, 2], **how).tolist()


# against PyTorch


CLASSES = {
    "ce": ("CrossEntropyLoss", {}, {}),
    "ce-all": ("CrossEntropyLoss", {"weight": [1.0, 2.0, 4.0], "label_smoothing": 0.2, "ignore_index": 1}, {}),
    "bce": ("BCELoss", {}, {}),
    "bce-weight": ("BCELoss", {"weight": [1.0, 2.0, 4.0]}, {}),
    "bce-logits": ("BCEWithLogitsLoss", {"weight": [1.0, 2.0, 4.0], "pos_weight": [3.0, 1.0, 0.5]}, {"logits": True}),
    "kl": ("KLDivLoss", {}, {}),
    "kl-log": ("KLDivLoss", {"log_target": True}, {}),
}
CONFIGS = {"ce": CrossEntropyLossConfig, "bce": BinaryCrossEntropyLossConfig, "kl": KlDivLossConfig}


@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("name", CLASSES)
def test_values_and_gradients_are_those_of_torch(name, reduction):
    torch = pytest.importorskip("torch")
    kind, settings, more = CLASSES[name]
    config = CONFIGS[name.split("-")[0]](reduction=reduction, **settings, **more)
    theirs = {k: torch.tensor(v, dtype=torch.float64) if isinstance(v, list) else v for k, v in settings.items()}
    rng = np.random.default_rng(8)
    a, b = rng.uniform(0.05, 0.95, (2, 4, 3))
    targets = [np.array([0, 1, 2, 1])] if name.startswith("ce") else [b]
    targets = [*targets, b / b.sum(-1, keepdims=True)] if name == "ce" else targets
    for t in targets:
        x, y = rt.tensor(a, device=CPU).require_grad(), torch.tensor(a, requires_grad=True)
        found = config.init(CPU)(x, rt.tensor(t, device=CPU))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that its KLDivLoss should have meant "batchmean"
            expected = getattr(torch.nn, kind)(reduction=reduction, **theirs)(y, torch.tensor(t))
        expected.sum().backward()
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-10)
        np.testing.assert_allclose(x.grad(rt.sum(found).backward()).numpy(), y.grad.numpy(), rtol=1e-9, atol=1e-12)


# settings


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (CrossEntropyLossConfig(weight=[1.0, -1.0]), "weight"),
        (CrossEntropyLossConfig(weight=[1.0, math.nan]), "weight"),
        (CrossEntropyLossConfig(weight=[[1.0], [1.0]]), "weight"),
        (CrossEntropyLossConfig(weight=[[1.0], [1.0, 2.0]]), "weight"),
        (CrossEntropyLossConfig(weight=2.0), "weight"),
        (CrossEntropyLossConfig(weight="balanced"), "weight"),
        (CrossEntropyLossConfig(axis=0.5), "axis"),
        (CrossEntropyLossConfig(logits=1), "logits"),
        (BinaryCrossEntropyLossConfig(logits=None), "logits"),
        (BinaryCrossEntropyLossConfig(reduction="batchmean"), "reduction"),
        (BinaryCrossEntropyLossConfig(pos_weight=[1.0]), "pos_weight"),
        (BinaryCrossEntropyLossConfig(logits=True, pos_weight=[-1.0]), "pos_weight"),
        (BinaryCrossEntropyLossConfig(weight=[True]), "weight"),
        (KlDivLossConfig(log_target=0), "log_target"),
        (KlDivLossConfig(reduction="average"), "reduction"),
        (CtcLossConfig(blank=-1), "blank"),
        (CtcLossConfig(blank=0.0), "blank"),
        (CtcLossConfig(zero_infinity=None), "zero_infinity"),
        (CtcLossConfig(reduction="max"), "reduction"),
    ],
)
def test_a_wrong_setting_is_refused(config, field):
    with pytest.raises(ValueError, match=rf"{type(config).__name__}: {field}=.* is not allowed; give "):
        config.init(CPU)


def test_weights_are_constants_that_move_with_the_loss(device):
    loss = CrossEntropyLossConfig(weight=np.array([1, 2, 4])).init(CPU).to_device(device)
    assert loss.weight is not None and loss.weight.device == device and loss.weight.dtype == rt.float32
    assert loss.params() == [] and not loss.weight.is_require_grad()
    x = rt.tensor(Z, device=device).require_grad()
    found = pickle.loads(pickle.dumps(loss))(x, rt.tensor(IDS, device=device))
    assert found.item() == pytest.approx(2.11840385, abs=1e-8)
    assert loss.map(lambda p: p)(x, rt.tensor(IDS, device=device)).item() == found.item()
    tracked = rt.tensor([1.0, 2.0, 4.0], device=CPU).require_grad()
    weight = CrossEntropyLossConfig(weight=tracked).init(CPU).weight
    assert weight is not None and not weight.is_require_grad()
