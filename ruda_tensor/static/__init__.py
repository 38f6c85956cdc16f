"""Static graphs: work that is laid out once, checked once, and then run as often as one likes.

`StaticGraph` is the name of both forms; a plan is a list of `GraphOp`.
"""
from __future__ import annotations

from .graph import StaticGraph
from .kinds import GraphOp

__all__ = ["GraphOp", "StaticGraph"]
