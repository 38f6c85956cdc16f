"""Modules, parameters, buffers, initializers, layers, losses, data loading, and checkpoints from and to PyTorch."""
from __future__ import annotations

from .activation import (
    Celu,
    Elu,
    Gelu,
    HardShrink,
    HardSigmoid,
    HardSwish,
    HardTanh,
    LeakyRelu,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PRelu,
    PReluConfig,
    Relu,
    Relu6,
    Selu,
    Sigmoid,
    Silu,
    Softmax,
    Softplus,
    SoftShrink,
    Softsign,
    Tanh,
    ThresholdedRelu,
)
from .attention import MultiHeadAttention, MultiHeadAttentionConfig
from .buffers import Buffer
from .cache import DecoderCache, KeyValueCache
from .config import Config
from .conv import Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig
from .creation import Creation
from .data import ArrayDataset, DataLoader, WindowDataset
from .dropout import Dropout, DropoutConfig
from .dtype_record import ModuleDTypeRecord
from .embedding import Embedding, EmbeddingConfig
from .exchange import LoadReport, load_module, load_safetensors, save_module, save_safetensors
from .gated import Glu, SwiGlu, SwiGluConfig, silu_mul
from .initializers import (
    Constant,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Normal,
    Ones,
    Orthogonal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
)
from .linear import Linear, LinearConfig
from .losses import (
    CosineEmbeddingLoss,
    CosineEmbeddingLossConfig,
    HuberLoss,
    HuberLossConfig,
    L1Loss,
    L1LossConfig,
    MseLoss,
    MseLossConfig,
    PoissonNllLoss,
    PoissonNllLossConfig,
    SmoothL1Loss,
    SmoothL1LossConfig,
)
from .losses_classes import (
    BinaryCrossEntropyLoss,
    BinaryCrossEntropyLossConfig,
    CrossEntropyLoss,
    CrossEntropyLossConfig,
    KlDivLoss,
    KlDivLossConfig,
)
from .losses_sequences import CtcLoss, CtcLossConfig
from .module import Module
from .norm import (
    BatchNorm,
    BatchNormConfig,
    GroupNorm,
    GroupNormConfig,
    InstanceNorm,
    InstanceNormConfig,
    LayerNorm,
    LayerNormConfig,
    RmsNorm,
    RmsNormConfig,
)
from .param import Param
from .pool import (
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dConfig,
    AvgPool1d,
    AvgPool1dConfig,
    AvgPool2d,
    AvgPool2dConfig,
    MaxPool1d,
    MaxPool1dConfig,
    MaxPool2d,
    MaxPool2dConfig,
)
from .positions import Rotary, RotaryConfig, SinusoidalPositions, SinusoidalPositionsConfig
from .records import RecordMismatch
from .rnn import Gru, GruConfig, Lstm, LstmConfig, Rnn, RnnConfig
from .sequential import Flatten, Identity, Sequential, SequentialConfig
from .transformer import (
    TransformerDecoder,
    TransformerDecoderConfig,
    TransformerDecoderLayer,
    TransformerDecoderLayerConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
    TransformerEncoderLayer,
    TransformerEncoderLayerConfig,
)

__all__ = [
    "AdaptiveAvgPool2d", "AdaptiveAvgPool2dConfig", "ArrayDataset", "AvgPool1d", "AvgPool1dConfig", "AvgPool2d",
    "AvgPool2dConfig", "BatchNorm", "BatchNormConfig", "BinaryCrossEntropyLoss", "BinaryCrossEntropyLossConfig",
    "Buffer", "Celu", "Config", "Constant", "Conv1d", "Conv1dConfig", "Conv2d", "Conv2dConfig", "ConvTranspose2d",
    "ConvTranspose2dConfig", "CosineEmbeddingLoss", "CosineEmbeddingLossConfig", "Creation", "CrossEntropyLoss",
    "CrossEntropyLossConfig", "CtcLoss", "CtcLossConfig", "DataLoader", "DecoderCache", "Dropout", "DropoutConfig",
    "Elu", "Embedding", "EmbeddingConfig", "Flatten", "Gelu", "Glu", "GroupNorm", "GroupNormConfig", "Gru",
    "GruConfig", "HardShrink", "HardSigmoid", "HardSwish", "HardTanh", "HuberLoss", "HuberLossConfig", "Identity",
    "Initializer", "InstanceNorm", "InstanceNormConfig", "KaimingNormal", "KaimingUniform", "KeyValueCache",
    "KlDivLoss", "KlDivLossConfig", "L1Loss", "L1LossConfig", "LayerNorm", "LayerNormConfig", "LeakyRelu", "Linear",
    "LinearConfig", "LoadReport", "LogSigmoid", "LogSoftmax", "Lstm", "LstmConfig", "MaxPool1d", "MaxPool1dConfig",
    "MaxPool2d", "MaxPool2dConfig", "Mish", "Module", "ModuleDTypeRecord", "MseLoss", "MseLossConfig",
    "MultiHeadAttention", "MultiHeadAttentionConfig", "Normal", "Ones", "Orthogonal", "PRelu", "PReluConfig", "Param",
    "PoissonNllLoss", "PoissonNllLossConfig", "RecordMismatch", "Relu", "Relu6", "RmsNorm", "RmsNormConfig", "Rnn",
    "RnnConfig", "Rotary", "RotaryConfig", "Selu", "Sequential", "SequentialConfig", "Sigmoid", "Silu",
    "SinusoidalPositions", "SinusoidalPositionsConfig", "SmoothL1Loss", "SmoothL1LossConfig", "SoftShrink", "Softmax",
    "Softplus", "Softsign", "SwiGlu", "SwiGluConfig", "Tanh", "ThresholdedRelu", "TransformerDecoder",
    "TransformerDecoderConfig", "TransformerDecoderLayer", "TransformerDecoderLayerConfig", "TransformerEncoder",
    "TransformerEncoderConfig", "TransformerEncoderLayer", "TransformerEncoderLayerConfig", "Uniform",
    "WindowDataset", "XavierNormal", "XavierUniform", "Zeros", "load_module", "load_safetensors", "save_module",
    "save_safetensors", "silu_mul",
]  # fmt: skip
