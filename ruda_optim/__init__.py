"""Optimizers, gradients per parameter, accumulation, FP32 masters, schedules and training records."""
from __future__ import annotations

from ruda_nn import RecordMismatch

from .clipping import GradientClippingConfig
from .configs import (
    AdaGradConfig,
    AdamConfig,
    AdamWConfig,
    AdanConfig,
    MuonConfig,
    OptimizerConfig,
    RmsPropConfig,
    SgdConfig,
)
from .gradients import GradientsAccumulator, GradientsParams
from .lbfgs import LBFGS, LBFGSConfig
from .master import Fp32MasterOptimizer
from .muon import Muon, orthogonalize
from .optimizer import Optimizer
from .rules import Adam, AdamW, Rule, Sgd
from .rules_adaptive import AdaGrad, Adan, RmsProp
from .schedules import StepLrScheduler, StepLrSchedulerConfig
from .training import RestoredTraining, TrainingRecord

__all__ = [
    "LBFGS", "AdaGrad", "AdaGradConfig", "Adam", "AdamConfig", "AdamW", "AdamWConfig", "Adan", "AdanConfig",
    "Fp32MasterOptimizer", "GradientClippingConfig", "GradientsAccumulator", "GradientsParams", "LBFGSConfig", "Muon",
    "MuonConfig", "Optimizer", "OptimizerConfig", "RecordMismatch", "RestoredTraining", "RmsProp", "RmsPropConfig",
    "Rule", "Sgd", "SgdConfig", "StepLrScheduler", "StepLrSchedulerConfig", "TrainingRecord", "orthogonalize",
]  # fmt: skip
