"""Tensors on NumPy and CuPy: arrays, devices, dtypes and differentiable operations, named by the Python array API.

`x.__array_namespace__()` is this module. The tape that records operations is in `ruda_autodiff`.
"""
from __future__ import annotations

import sys as _sys

from . import methods as _methods
from . import random
from .backend import NoUsableGpu
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
from .inspection import *  # noqa: F403
from .ops.activation import *  # noqa: F403
from .ops.arithmetic import *  # noqa: F403
from .ops.attention import *  # noqa: F403
from .ops.bitwise import *  # noqa: F403
from .ops.compare import *  # noqa: F403
from .ops.conv import *  # noqa: F403
from .ops.dropout import *  # noqa: F403
from .ops.einsum import *  # noqa: F403
from .ops.index import *  # noqa: F403
from .ops.join import *  # noqa: F403
from .ops.loss import *  # noqa: F403
from .ops.matmul import *  # noqa: F403
from .ops.norm import *  # noqa: F403
from .ops.pool import *  # noqa: F403
from .ops.reduce import *  # noqa: F403
from .ops.resample import *  # noqa: F403
from .ops.scan import *  # noqa: F403
from .ops.shape import *  # noqa: F403
from .ops.softmax import *  # noqa: F403
from .ops.sort import *  # noqa: F403
from .ops.transcendental import *  # noqa: F403
from .tensor import Tensor

e, inf, nan, newaxis, pi = 2.718281828459045, float("inf"), float("nan"), None, 3.141592653589793
__array_api_version__ = "2024.12"

_methods._F = _sys.modules[__name__]
