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

from .gpu_cases import Case, inputs, sets, to_torch
from .gpu_rows import report
from .gpu_timing import copy_bandwidth, sets_for

TOKENS, ROWS, WIDTH = 16384, 50304, 768
BATCH, LENGTH, HEADS, HEAD = 16, 1024, 12, 64


def embedding_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    out = []
    for name, n, size, width in (("embedding", TOKENS, ROWS, WIDTH), ("embedding of few rows", 100_000, 7, WIDTH)):
        rows, table = n * width * dtype.itemsize, size * width * dtype.itemsize
        count = sets_for(rows)
        (w,), (g,) = sets(cp, count, (size, width), dtype, 1), sets(cp, count, (n, width), dtype, 1)
        ids = cp.random.randint(0, size, n).astype(np.int64)
        places = to_torch(ids)
        peer = lambda w, places=places: F.embedding(places, w)
        forward = lambda i, w=w, ids=ids: segments.take(cp, w[i], ids, 0)

        def both(i: int, w: Any = w, g: Any = g, ids: Any = ids, size: int = size) -> Any:
            return segments.take(cp, w[i], ids, 0), (segments.accumulate(cp, g[i], ids, size),)

        out += [
            Case(f"{name} forward", forward, 2 * rows, count, (peer, inputs(count, w))),
            Case(f"{name} forward + backward", both, 3 * rows + table, count, (peer, inputs(count, w, g=g))),
        ]
    ids = cp.random.randint(0, ROWS, TOKENS).astype(np.int64)
    return [*out, Case("sorting the ids alone", lambda i: segments.sort_ids(cp, ids, ROWS), 8 * TOKENS, 20)]


def rotary_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch

    nbytes = BATCH * LENGTH * HEADS * HEAD * dtype.itemsize
    count = sets_for(nbytes)
    (x,), (g,) = (sets(cp, count, s, dtype, 1) for s in ((BATCH, LENGTH, HEADS, HEAD), (BATCH, HEADS, LENGTH, HEAD)))
    angles = np.arange(LENGTH)[:, None] / 1e4 ** (np.arange(HEAD // 2) / (HEAD // 2))
    cosines, sines = (cp.asarray(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    c, s = to_torch(cosines), to_torch(sines)

    def peer(x: Any) -> Any:
        a, b = x.permute(0, 2, 1, 3).chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    def forward(i: int) -> Any:
        return rotary.rotary(cp, x[i].transpose(0, 2, 1, 3), cosines, sines, 1)

    def both(i: int) -> Any:
        dx = rotary.rotary(cp, g[i], cosines, sines, -1)
        return forward(i), (dx.transpose(0, 2, 1, 3),)

    return [
        Case("rotary forward", forward, 2 * nbytes, count, (peer, inputs(count, x))),
        Case("rotary forward + backward", both, 4 * nbytes, count, (peer, inputs(count, x, g=g))),
    ]


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
