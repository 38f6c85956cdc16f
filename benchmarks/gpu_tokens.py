"""What happens to tokens besides rows and products: embeddings and rotary positions, timed as `gpu_rows` does.

    python -m benchmarks.gpu_tokens [--no-peers]

The table is GPT-2's, of 50304 rows of 768, and the batch 16 x 1024 tokens; "few rows" are 100,000 ids of 7 rows. The
bytes of a look-up are its rows in and out; of its derivative the incoming rows and the whole table.
"""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels import rotary, segments

from .gpu_rows import Case, copy_bandwidth, leaf, random, report, to_torch

TOKENS, ROWS, WIDTH = 16384, 50304, 768
BATCH, LENGTH, HEADS, HEAD = 16, 1024, 12, 64


def embedding_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    out = []
    for name, n, size, width in (("embedding", TOKENS, ROWS, WIDTH), ("embedding of few rows", 100_000, 7, WIDTH)):
        w, g = random(cp, (size, width), dtype), random(cp, (n, width), dtype)
        ids = cp.random.randint(0, size, n).astype(np.int64)
        peer = lambda w, ids=ids: F.embedding(to_torch(ids), w)

        def both(w: Any = w, g: Any = g, ids: Any = ids, size: int = size) -> Any:
            return segments.take(cp, w, ids, 0), (segments.accumulate(cp, g, ids, size),)

        inputs, look = (leaf(w), to_torch(g)), 2 * g.nbytes
        out += [
            Case(f"{name} forward", lambda w=w, ids=ids: segments.take(cp, w, ids, 0), look, (peer, inputs, False)),
            Case(f"{name} forward + backward", both, look + g.nbytes + w.nbytes, (peer, inputs, True)),
        ]
    ids = cp.random.randint(0, ROWS, TOKENS).astype(np.int64)
    return [*out, Case("sorting the ids alone", lambda: segments.sort_ids(cp, ids, ROWS), 8 * TOKENS)]


def rotary_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch

    x, g = random(cp, (BATCH, LENGTH, HEADS, HEAD), dtype), random(cp, (BATCH, HEADS, LENGTH, HEAD), dtype)
    angles = np.arange(LENGTH)[:, None] / 1e4 ** (np.arange(HEAD // 2) / (HEAD // 2))
    cosines, sines = (cp.asarray(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    c, s = to_torch(cosines), to_torch(sines)

    def peer(x: Any) -> Any:
        a, b = x.permute(0, 2, 1, 3).chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    def both() -> Any:
        dx = rotary.rotary(cp, g, cosines, sines, -1)
        return rotary.rotary(cp, x.transpose(0, 2, 1, 3), cosines, sines, 1), (dx.transpose(0, 2, 1, 3),)

    inputs = leaf(x), to_torch(g)
    return [
        Case("rotary forward", lambda: rotary.rotary(cp, x.transpose(0, 2, 1, 3), cosines, sines, 1), 2 * x.nbytes,
             (peer, inputs, False)),
        Case("rotary forward + backward", both, 4 * x.nbytes, (peer, inputs, True)),
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    rt.Cuda(0)
    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    cp.get_default_memory_pool().free_all_blocks()
    print(f"copy {copy / 1e3:.0f} GB/s\n{'':42s} dtype            us     floor  share  eager compiled    error")
    for dtype in (FLOAT32, BFLOAT16):
        for case in [*embedding_cases(cp, dtype), *rotary_cases(cp, dtype)]:
            report(cp, case, dtype, copy, not options.no_peers)


if __name__ == "__main__":
    main()
