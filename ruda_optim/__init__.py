"""Optimizers, gradients per parameter, accumulation, FP32 masters, schedules and training records."""
from __future__ import annotations

from .configs import AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig
from .gradients import GradientsAccumulator, GradientsParams
from .master import Fp32MasterOptimizer
from .optimizer import Optimizer
from .rules import Adam, AdamW, Rule, Sgd
from .schedules import StepLrScheduler, StepLrSchedulerConfig
from .training import RestoredTraining, TrainingRecord

__all__ = [
    "Adam", "AdamConfig", "AdamW", "AdamWConfig", "Fp32MasterOptimizer", "GradientsAccumulator", "GradientsParams",
    "Optimizer", "OptimizerConfig", "RestoredTraining", "Rule", "Sgd", "SgdConfig", "StepLrScheduler",
    "StepLrSchedulerConfig", "TrainingRecord",
]  # fmt: skip
