"""The linear algebra that the array API keeps in the namespace `linalg`: the products."""
from __future__ import annotations

from .ops.matmul import matmul, outer, tensordot, vecdot
from .ops.shape import matrix_transpose

__all__ = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]
