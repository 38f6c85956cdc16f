"""Philox4x32-10, the counter-based generator under every random number, over raw NumPy or CuPy arrays.

A 128-bit counter is encrypted under a 64-bit key by ten rounds of multiplication and exclusive or; there is no other
state, so any number can be computed from where it stands, in any order, on any device.

    counter (c0, c1, c2, c3), key (k0, k1); one round, with p = M0 * c0 and q = M1 * c2 as 64-bit products:
    c0, c1, c2, c3  <-  high(q) ^ c1 ^ k0,  low(q),  high(p) ^ c3 ^ k1,  low(p)
    after each of the first nine rounds:  k0 += W0,  k1 += W1  (mod 2**32)

Layout, fixed for good; kernels that regenerate a draw follow it. A draw is named by (seed, offset), two 64-bit numbers:

    k0, k1 = low and high half of seed
    c0, c1 = low and high half of (offset + b) mod 2**64, for block b = 0, 1, 2, ... of the draw
    c2, c3 = 0, 0 in draws; c3 is 1, 2 or 3 where a seed is derived (`derive`)

Block b yields the draw's 32-bit words 4b, 4b+1, 4b+2, 4b+3, which are c0, c1, c2, c3 after the last round. Elements are
numbered in C (row-major) order, and element e of a draw reads

    one word,   w[e]                             uint32 bits, bernoulli, uniform to float32 / float16 / bfloat16
    one pair,   w[2e] | w[2e+1] << 32            uniform to float64, integers of a range up to 2**32, permutation keys
    two pairs,  a = pair 2e, b = pair 2e+1       integers of a wider range
    Box-Muller: elements e, e+1 (e even) share words w[e], w[e+1]; to float64 they share pairs e, e+1

so element e never depends on how many come after it: a shorter draw is a prefix of a longer one. A draw of n words
uses ceil(n / 4) counters.

Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .recording import refuse_while_capturing

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
FOLD, SPLIT, FORK = 1, 2, 3  # c3 where a seed is derived, so that it never meets the words of a draw
_32, _64 = 2**32, 2**64

# Blocks encrypted at a time. On the host the eight work rows (64 KiB each) stay in the L2 cache; NumPy copies broadcast
# operands of smaller arrays (up to its 8192-element buffer), which halves the speed. On a GPU it only bounds memory.
HOST_BLOCKS = 8192
DEVICE_BLOCKS = 2**22


def round_keys(seed: int) -> list[tuple[int, int]]:
    """Return the key of each round."""
    return [((seed + r * W0) % _32, ((seed >> 32) + r * W1) % _32) for r in range(ROUNDS)]


def philox4x32(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Encrypt one counter: the definition, in plain integers.

    >>> [hex(word) for word in philox4x32((0, 0, 0, 0), seed=0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    for k0, k1 in round_keys(seed):
        p, q = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (q >> 32) ^ c1 ^ k0, q % _32, (p >> 32) ^ c3 ^ k1, p % _32
    return c0, c1, c2, c3


def derive(seed: int, data: int, purpose: int) -> int:
    """Return the 64-bit seed that `data` (64 bits) names under `seed`, for one of FOLD, SPLIT, FORK."""
    c0, c1, _, _ = philox4x32((data % _32, data >> 32, 0, purpose), seed)
    return c0 | c1 << 32


def encrypt(xp: Any, even: Any, work: Any, table: Any) -> Any:
    """Encrypt B counters in place and return them as pairs: row 0 holds c0 | c1 << 32, row 1 holds c2 | c3 << 32.

    `even` (2, B) holds c0 and c2, `work[1]` (2, B) holds c1 and c3, all in uint64 with zero upper halves; `work`
    (2, 2, B) is overwritten. `table` is `round_table(xp, seed)`.
    """
    low = even.view(np.uint32)[:, 0::2]  # only lower halves are written, so the upper ones stay zero for the product
    odd = work[1].view(np.uint32)[:, 0::2]
    for r in range(ROUNDS):
        product = work[r % 2]  # the other one still holds this round's odd words
        xp.multiply(even, table[ROUNDS], out=product)
        halves = product.view(np.uint32)[::-1]  # the two products change places
        xp.bitwise_xor(halves[:, 1::2], odd, out=low)
        xp.bitwise_xor(even, table[r], out=even)
        odd = halves[:, 0::2]
    even.view(np.uint32)[:, 1::2] = odd
    return even


def round_table(xp: Any, seed: int) -> Any:
    """The keys of the ten rounds and then the multipliers, as uint64 columns (11, 2, 1): one transfer to a device."""
    return xp.asarray(np.array([*round_keys(seed), (M0, M1)], np.uint64)[:, :, None])


def blocks(xp: Any, count: int, seed: int, offset: int) -> Iterator[tuple[int, Any]]:
    """Yield (index of the first block, its and the following blocks' words) until `count` blocks are out.

    The words are one contiguous uint32 array in the order of the draw. It is reused: take what you need at once.
    """
    refuse_while_capturing("a random draw", "draw before, and give the numbers to the step as an input; dropout is no draw")
    chunk = HOST_BLOCKS if xp is np else DEVICE_BLOCKS
    table = round_table(xp, seed)
    memory = xp.empty((0, 0), np.uint64)
    for first in range(0, count, chunk):
        size = min(chunk, count - first)
        if memory.shape[1] != size:  # in the first chunk, and in the last where it is smaller
            memory = xp.empty((8, size), np.uint64)
        even, work, words = memory[0:2], memory[2:6].reshape(2, 2, size), memory[6:8].reshape(size, 2)
        position = work[1, 0]
        position[...] = xp.arange(size, dtype=np.uint64)
        xp.add(position, np.uint64((offset + first) % _64), out=position)  # wraps, as the counter does
        xp.bitwise_and(position, np.uint64(_32 - 1), out=even[0])
        xp.right_shift(position, np.uint64(32), out=position)
        even[1] = 0
        work[1, 1] = 0
        words[...] = encrypt(xp, even, work, table).T
        yield first, words.reshape(-1).view(np.uint32)
