"""Models from and to files: PyTorch's checkpoints into our modules with a report, ours into PyTorch, and plain records."""
from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ruda_nn as rn
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import (
    Buffer,
    LayerNormConfig,
    LinearConfig,
    LoadReport,
    Module,
    Param,
    RecordMismatch,
    Sequential,
    load_module,
    load_safetensors,
    save_module,
    save_safetensors,
)
from ruda_record import (
    BinFileRecorder,
    NamedMpkFileRecorder,
    PrettyJsonFileRecorder,
    RecorderError,
    read_safetensors,
    write_safetensors,
)

pytest.importorskip("safetensors")
STATE = {  # of torch.nn.Sequential(Linear(3, 4), LayerNorm(4), Linear(4, 2)); numbers that tell places apart
    "0.weight": np.arange(12, dtype=np.float32).reshape(4, 3), "0.bias": np.arange(4, dtype=np.float32) / 10,
    "1.weight": np.arange(4, dtype=np.float32) + 1, "1.bias": -np.arange(4, dtype=np.float32),
    "2.weight": np.arange(8, dtype=np.float32).reshape(2, 4) / 7, "2.bias": np.array([5.0, -5.0], np.float32),
}  # fmt: skip


def mlp(device):
    return Sequential(LinearConfig(3, 4).init(device), LayerNormConfig(4).init(device), LinearConfig(4, 2).init(device))


def expected(x):
    """What that network gives, in NumPy alone."""
    s = {name: array.astype(np.float64) for name, array in STATE.items()}
    x = x @ s["0.weight"].T + s["0.bias"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * s["1.weight"] + s["1.bias"]
    return x @ s["2.weight"].T + s["2.bias"]


def values(model) -> dict[str, bytes]:
    return {path: p.numpy().tobytes() for path, p in (*model.named_params(), *model.named_buffers())}


def test_a_torch_checkpoint_loads_and_computes_what_it_did(device, tmp_path):
    path = write_safetensors(tmp_path / "torch", STATE)
    model = mlp(Autodiff(device))
    before, ids = values(model), [p.id for p in model.params()]
    loaded, report = load_safetensors(model, path)
    assert report.fits() and report.loaded == model.paths() and not report.cast
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(loaded(rt.tensor(x, device=device)).detach().numpy(), expected(x), rtol=2e-5, atol=2e-5)
    assert [p.id for p in loaded.params()] == ids and all(p.is_require_grad() for p in loaded.params())
    assert all(p._data.flags.c_contiguous for p in loaded.params())  # the transposed ones too, which kernels want
    assert values(model) == before  # the module that was given is as it was
    again = save_safetensors(loaded, tmp_path / "ours")
    got = read_safetensors(again)
    assert list(got) == sorted(STATE) and all((got[name] == STATE[name]).all() for name in STATE)


def test_names_are_mapped_by_a_dict_or_a_function(tmp_path):
    renamed = {f"model.{name}": array for name, array in STATE.items()}
    path = write_safetensors(tmp_path / "a", {**renamed, "optimizer.step": np.array(3)})
    wanted = values(load_safetensors(mlp(rt.Cpu()), write_safetensors(tmp_path / "b", STATE))[0])

    def names(name):
        return None if name.startswith("optimizer") else name.removeprefix("model.")

    model, report = load_safetensors(mlp(rt.Cpu()), path, names=names)
    assert values(model) == wanted and report.ignored == ["optimizer.step"]
    ours = {f"model.{i}.{part}": f"layers.{i}.{part}" for i in range(3) for part in ("weight", "bias")}
    model, report = load_safetensors(mlp(rt.Cpu()), path, names=ours, strict=False)
    assert values(model) == wanted and report.unexpected == ["optimizer.step"]
    with pytest.raises(RecordMismatch, match=r"unexpected: model\.0\.bias \(as layers\.9\.bias\)"):
        load_safetensors(mlp(rt.Cpu()), path, names={**ours, "model.0.bias": "layers.9.bias"})
    with pytest.raises(RecordMismatch, match=r"layers\.0\.bias: model\.0\.bias and model\.1\.bias \| one place"):
        load_safetensors(mlp(rt.Cpu()), path, names={**ours, "model.1.bias": "layers.0.bias"})


def test_what_does_not_fit_is_reported_and_nothing_is_changed(tmp_path):
    state = {**STATE, "0.weight": STATE["0.weight"].T.copy(), "1.bias": np.arange(4), "7.weight": np.zeros(1, np.float32)}
    del state["2.bias"]
    path, model = write_safetensors(tmp_path / "torch", state), mlp(rt.Cpu())
    before = values(model)
    with pytest.raises(RecordMismatch) as raised:
        load_safetensors(model, path)
    assert str(raised.value) == (
        f"{path} does not fit this model (file | model); strict=False loads what does:\n  3 loaded\n"
        "  missing: layers.2.bias\n"
        "  unexpected: 7.weight\n"
        "  mismatched: layers.0.weight (0.weight): shape, transposed, (4, 3) | (3, 4)\n"
        "  mismatched: layers.1.bias (1.bias): int64 | float32"
    )
    assert values(model) == before
    loaded, report = load_safetensors(model, path, strict=False)
    assert report.loaded == ["layers.0.bias", "layers.1.weight", "layers.2.weight"] and not report.fits()
    after = values(loaded)
    assert {name for name in after if after[name] != before[name]} == set(report.loaded)


@pytest.mark.parametrize("keep", [True, False])
def test_floats_are_converted_to_the_models_dtypes_or_taken_as_they_are(keep, tmp_path):
    half = np.dtype(ml_dtypes.bfloat16)
    path = write_safetensors(tmp_path / "a", {"weight": STATE["0.weight"].astype(half), "bias": STATE["0.bias"]})
    model, report = load_safetensors(LinearConfig(3, 4).init(rt.Cpu()), path, keep_dtype=keep)
    assert report.cast == ["weight: bfloat16 | float32" + ("" if keep else ", kept")]
    assert model.weight.dtype == (rt.float32 if keep else rt.bfloat16) and model.bias.dtype == rt.float32
    assert (model.weight.numpy().astype(np.float32) == STATE["0.weight"].T).all()


def test_a_value_that_the_models_dtype_cannot_hold_is_a_mismatch(tmp_path):
    path = write_safetensors(tmp_path / "a", {"weight": np.full((4, 3), 1e9, np.float32), "bias": np.full(4, np.inf, np.float32)})
    model = LinearConfig(3, 4).init(rt.Cpu()).to_dtype(rt.float16)
    with pytest.raises(RecordMismatch, match=r"weight: float32 beyond the largest float16 \| float16"):
        load_safetensors(model, path)
    assert np.isinf(load_safetensors(model, path, strict=False)[0].bias.numpy()).all()


class Tied(Module):
    embedding: Param
    head: Param
    scale: Param


def tied() -> Any:
    shared = Param(rt.zeros((3, 2), device=rt.Cpu()))
    return Tied(embedding=shared, head=shared, scale=Param(rt.ones(2, device=rt.Cpu()), trainable=False))


def test_CKPT_12_tied_parameters_need_one_name_and_agreeing_values(tmp_path):
    x, scale = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([3.0, 4.0], np.float32)
    for state in ({"embedding": x}, {"head": x}, {"embedding": x, "head": x.copy()}):
        model, report = load_safetensors(tied(), write_safetensors(tmp_path / "a", {**state, "scale": scale}))
        assert model.embedding is model.head and (model.head.numpy() == x).all() and report.fits()
        assert not model.scale.trainable and (model.scale.numpy() == scale).all() and len(model.params()) == 2
    path = write_safetensors(tmp_path / "a", {"embedding": x, "head": x + 1, "scale": scale})
    with pytest.raises(RecordMismatch, match="head: other values than its tied place"):
        load_safetensors(tied(), path)
    with pytest.raises(RecordMismatch, match=r"missing: embedding\n  missing: head"):
        load_safetensors(tied(), write_safetensors(tmp_path / "b", {"scale": scale}))
    assert sorted(read_safetensors(save_safetensors(model, tmp_path / "c"))) == ["embedding", "head", "scale"]


class Outer(Module):
    """Renames a path two levels down, and holds a dict, a list and a buffer."""

    inner: Any
    parts: dict[str, Any]
    count: Buffer
    torch_names = {"inner.first": "one", "parts": ""}


class Inner(Module):
    first: Any
    second: Any
    torch_names = {"second": "zwei"}


def outer(device) -> Any:
    def linear(n):
        return LinearConfig(n, 2).init(device)

    return Outer(
        inner=Inner(first=linear(3), second=linear(4)), parts={"a": [linear(5)]}, count=Buffer(rt.zeros(3, device=device))
    )


def test_renames_transposes_and_buffers_in_nested_modules(device, tmp_path):
    model = outer(device)
    model.count.set(rt.tensor([1.0, 2.0, 3.0], device=device))
    got = read_safetensors(save_safetensors(model, tmp_path / "a"))
    assert {name: array.shape for name, array in got.items()} == {
        "one.weight": (2, 3), "one.bias": (2,), "inner.zwei.weight": (2, 4), "inner.zwei.bias": (2,), "a.0.weight": (2, 5),
        "a.0.bias": (2,), "count": (3,),
    }  # fmt: skip
    other = outer(device)
    loaded, report = load_safetensors(other, tmp_path / "a")
    assert values(loaded) == values(model) and report.fits()
    assert loaded.count.tolist() == [1, 2, 3] and other.count.tolist() == [0, 0, 0]


def test_two_places_of_one_name_are_refused(tmp_path):
    class Twice(Module):
        a: Param
        b: Param
        torch_names = {"b": "a"}

    one = Param(rt.ones(2, device=rt.Cpu()))
    with pytest.raises(ValueError, match="b and another place are both 'a' in PyTorch"):
        save_safetensors(Twice(a=one, b=one.copy()), tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("recorder", [BinFileRecorder(), NamedMpkFileRecorder, PrettyJsonFileRecorder()], ids=str)
def test_a_module_is_saved_and_loaded_by_any_recorder(recorder, device, tmp_path):
    model = outer(Autodiff(device))
    path = save_module(model, recorder, tmp_path / "new" / "model")
    loaded = load_module(outer(Autodiff(device)), recorder, path)
    assert values(loaded) == values(model) and [p.id for p in loaded.params()] == [p.id for p in model.params()]
    with pytest.raises(RecordMismatch, match="does not fit this model"):
        load_module(mlp(device), recorder, path)
    with pytest.raises(RecorderError, match="not found"):
        load_module(model, recorder, tmp_path / "missing")


def test_wrong_arguments_are_named(tmp_path):
    model = LinearConfig(3, 2).init(rt.Cpu())
    wrong: Any = [
        lambda: save_module(BinFileRecorder(), model, "x"), lambda: save_module(model, 3, "x"),
        lambda: load_safetensors("x", model), lambda: save_safetensors(tmp_path, model),
        lambda: load_module({}, BinFileRecorder(), "x"),
    ]  # type: ignore[arg-type]  # fmt: skip
    for call in wrong:
        with pytest.raises(TypeError, match="expected a (Module first|recorder such as)"):
            call()
    assert str(LoadReport(loaded=["a"], cast=["b: float16 | float32"])) == "1 loaded\n  cast: b: float16 | float32"
    assert {field.name for field in dataclasses.fields(LoadReport)} == {
        "loaded", "missing", "unexpected", "mismatched", "cast", "ignored"}  # fmt: skip


def against_torch(torch, theirs, ours, x, y_theirs, y_ours, tmp_path):
    """Load a real state dict, compare the results, and load ours into PyTorch, strictly."""
    from safetensors.torch import load_file, save_file

    theirs.eval()
    save_file({name: t.clone() for name, t in theirs.state_dict().items()}, tmp_path / "torch.safetensors")
    loaded, report = load_safetensors(ours, tmp_path / "torch")
    assert report.fits(), report
    loaded = loaded.valid()
    with torch.no_grad():
        want = y_theirs(theirs, torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(y_ours(loaded, rt.tensor(x, device=rt.Cpu())).numpy(), want, rtol=2e-4, atol=2e-5)
    written = load_file(save_safetensors(loaded, tmp_path / "ours"))
    state = {name: t for name, t in theirs.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert set(written) == set(state) and all(torch.equal(written[name], state[name]) for name in state)
    return report


def call(model, x):
    return model(x)


CASES = ["mlp", "images", "lstm", "gru", "attention", "encoder"]


@pytest.mark.parametrize("case", CASES)
def test_real_torch_modules(case, tmp_path):
    torch = pytest.importorskip("torch")
    nn, cpu, rng = torch.nn, rt.Cpu(), np.random.default_rng(0)
    torch.manual_seed(0)
    x = rng.normal(size=(2, 5, 8)).astype(np.float32)
    first = (lambda m, x: m(x)[0], lambda m, x: m(x)[0])
    if case == "mlp":
        theirs = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 2, bias=False))
        ours = Sequential(LinearConfig(8, 6).init(cpu), LayerNormConfig(6).init(cpu), LinearConfig(6, 2, bias=False).init(cpu))
        against_torch(torch, theirs, ours, x, call, call, tmp_path)
    elif case == "images":
        theirs = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3), nn.GroupNorm(2, 2))
        theirs.train()(torch.randn(3, 3, 9, 9))
        ours = Sequential(
            rn.Conv2dConfig(3, 4, 3).init(cpu), rn.BatchNormConfig(4).init(cpu), rn.ConvTranspose2dConfig(4, 2, 3).init(cpu),
            rn.GroupNormConfig(2, 2).init(cpu),
        )  # fmt: skip
        x = rng.normal(size=(2, 3, 9, 9)).astype(np.float32)
        report = against_torch(torch, theirs, ours, x, call, call, tmp_path)
        assert report.ignored == ["1.num_batches_tracked"]
    elif case in ("lstm", "gru"):
        kind, config = (nn.LSTM, "LstmConfig") if case == "lstm" else (nn.GRU, "GruConfig")
        theirs = kind(8, 6, num_layers=2, batch_first=True, bidirectional=True)
        ours = getattr(rn, config)(8, 6, num_layers=2, bidirectional=True).init(cpu)
        against_torch(torch, theirs, ours, x, *first, tmp_path)
    elif case == "attention":
        theirs = nn.MultiheadAttention(8, 2, batch_first=True)
        ours = rn.MultiHeadAttentionConfig(8, 2).init(cpu)
        against_torch(torch, theirs, ours, x, lambda m, x: m(x, x, x)[0], call, tmp_path)
    else:
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        ours = rn.TransformerEncoderLayerConfig(8, 2, d_ff=16, activation="gelu").init(cpu)
        against_torch(torch, layer, ours, x, call, call, tmp_path)
