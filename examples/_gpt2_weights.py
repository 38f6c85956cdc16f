"""GPT-2's published weights, from a safetensors file with the names of Hugging Face's checkpoints."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from _gpt2_model import Gpt2

import ruda_tensor as rt
from ruda_nn import Param
from ruda_record import read_safetensors

OUTSIDE = {"wte.weight": "tokens.weight", "wpe.weight": "positions.weight", "ln_f": "body.norm"}
INSIDE = {
    "ln_1": "norm1", "attn.c_attn": "self_attn.in_proj", "attn.c_proj": "self_attn.out", "ln_2": "norm2",
    "mlp.c_fc": "feed_forward.linear1", "mlp.c_proj": "feed_forward.linear2",
}  # fmt: skip
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # old checkpoints hold their causal mask
LAYER = re.compile(r"h\.(\d+)\.(.+)\.(weight|bias)")


def our_path(name: str) -> str | None:
    """The path in `Gpt2` of a name in the file; None where there is none."""
    found = LAYER.fullmatch(name)
    if found and found[2] in INSIDE:
        return f"body.layers.{found[1]}.{INSIDE[found[2]]}.{found[3]}"
    part, _, kind = name.rpartition(".")
    return OUTSIDE.get(name) or (f"{OUTSIDE[part]}.{kind}" if part in OUTSIDE and kind in ("weight", "bias") else None)


def load_weights(model: Gpt2, path: Path, vocabulary: int) -> Gpt2:
    """Return the model with the weights of a file, in its own dtype; the prefix "transformer." may be there or not.

    Matrices lie in these files as here, [in, out]. Rows that fill up the table of tokens become 0, and positions beyond
    the model's are left out.
    Errors: ValueError for a file of another model; RecorderError for one that is damaged; ImportError without safetensors.
    """
    arrays = {name.removeprefix("transformer."): array for name, array in read_safetensors(path).items()}
    head = arrays.pop("lm_head.weight", None)
    if head is not None and not np.array_equal(head, arrays.get("wte.weight", head[:0])):
        raise ValueError(f"{path}: lm_head.weight is not wte.weight; GPT-2's output head is its table of tokens")
    params = dict(model.named_params())
    found, problems = {}, []
    for name, array in arrays.items():
        if MASKS.fullmatch(name):
            continue
        ours = our_path(name)
        if ours not in params:
            problems.append(f"{name} {array.shape}: no such place")
            continue
        fitted = _fit(name, array, params[ours].shape, vocabulary)
        if fitted is None:
            problems.append(f"{name}: {array.dtype} {array.shape} does not fit {params[ours].shape}")
        else:
            found[params[ours].id] = fitted
    known = {our_path(name) for name in arrays}
    problems += [f"nothing for {ours} {p.shape}" for ours, p in params.items() if ours not in known]
    if problems:
        shown = problems[:6] + [f"and {len(problems) - 6} more"] * (len(problems) > 6)
        raise ValueError(
            f"{path} is not of this model ({len(model.body.layers)} layers of {params['tokens.weight'].shape[1]}, "
            f"{vocabulary} tokens); see --model and --tokens:\n  " + "\n  ".join(shown)
        )
    device = model.tokens.weight.device
    return model.map(lambda p: Param(rt.tensor(found[p.id], dtype=p.dtype, device=device), id=p.id))


def _fit(name: str, array: np.ndarray, shape: tuple[int, ...], vocabulary: int) -> np.ndarray | None:
    """The array as a parameter of a shape, in float32; None where it does not fit."""
    if not rt.isdtype(array.dtype, "real floating"):
        return None
    array = array.astype(np.float32)
    if name == "wte.weight" and array.shape == (vocabulary, shape[1]):
        return np.concatenate([array, np.zeros((shape[0] - vocabulary, shape[1]), np.float32)])
    if name == "wpe.weight" and array.ndim == 2 and len(array) >= shape[0]:
        array = array[: shape[0]]
    return array if array.shape == shape else None
