"""Mixed storage: parameters in bfloat16, the optimizer's masters and the accumulated gradients in float32.

    python examples/mixed_storage.py
"""
from __future__ import annotations

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig
from ruda_optim import AdamWConfig, Fp32MasterOptimizer, GradientsAccumulator, GradientsParams, Optimizer
from ruda_tensor import FloatDType

SCALE = 1024.0  # the loss is multiplied by it, so that small gradients do not vanish in half precision


def initialize_master(device: rt.Device) -> tuple[Linear, Optimizer]:
    """Return a layer stored in bfloat16, and AdamW over float32 masters, which undoes the scale."""
    model = LinearConfig(2, 1).init(Autodiff(device)).to_dtype(FloatDType.BF16)
    return model, Fp32MasterOptimizer(AdamWConfig().build()).with_gradient_scale(SCALE).init()


def train_window(model: Linear, optimizer: Optimizer, x: rt.Tensor, y: rt.Tensor, lr: float, parts: int = 2) -> Linear:
    """Return the model after one update; the sums over micro-batches are in float32."""
    accumulator, size = GradientsAccumulator(), x.shape[0] // parts
    for i in range(parts):
        rows = slice(i * size, (i + 1) * size)
        residual = model(x[rows].astype(rt.bfloat16)).astype(rt.float32) - y[rows]
        gradients = GradientsParams.from_grads((residual.square().mean() * (SCALE / parts)).backward(), model)
        accumulator.accumulate_with_dtype(model, gradients, FloatDType.F32)
    return optimizer.step(lr, model, accumulator.grads())


def main() -> None:
    device = rt.default_device()
    rt.random.seed(0)
    model, optimizer = initialize_master(device)
    true_weight = rt.tensor([[1.5], [-2.0]], device=device)
    for _ in range(400):
        x = rt.random.normal((16, 2), device=device)
        model = train_window(model, optimizer, x, x @ true_weight + 0.5, 2e-2)
    master = optimizer.states[model.weight.id]["master"]
    print(f"stored {model.weight.dtype}: {model.weight.astype(rt.float32).numpy().ravel()}, wanted [ 1.5 -2. ]")
    print(f"master {master.dtype}:  {master.ravel().tolist()}")


if __name__ == "__main__":
    main()
