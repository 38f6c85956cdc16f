"""Modules, parameters, initializers, layers and losses."""
from __future__ import annotations

from .config import Config
from .initializers import Constant, Initializer, KaimingNormal, KaimingUniform, Normal, Uniform, XavierUniform
from .linear import Linear, LinearConfig
from .losses import CrossEntropyLoss, CrossEntropyLossConfig
from .module import Module
from .param import Param
from .records import RecordMismatch

__all__ = [
    "Config", "Constant", "CrossEntropyLoss", "CrossEntropyLossConfig", "Initializer", "KaimingNormal",
    "KaimingUniform", "Linear", "LinearConfig", "Module", "Normal", "Param", "RecordMismatch",
    "Uniform", "XavierUniform",
]  # fmt: skip
