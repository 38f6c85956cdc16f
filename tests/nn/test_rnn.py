"""Recurrent layers: against numbers worked by hand, PyTorch and finite differences, and their behaviour as modules."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn.rnn import GruConfig, LstmConfig, RnnConfig

CONFIGS = {
    "tanh": RnnConfig(3, 5),
    "relu": RnnConfig(3, 5, activation="relu"),
    "gru": GruConfig(3, 5),
    "lstm": LstmConfig(3, 5),
}
SHAPES = [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 3, "bidirectional": True}, {"bias": False}]


def flat(state):
    return list(state) if isinstance(state, tuple) else [state]


def make(kind, **changes):
    config = CONFIGS[kind]
    for name, value in changes.items():
        config = getattr(config, f"with_{name}")(value)
    rt.random.seed(3)
    return config


def initial(kind, layer, batch, rng, dtype: Any = np.float32, device=None):
    shape = (len(layer.layers), batch, layer.layers[0].weight_hh.shape[0])
    parts = [rt.tensor(rng.standard_normal(shape), dtype=dtype, device=device or rt.Cpu()) for _ in range(2)]
    return tuple(parts) if kind == "lstm" else parts[0]


# by hand
def reference(layer, kind, x, lengths):
    """One layer, one direction and one batch entry at a time, by the equations, in float64: outputs and last state."""
    sig = lambda a: 1 / (1 + np.exp(-a))
    w = {name: p.numpy().astype(np.float64) for name, p in layer.named_params()}
    hidden, count = layer.layers[0].weight_hh.shape[0], 1 + layer.bidirectional
    hs, cs = np.zeros((len(layer.layers), len(x), hidden)), np.zeros((len(layer.layers), len(x), hidden))
    for first in range(0, len(layer.layers), count):
        out = np.zeros((*x.shape[:2], count * hidden))
        for j in range(count):
            wi, wh, bi, bh = (w[f"layers.{first + j}.{n}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            for b, n in enumerate(lengths):
                h, c = np.zeros(hidden), np.zeros(hidden)
                for t in reversed(range(n)) if j else range(n):
                    a, r = np.split(x[b, t] @ wi + bi, len(bi) // hidden), np.split(h @ wh + bh, len(bi) // hidden)
                    if kind == "lstm":
                        i, f, g, o = (p + q for p, q in zip(a, r))
                        c = sig(f) * c + sig(i) * np.tanh(g)
                        h = sig(o) * np.tanh(c)
                    elif kind == "gru":
                        reset, z = sig(a[0] + r[0]), sig(a[1] + r[1])
                        h = (1 - z) * np.tanh(a[2] + reset * r[2]) + z * h
                    else:
                        h = np.tanh(a[0] + r[0]) if kind == "tanh" else np.maximum(a[0] + r[0], 0)
                    out[b, t, j * hidden : (j + 1) * hidden] = h
                hs[first + j, b], cs[first + j, b] = h, c
        x = out
    return x, [hs, cs] if kind == "lstm" else [hs]


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("changes", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("lengths", [None, [6, 1, 0, 4]])
def test_each_step_is_its_equations(kind, changes, lengths, rng, device):
    layer = make(kind, **changes).init(device)
    x = rng.standard_normal((4, 6, 3)).astype(np.float32)
    out, state = layer(rt.tensor(x, device=device), lengths=lengths)
    want, last = reference(layer, kind, x.astype(np.float64), lengths or [6] * 4)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(flat(state), last, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=2e-6)


def test_one_lstm_step_worked_by_hand():
    """All weights 0 and biases ln 3 for the gates: sigmoid is 3/4, and g = tanh(1)."""
    layer = LstmConfig(1, 1).init(rt.Cpu())
    b = [np.log(3.0), np.log(3.0), 1.0, np.log(3.0)]
    values = {"weight_ih": np.zeros((1, 4)), "weight_hh": np.zeros((1, 4)), "bias_ih": b, "bias_hh": np.zeros(4)}
    named = {p.id: values[path.split(".")[-1]] for path, p in layer.named_params()}
    layer = layer.map(lambda p: p.like(rt.tensor(named[p.id], dtype=rt.float64, device=rt.Cpu())._data))
    out, (h, c) = layer(rt.ones((1, 2, 1), dtype=rt.float64, device=rt.Cpu()))
    c1 = 0.75 * np.tanh(1.0)
    c2 = 0.75 * c1 + 0.75 * np.tanh(1.0)
    np.testing.assert_allclose(out.numpy().ravel(), [0.75 * np.tanh(c1), 0.75 * np.tanh(c2)], rtol=1e-14)
    assert h.numpy().ravel() == out.numpy().ravel()[-1] and c.numpy().ravel() == pytest.approx(c2, rel=1e-14)


# against PyTorch
def theirs_of(kind, layer, **changes):
    torch = pytest.importorskip("torch")
    classes = {"tanh": torch.nn.RNN, "relu": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    extra = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
    theirs = classes[kind](3, 5, batch_first=True, **changes, **extra)
    names = layer.torch_names
    state = {names[path]: torch.tensor(np.array(p.numpy().T)) for path, p in layer.named_params()}
    theirs.load_state_dict(state)
    return torch, theirs


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("changes", SHAPES)
def test_values_and_gradients_agree_with_torch(kind, changes, rng):
    layer = make(kind, **changes).init(Autodiff(rt.Cpu()))
    torch, theirs = theirs_of(kind, layer, **changes)
    x = rt.tensor(rng.standard_normal((4, 6, 3)), dtype=rt.float32, device=rt.Cpu()).require_grad()
    start = initial(kind, layer, 4, rng)
    out, state = layer(x, start)
    xt = torch.tensor(x.numpy(), requires_grad=True)
    given = tuple(torch.tensor(s.numpy()) for s in flat(start))
    out_t, state_t = theirs(xt, given if kind == "lstm" else given[0])
    np.testing.assert_allclose(out.numpy(), out_t.detach().numpy(), rtol=1e-5, atol=1e-6)
    loss, loss_t = out.square().sum(), out_t.square().sum()
    for ours, other in zip(flat(state), flat(state_t), strict=True):
        np.testing.assert_allclose(ours.numpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
        loss, loss_t = loss + (ours * ours * ours).sum(), loss_t + (other**3).sum()
    gradients = loss.backward()
    loss_t.backward()
    np.testing.assert_allclose(gradients[x].numpy(), xt.grad.numpy(), rtol=1e-4, atol=2e-5)
    found = dict(theirs.named_parameters())
    for path, p in layer.named_params():
        np.testing.assert_allclose(gradients[p].numpy().T, found[layer.torch_names[path]].grad.numpy(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["tanh", "gru", "lstm"])
def test_lengths_agree_with_packed_sequences(kind, rng):
    changes = {"num_layers": 2, "bidirectional": True}
    layer = make(kind, **changes).init(Autodiff(rt.Cpu()))
    torch, theirs = theirs_of(kind, layer, **changes)
    lengths, x = [2, 6, 1, 4], rng.standard_normal((4, 6, 3)).astype(np.float32)
    pack = torch.nn.utils.rnn
    packed = pack.pack_padded_sequence(torch.tensor(x), lengths, batch_first=True, enforce_sorted=False)
    out_t, state_t = theirs(packed)
    out_t, _ = pack.pad_packed_sequence(out_t, batch_first=True)
    out, state = layer(rt.tensor(x), lengths=rt.tensor(lengths))
    np.testing.assert_allclose(out.numpy(), out_t.detach().numpy(), rtol=1e-5, atol=1e-6)
    for ours, other in zip(flat(state), flat(state_t), strict=True):
        np.testing.assert_allclose(ours.numpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
    gradients = out.square().sum().backward()
    out_t.square().sum().backward()
    found = dict(theirs.named_parameters())
    for path, p in layer.named_params():
        np.testing.assert_allclose(gradients[p].numpy().T, found[layer.torch_names[path]].grad.numpy(), rtol=1e-4, atol=2e-5)


# gradients
@pytest.mark.parametrize("kind", ["tanh", "gru", "lstm"])
def test_gradients_by_finite_differences(kind, rng):
    config = make(kind).with_d_in(2).with_d_hidden(2).with_num_layers(2).with_bidirectional(True)
    layer = config.init(Autodiff(rt.Cpu())).to_dtype(rt.float64)
    x = rt.tensor(rng.standard_normal((2, 3, 2)), device=rt.Cpu())
    start = initial(kind, layer, 2, rng, np.float64)
    check_gradients(lambda m, x, s: m(x, s), layer, x, start, order=2)
    check_gradients(lambda m, x, s: m(x, s, lengths=[3, 1]), layer, x, start)


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_lies_behind_a_length_cannot_be_seen(kind, rng, device):
    """Not even NaN: neither in the results nor in any gradient."""
    layer = make(kind, num_layers=2, bidirectional=True).init(Autodiff(device))
    x = rng.standard_normal((2, 4, 3)).astype(np.float32)
    results = []
    for filling in (0.0, np.nan):
        x[1, 2:] = filling
        t = rt.tensor(x, device=device).require_grad()
        out, state = layer(t, lengths=[4, 2])
        gradients = (out.square().sum() + flat(state)[-1].sum()).backward()
        results.append([out, *flat(state), gradients[t], *[gradients[p] for p in layer.params()]])
    for a, b in zip(*results, strict=True):
        assert np.isfinite(a.numpy()).all() and a.numpy().tobytes() == b.numpy().tobytes()
    assert (results[0][0].numpy()[1, 2:] == 0).all()
    alone, state = layer(rt.tensor(x[1:, :2], device=device))
    np.testing.assert_allclose(results[0][0].numpy()[1:, :2], alone.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[0][1].numpy()[:, 1:], flat(state)[0].numpy(), rtol=1e-5, atol=1e-6)


# dtypes, sizes and modes
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_half_types_are_computed_in_float32_and_rounded_once(kind, dtype, rng, device):
    layer = make(kind, num_layers=2).init(device).to_dtype(dtype)
    x = rt.tensor(rng.standard_normal((2, 5, 3)), dtype=dtype, device=device)
    out, state = layer(x)
    wide, _ = layer.to_dtype(rt.float32)(x.astype(rt.float32))
    assert out.dtype == dtype and all(s.dtype == dtype for s in flat(state))
    assert out.numpy().tobytes() == wide.astype(dtype).numpy().tobytes()
    gradients = layer.train()(x)[0].sum().backward()
    assert all(gradients[p].dtype == dtype for p in layer.train().params() if p in gradients)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (1, 1, 3), (3, 2, 3)])
def test_small_and_empty_batches_and_sequences(kind, shape, device):
    layer = make(kind, bidirectional=True, num_layers=2).init(Autodiff(device))
    x = rt.ones(shape, device=device).require_grad()
    for lengths in (None, [min(1, shape[1])] * shape[0]):
        out, state = layer(x, lengths=lengths)
        assert out.shape == (*shape[:2], 10) and all(s.shape == (4, shape[0], 5) for s in flat(state))
    if out.size:
        assert out.sum().backward()[x].shape == shape


def test_the_state_carries_a_sequence_over(rng):
    layer = make("lstm", num_layers=2).init(rt.Cpu())
    x = rt.tensor(rng.standard_normal((2, 6, 3)), dtype=rt.float32, device=rt.Cpu())
    whole, last = layer(x)
    first, state = layer(x[:, :4])
    second, state = layer(x[:, 4:], state)
    np.testing.assert_allclose(rt.concat([first, second], axis=1).numpy(), whole.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(state[1].numpy(), last[1].numpy(), rtol=1e-6, atol=1e-7)


def test_dropout_lies_between_layers_and_only_in_training(rng):
    layer = make("tanh", num_layers=2, dropout=0.5).init(Autodiff(rt.Cpu()))
    x = rt.tensor(rng.standard_normal((2, 6, 3)), dtype=rt.float32, device=rt.Cpu())
    a, b = layer(x)[0].numpy(), layer(x)[0].numpy()
    assert layer.training and not np.array_equal(a, b)
    calm = layer.valid()
    assert not calm.training and calm(x)[0].numpy().tobytes() == calm(x)[0].numpy().tobytes()
    assert np.array_equal(calm(x)[1].numpy()[0], layer(x)[1].numpy()[0]) and calm.train().training
    single = make("tanh", num_layers=1, dropout=1.0).init(Autodiff(rt.Cpu()))
    assert np.array_equal(single(x)[0].numpy(), single.valid()(x)[0].numpy())


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_start_between_minus_and_plus_one_over_root_hidden(kind):
    layer = make(kind, num_layers=2).with_d_hidden(100).init(Autodiff(rt.Cpu()))
    for path, p in layer.named_params():
        values = p.numpy()
        assert 0.095 < np.abs(values).max() <= 0.1, path
        assert values.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.15), path


@pytest.mark.parametrize("kind", CONFIGS)
def test_records_copies_and_dtypes(kind, rng):
    layer = make(kind, num_layers=2, bidirectional=True).init(Autodiff(rt.Cpu()))
    other = make(kind, num_layers=2, bidirectional=True).init(Autodiff(rt.Cpu())).map(lambda p: p.like(p._data * 0))
    x = rt.tensor(rng.standard_normal((2, 4, 3)), dtype=rt.float32, device=rt.Cpu())
    want = layer(x)[0].numpy().tobytes()
    restored = other.load_record(layer.to_record())
    for same in (restored, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer.clone(), layer.map(lambda p: p)):
        assert same(x)[0].numpy().tobytes() == want
    assert layer.to_dtype(rt.float64)(x)[0].dtype == rt.float64


def test_balanced_checkpointing_gives_the_same_gradients(rng):
    layer = make("lstm", num_layers=2, dropout=0.3).init(Autodiff(rt.Cpu()))
    balanced = layer.fork(Autodiff(rt.Cpu(), checkpointing="balanced"))
    x = rt.tensor(rng.standard_normal((2, 4, 3)), dtype=rt.float32, device=rt.Cpu())
    found = []
    for m in (layer, balanced):
        rt.random.seed(1)
        gradients = m(x)[0].square().sum().backward()
        found.append([gradients[p].numpy() for p in m.params()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


# bad input
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (RnnConfig(0, 1), "d_in"),
        (GruConfig(1, -1), "d_hidden"),
        (LstmConfig(1, 1, num_layers=0), "num_layers"),
        (GruConfig(1, 1, dropout=1.5), "dropout"),
        (RnnConfig(1, 1, activation="gelu"), "activation"),
    ],
)
def test_a_wrong_setting_is_refused(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init()


def test_wrong_arguments_say_what_is_needed():
    gru, lstm = GruConfig(3, 5).init(rt.Cpu()), LstmConfig(3, 5).init(rt.Cpu())
    x = rt.ones((2, 4, 3), device=rt.Cpu())
    with pytest.raises(ValueError, match=r"x must be \[batch, T, 3\], got \(4, 3\); one sequence: x\[None\]"):
        gru(x[0])
    with pytest.raises(ValueError, match=r"initial state must be .* = \(1, 2, 5\), got \(2, 5\)"):
        gru(x, rt.ones((2, 5), device=rt.Cpu()))
    with pytest.raises(ValueError, match="pair of tensors"):
        lstm(x, rt.ones((1, 2, 5), device=rt.Cpu()))
    for wrong in ([1, 2, 3], [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"lengths must be 2 integers.*lengths=\[4\] \* 2"):
            gru(x, lengths=wrong)
