"""The model of the GPT-2 example: it is GPT-2's function, starts as it should, costs what is said, and writes."""
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_record import RecorderError, write_safetensors

from ._gpt2_numpy import forward, mean_loss, random_checkpoint

pytest.importorskip("safetensors")
HEADS, VOCABULARY = 4, 300
CHECKPOINT = random_checkpoint(2, 64, 64, VOCABULARY)
IDS = np.random.default_rng(1).integers(0, VOCABULARY, (2, 33))


@pytest.fixture
def gpt2(monkeypatch):
    """The modules of model and weights."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import _gpt2_model
    import _gpt2_weights

    return _gpt2_model, _gpt2_weights


@pytest.fixture
def loaded(gpt2, tmp_path):
    """Loads changed copies of CHECKPOINT into a tiny model."""

    def load(arrays=CHECKPOINT, *, vocabulary=VOCABULARY, length=64, dtype="float32", device="cpu"):
        path = write_safetensors(tmp_path / "weights", arrays)
        model = gpt2[0].Gpt2Config("tiny", vocabulary, length, dtype).init(device)
        return gpt2[1].load_weights(model, path, vocabulary)

    return load


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_it_is_the_function_of_gpt2(loaded, prefix):
    model = loaded({prefix + name: array for name, array in CHECKPOINT.items()}).to_dtype(rt.float64)
    assert model.tokens.weight.shape == (384, 64) and model.tokens.weight.is_require_grad()
    scores = model(rt.tensor(IDS, device=rt.Cpu())).numpy()
    for row, ids in zip(scores, IDS):
        np.testing.assert_allclose(row[:, :VOCABULARY], forward(CHECKPOINT, ids, HEADS), rtol=1e-11, atol=1e-11)
    assert (scores[..., VOCABULARY:] == -np.inf).all()


def test_the_rows_that_fill_up_the_table_take_no_part_in_the_loss(gpt2, loaded):
    model = loaded().to_dtype(rt.float64)
    x, y = (rt.tensor(ids, device=rt.Cpu()) for ids in (IDS[:, :-1], IDS[:, 1:]))
    loss = gpt2[0].loss_sum(model, x, y)
    expected = np.mean([mean_loss(forward(CHECKPOINT, ids[:-1], HEADS), ids[1:]) for ids in IDS])
    assert loss.item() / y.size == pytest.approx(expected, rel=1e-6)
    gradient = loss.backward()[model.tokens.weight].numpy()
    assert (gradient[VOCABULARY:] == 0).all() and (gradient[:VOCABULARY] != 0).any(axis=1).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_comes_near_in_fewer_bits(loaded, device, dtype):
    scores = loaded(dtype=dtype, device=device)(rt.tensor(IDS, device=device)).astype(rt.float32).numpy()
    expected = np.stack([forward(CHECKPOINT, ids, HEADS) for ids in IDS])
    apart = np.abs(scores[..., :VOCABULARY] - expected).mean() / expected.std()
    assert apart < (3e-6 if dtype == "float32" else 0.03)  # a wrong scale, order or bias is at 0.1 and above


def test_only_the_positions_of_the_context_are_taken(loaded):
    model = loaded(length=16)
    np.testing.assert_array_equal(model.positions.weight.numpy(), CHECKPOINT["wpe.weight"][:16])


def test_causal_masks_and_the_head_may_be_in_the_file(loaded):
    masks = {"h.0.attn.bias": np.ones((1, 1, 64, 64), np.float32), "h.1.attn.masked_bias": np.float32(-1e4)[None]}
    model = loaded({**CHECKPOINT, **masks, "lm_head.weight": CHECKPOINT["wte.weight"]})
    np.testing.assert_array_equal(model.tokens.weight.numpy()[:VOCABULARY], CHECKPOINT["wte.weight"])


WRONG = {
    "another size": (random_checkpoint(3, 32, 64, VOCABULARY), "(96,) does not fit (192,)"),
    "more layers": (random_checkpoint(3, 64, 64, VOCABULARY), "h.2.attn.c_attn.bias (192,): no such place"),
    "one is missing": ({k: v for k, v in CHECKPOINT.items() if k != "h.1.ln_2.bias"}, "nothing for body.layers.1.norm2.bias"),
    "another name": ({**CHECKPOINT, "h.0.attn.c_attn.scale": np.ones(3, np.float32)}, "c_attn.scale (3,): no such place"),
    "transposed": (
        {**CHECKPOINT, "h.0.mlp.c_fc.weight": CHECKPOINT["h.0.mlp.c_fc.weight"].T}, "(256, 64) does not fit (64, 256)",
    ),
    "integers": ({**CHECKPOINT, "ln_f.bias": np.ones(64, np.int32)}, "ln_f.bias: int32 (64,) does not fit"),
    "fewer positions": ({**CHECKPOINT, "wpe.weight": CHECKPOINT["wpe.weight"][:9]}, "(9, 64) does not fit (64, 64)"),
    "another head": ({**CHECKPOINT, "lm_head.weight": CHECKPOINT["wte.weight"] + 1}, "lm_head.weight is not wte.weight"),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "said"), WRONG.values(), ids=WRONG)
def test_a_file_of_another_model_is_refused(loaded, arrays, said):
    with pytest.raises(ValueError) as error:
        loaded(arrays)
    assert said in str(error.value)


def test_a_vocabulary_of_another_size_is_refused(loaded):
    with pytest.raises(ValueError, match=r"wte.weight: float32 \(300, 64\) does not fit \(256, 64\)"):
        loaded(vocabulary=256)


def test_what_is_no_safetensors_file_is_refused(gpt2, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    model = gpt2[0].Gpt2Config("tiny", 256, 64).init(rt.Cpu())
    with pytest.raises(RecorderError, match="not a valid safetensors file"):
        gpt2[1].load_weights(model, tmp_path / "x.safetensors", 256)


def test_how_it_starts(gpt2):
    rt.random.seed(0)
    model = gpt2[0].Gpt2Config("tiny", 256, 64).init(rt.Cpu())
    assert model.padding is None and model.num_params() == 256 * 64 + 64 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64
    for path, p in model.named_params():
        values = p.numpy()
        if "norm" in path and path.endswith("weight"):
            assert (values == 1).all()
        elif path.endswith("bias"):
            assert (values == 0).all() and not np.signbit(values).any()
        else:
            leads_back = path.endswith(("self_attn.out.weight", "linear2.weight"))
            assert values.std() == pytest.approx(0.02 / (2.0 if leads_back else 1.0), rel=0.05), path


def test_the_operations_of_a_step_are_those_of_its_matrix_products(gpt2):
    done = 0

    def counting(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal done
        done += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    places = 24
    forward(random_checkpoint(2, 64, 64, 384), np.arange(places), HEADS, product=counting)
    config = gpt2[0].Gpt2Config("tiny", VOCABULARY, 64)
    assert config.rows == 384 and config.flops_per_token(places) == 3 * done / places
    assert gpt2[0].Gpt2Config("124M", 50257, 1024).flops_per_token(1024) == 854_654_976


def test_what_it_writes_does_not_depend_on_the_cache(gpt2, loaded):
    write, model = gpt2[0].write, loaded(length=16)
    ids = rt.tensor(IDS[:1, :16], device=rt.Cpu())
    whole, cache = model(ids).numpy(), model.body.empty_cache()
    for i in range(16):
        scores, cache = model(ids[:, i : i + 1], cache)
        np.testing.assert_allclose(scores.numpy()[:, 0], whole[:, i], rtol=1e-4, atol=1e-4)
    settings = {"vocabulary": VOCABULARY, "temperature": 1.0}
    for prompt in (IDS[0, :3], IDS[0]):  # the cache of 16 places is filled several times; the second fills it at once
        found = write(model, prompt, 40, seed=3, **settings)
        assert found.shape == (40,) and 0 <= found.min() <= found.max() < VOCABULARY
        assert found.tolist() == write(model, prompt, 40, seed=3, **settings).tolist()
        assert found.tolist() != write(model, prompt, 40, seed=4, **settings).tolist()


def test_temperature_and_top_k(gpt2):
    pick, scores = gpt2[0].pick, np.log([0.1, 0.4, 0.2, 0.3])
    keys = [rt.random.fold_in(rt.random.key(0), i) for i in range(2000)]
    assert {pick(scores, key, 0.0, None) for key in keys[:20]} == {1} == {pick(scores, key, 1.0, 1) for key in keys[:20]}
    assert {pick(scores, key, 1.0, 2) for key in keys[:50]} == {1, 3}
    counts = np.bincount([pick(scores, key, 1.0, None) for key in keys], minlength=4) / len(keys)
    np.testing.assert_allclose(counts, np.exp(scores), atol=4 * math.sqrt(0.25 / len(keys)))
    cold = np.bincount([pick(scores, key, 0.5, None) for key in keys], minlength=4) / len(keys)
    np.testing.assert_allclose(cold, np.exp(2 * scores) / np.exp(2 * scores).sum(), atol=4 * math.sqrt(0.25 / len(keys)))
