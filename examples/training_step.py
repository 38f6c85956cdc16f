"""The training step: forward, backward, update. A linear layer learns y = x W + b.

    python examples/training_step.py
"""
from __future__ import annotations

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig
from ruda_optim import AdamConfig, GradientsParams, Optimizer


def train_step(model: Linear, optimizer: Optimizer, x: rt.Tensor, y: rt.Tensor, learning_rate: float) -> Linear:
    """Return the model after one update; x is [batch, 2], y is [batch, 1]."""
    residual = model(x) - y
    loss = residual.square().mean()
    gradients = GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(learning_rate, model, gradients)


def initialize(device: rt.Device) -> tuple[Linear, Optimizer]:
    """Return a fresh layer that is tracked for gradients, and an optimizer, which keeps the moments between steps."""
    return LinearConfig(2, 1).init(Autodiff(device)), AdamConfig().init()


def main() -> None:
    device = rt.default_device()
    rt.random.seed(0)
    model, optimizer = initialize(device)
    true_weight = rt.tensor([[1.5], [-2.0]], device=device)
    for _ in range(400):
        x = rt.random.normal((16, 2), device=device)
        model = train_step(model, optimizer, x, x @ true_weight + 0.5, 5e-2)
    print(f"weight {model.weight.numpy().ravel().round(3)}, wanted [ 1.5 -2. ]")
    print(f"bias   {model.bias.numpy().round(3)}, wanted [0.5]")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
