"""Static graphs: work that is laid out once and then run as often as one likes."""
from __future__ import annotations

from .step import CapturedStep as StaticGraph

__all__ = ["StaticGraph"]
