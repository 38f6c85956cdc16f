"""Tensors on NumPy and CuPy: arrays, devices, dtypes and differentiable operations, named by the Python array API.

`x.__array_namespace__()` is this module. The tape that records operations is in `ruda_autodiff`.
"""
from __future__ import annotations

import sys as _sys

from . import creation, inspection, linalg, random
from . import methods as _methods
from .backend import NoUsableGpu
from .backend import keep_host_memory as _keep_host_memory
from .creation import *  # noqa: F403
from .devices import Cpu, Cuda, CudaDevice, Device, default_device, set_default_device
from .dtypes import BFLOAT16 as bfloat16
from .dtypes import BOOL as bool  # noqa: A004
from .dtypes import FLOAT16 as float16
from .dtypes import FLOAT32 as float32
from .dtypes import FLOAT64 as float64
from .dtypes import INT8 as int8
from .dtypes import INT16 as int16
from .dtypes import INT32 as int32
from .dtypes import INT64 as int64
from .dtypes import UINT8 as uint8
from .dtypes import UINT16 as uint16
from .dtypes import UINT32 as uint32
from .dtypes import UINT64 as uint64
from .dtypes import FloatDType
from .fusion import fuse
from .inspection import *  # noqa: F403
from .kernels.gate import use_fused
from .kernels.gemm import use_tf32
from .kernels.launch import KernelError
from .ops import activation as _activation
from .ops import arithmetic as _arithmetic
from .ops import attention as _attention
from .ops import bitwise as _bitwise
from .ops import compare as _compare
from .ops import conv as _conv
from .ops import cross_entropy as _cross_entropy
from .ops import ctc as _ctc
from .ops import dropout as _dropout
from .ops import einsum as _einsum
from .ops import feed_forward as _feed_forward
from .ops import gated as _gated
from .ops import index as _index
from .ops import join as _join
from .ops import loss as _loss
from .ops import matmul as _matmul
from .ops import norm as _norm
from .ops import pool as _pool
from .ops import reduce as _reduce
from .ops import resample as _resample
from .ops import residual as _residual
from .ops import rotary as _rotary
from .ops import scan as _scan
from .ops import sets as _sets
from .ops import shape as _shape
from .ops import softmax as _softmax
from .ops import sort as _sort
from .ops import statistics as _statistics
from .ops import transcendental as _transcendental
from .ops.activation import *  # noqa: F403
from .ops.arithmetic import *  # noqa: F403
from .ops.attention import *  # noqa: F403
from .ops.bitwise import *  # noqa: F403
from .ops.compare import *  # noqa: F403
from .ops.conv import *  # noqa: F403
from .ops.cross_entropy import *  # noqa: F403
from .ops.ctc import *  # noqa: F403
from .ops.dropout import *  # noqa: F403
from .ops.einsum import *  # noqa: F403
from .ops.feed_forward import *  # noqa: F403
from .ops.gated import *  # noqa: F403
from .ops.index import *  # noqa: F403
from .ops.join import *  # noqa: F403
from .ops.loss import *  # noqa: F403
from .ops.matmul import *  # noqa: F403
from .ops.norm import *  # noqa: F403
from .ops.pool import *  # noqa: F403
from .ops.reduce import *  # noqa: F403
from .ops.resample import *  # noqa: F403
from .ops.residual import *  # noqa: F403
from .ops.rotary import *  # noqa: F403
from .ops.scan import *  # noqa: F403
from .ops.sets import *  # noqa: F403
from .ops.shape import *  # noqa: F403
from .ops.softmax import *  # noqa: F403
from .ops.sort import *  # noqa: F403
from .ops.statistics import *  # noqa: F403
from .ops.transcendental import *  # noqa: F403
from .recording import CaptureError
from .static import GraphOp, StaticGraph
from .tensor import Tensor

from .creation import tensor  # isort: skip  (the submodule of that name is not meant)

__all__ = [
    "CaptureError", "Cpu", "Cuda", "CudaDevice", "Device", "FloatDType", "GraphOp", "KernelError", "NoUsableGpu",
    "StaticGraph", "Tensor", "bfloat16", "bool", "default_device", "e", "float16", "float32", "float64", "fuse", "inf",
    "int8", "int16", "int32", "int64", "linalg", "nan", "newaxis", "pi", "random", "set_default_device", "uint8", "uint16",
    "uint32", "uint64", "use_fused", "use_tf32",
]  # fmt: skip
__all__ += creation.__all__
__all__ += inspection.__all__
__all__ += _activation.__all__
__all__ += _arithmetic.__all__
__all__ += _attention.__all__
__all__ += _bitwise.__all__
__all__ += _compare.__all__
__all__ += _conv.__all__
__all__ += _cross_entropy.__all__
__all__ += _ctc.__all__
__all__ += _dropout.__all__
__all__ += _einsum.__all__
__all__ += _feed_forward.__all__
__all__ += _gated.__all__
__all__ += _index.__all__
__all__ += _join.__all__
__all__ += _loss.__all__
__all__ += _matmul.__all__
__all__ += _norm.__all__
__all__ += _pool.__all__
__all__ += _reduce.__all__
__all__ += _resample.__all__
__all__ += _residual.__all__
__all__ += _rotary.__all__
__all__ += _scan.__all__
__all__ += _sets.__all__
__all__ += _shape.__all__
__all__ += _softmax.__all__
__all__ += _sort.__all__
__all__ += _statistics.__all__
__all__ += _transcendental.__all__

e, inf, nan, newaxis, pi = 2.718281828459045, float("inf"), float("nan"), None, 3.141592653589793
__array_api_version__ = "2024.12"

_methods._F = _sys.modules[__name__]
_keep_host_memory()
