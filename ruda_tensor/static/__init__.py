"""Static graphs: work that is laid out once and then run as often as one likes.

`StaticGraph` is the name of both forms: a plan, which is a list of `GraphOp`, and a captured step.
"""
from __future__ import annotations

from .graph import StaticGraph
from .kinds import GraphOp

__all__ = ["GraphOp", "StaticGraph"]
