"""Tables of vectors, looked up by number."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt

from .config import Config, is_whole
from .creation import Creation
from .initializers import Initializer, Normal, require_initializer
from .module import Module
from .param import Param


class Embedding(Module):
    """y[...] = weight[ids[...]]: ids of integers in [0, n) or, as in Python, from the end; weight (n, d); y (..., d).

    The row `padding_idx` is looked up like any other, whatever is stored there, and the gradient of that look-up is
    exactly 0. Without weight decay it therefore never changes. Decoupled weight decay shrinks every row of a parameter
    that has a gradient, this one as well; a row of zeros stays one. Leave decay off tables where it should stay as loaded.

    Errors: IndexError for an id out of range; TypeError for ids that are no integers.

    >>> table = EmbeddingConfig(10, 4).init(rt.Cpu())
    >>> table(rt.tensor([[1, 2, 9]], device=rt.Cpu())).shape
    (1, 3, 4)
    """

    weight: Param
    padding_idx: int | None = None

    def forward(self, ids: rt.Tensor) -> rt.Tensor:
        y = rt.take(self.weight, ids, axis=0)
        if self.padding_idx is None or not y.is_require_grad():
            return y
        n = self.weight.shape[0]
        row = self.padding_idx % n
        ids = rt.asarray(ids, device=y.device)
        padding = rt.expand_dims((ids == row) | (ids == row - n), axis=-1)
        return rt.where(padding, y.detach(), y)

    def attend(self, x: rt.Tensor) -> rt.Tensor:
        """Return the scores x weight^T of every row: x (..., d), result (..., n). A tied output head.

        The table is then one parameter with one gradient, the sum of both uses. As a class that may be predicted the
        padding row does get a gradient here, as in PyTorch.
        """
        return rt.matmul(x, rt.matrix_transpose(self.weight))


class EmbeddingConfig(Config):
    """Settings of `Embedding`: sizes, `padding_idx` (None; may be negative), and `initializer` (N(0, 1)).

    The initializer fills all rows but the padding row, which starts at 0.

    Errors: ValueError at `init` for a setting out of its range, by name.

    >>> EmbeddingConfig(3, 2, padding_idx=-1).init(rt.Cpu()).weight[2].tolist()
    [0.0, 0.0]
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None = None
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> Embedding:
        """Return the layer on a device; on a recording device its table is tracked."""
        self.require_count("num_embeddings", "embedding_dim")
        n, row = self.num_embeddings, self.padding_idx
        self.require(row is None or (is_whole(row) and -n <= row < n), "padding_idx", f"None or an integer in [{-n}, {n})")
        require_initializer(self)
        make = Creation(device)
        weight = make.param(self.initializer or Normal(), (n, self.embedding_dim), n, self.embedding_dim)
        if row is not None:
            row = int(row) % n
            weight = weight.like(rt.slice_assign(weight.detach(), row, 0.0)._data)
        return Embedding(weight=weight, padding_idx=row)
