"""Optimizers and their groups, gradients per parameter, clipping, FP32 masters, loss scaling, schedules, training records."""
from __future__ import annotations

from ruda_nn import RecordMismatch

from .clipping import GradientClippingConfig, clip_by_global_norm, clip_by_norm, clip_by_value
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
from .fused_adamw import FusedAdamW
from .gradient_stats import StatisticsPlan, statistics_plan
from .gradients import GradientsAccumulator, GradientsParams, GradientsRecord
from .groups import ParamGroup
from .lbfgs import LBFGS, LBFGSConfig
from .master import Fp32MasterOptimizer
from .muon import Muon, orthogonalize
from .muon_adamw import MuonAdamW, MuonAdamWConfig
from .optimizer import Optimizer
from .rules import Adam, AdamW, Rule, Sgd
from .rules_adaptive import AdaGrad, Adan, RmsProp
from .scaler import GradScaler
from .schedules import (
    ComposedLrSchedulerConfig,
    ConstantLrSchedulerConfig,
    LrScheduler,
    LrSchedulerConfig,
    StepLrScheduler,
    StepLrSchedulerConfig,
    WarmupLrSchedulerConfig,
)
from .schedules_decay import (
    CosineAnnealingLrSchedulerConfig,
    ExponentialLrSchedulerConfig,
    LinearLrSchedulerConfig,
    NoamLrSchedulerConfig,
)
from .training import RestoredTraining, TrainingRecord

__all__ = [
    "LBFGS", "AdaGrad", "AdaGradConfig", "Adam", "AdamConfig", "AdamW", "AdamWConfig", "Adan", "AdanConfig",
    "ComposedLrSchedulerConfig", "ConstantLrSchedulerConfig", "CosineAnnealingLrSchedulerConfig",
    "ExponentialLrSchedulerConfig", "Fp32MasterOptimizer", "FusedAdamW", "GradScaler", "GradientClippingConfig",
    "GradientsAccumulator", "GradientsParams", "GradientsRecord", "LBFGSConfig", "LinearLrSchedulerConfig", "LrScheduler",
    "LrSchedulerConfig", "Muon", "MuonAdamW", "MuonAdamWConfig", "MuonConfig", "NoamLrSchedulerConfig", "Optimizer",
    "OptimizerConfig", "ParamGroup", "RecordMismatch", "RestoredTraining", "RmsProp", "RmsPropConfig", "Rule", "Sgd",
    "SgdConfig", "StatisticsPlan", "StepLrScheduler", "StepLrSchedulerConfig", "TrainingRecord",
    "WarmupLrSchedulerConfig", "clip_by_global_norm", "clip_by_norm", "clip_by_value", "orthogonalize", "statistics_plan",
]  # fmt: skip
