"""Elementwise functions as one kernel: a function is run without numbers, and its expression becomes CUDA source."""
from .function import fuse
from .symbols import FusionError

__all__ = ["FusionError", "fuse"]
