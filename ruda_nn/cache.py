"""What decoding step by step remembers: the keys and values of the positions that came before."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ruda_tensor as rt


class KeyValueCache(NamedTuple):
    """The keys and values of one attention layer, [batch, n_kv_heads, length, d_head] each; empty at the start.

    It is a value: `append` returns a longer cache and leaves this one as it was, so that a search may branch from it.
    A step reads all keys anyway, and the copy that appending makes costs about as much as that. Batch entries are
    picked by `map`, for a beam search `cache.map(lambda x: rt.take(x, beams, axis=0))`.

    >>> cache = KeyValueCache()
    >>> new = rt.ones((1, 2, 3, 4), device=rt.Cpu())
    >>> cache.length, cache.append(new, new).append(new, new).length
    (0, 6)
    """

    k: rt.Tensor | None = None
    v: rt.Tensor | None = None

    @property
    def length(self) -> int:
        """The number of positions held."""
        return 0 if self.k is None else self.k.shape[2]

    def held(self) -> tuple[rt.Tensor, rt.Tensor]:
        """Return the keys and values of a cache that is not empty."""
        assert self.k is not None and self.v is not None
        return self.k, self.v

    def append(self, k: rt.Tensor, v: rt.Tensor) -> KeyValueCache:
        """Return the cache with the keys and values of further positions at its end."""
        if self.k is None or self.v is None:
            return KeyValueCache(k, v)
        old, new = self.k.shape, k.shape
        if len(old) != len(new) or old[:2] != new[:2] or old[3] != new[3]:
            raise ValueError(
                f"KeyValueCache: holds keys {old}, and {new} do not fit behind them; only the length (axis 2) may differ. "
                "A new sequence starts with a new cache: KeyValueCache()"
            )
        return KeyValueCache(rt.concat([self.k, k], axis=2), rt.concat([self.v, v], axis=2))

    def map(self, function: Callable[[rt.Tensor], rt.Tensor]) -> KeyValueCache:
        """Return the cache with both tensors replaced by `function(tensor)`; an empty one stays empty."""
        return KeyValueCache(*[x if x is None else function(x) for x in self])


class DecoderCache(NamedTuple):
    """What one decoder layer remembers: its own keys and values, and those of the memory, computed once.

    >>> DecoderCache().self_attn.length
    0
    """

    self_attn: KeyValueCache = KeyValueCache()
    cross_attn: KeyValueCache = KeyValueCache()
