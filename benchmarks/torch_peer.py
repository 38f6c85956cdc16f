"""The workloads in PyTorch, as its users write them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .char_gpt import torch_model, window
from .inputs import ADAMW, CHAIN, CONV, LAYERS, batch, normal, rows
from .measure import Run, Trained

torch.backends.cudnn.allow_tf32 = False  # as everything else here: full float32


def about() -> str:
    """The version and the number of threads."""
    return f"torch {torch.__version__}, {torch.get_num_threads()} threads"


def make_mlp(device: str) -> nn.Module:
    parts: list[nn.Module] = []
    for a, b in LAYERS:
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).to(device)


def chain(device: str) -> Run:
    leaf = torch.tensor(normal(8, 8), device=device, requires_grad=True)

    def run() -> Any:
        y = leaf
        for _ in range(CHAIN // 2):
            y = y * 1.001 + 0.001
        return torch.autograd.grad(y.sum(), leaf)

    return run


def _trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], fused: bool, kind: Any = torch.optim.Adam) -> Run:
    optimizer = kind(model.parameters(), lr=1e-3, fused=fused or None)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()

    return Trained(run, _size(model))


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def mlp(device: str, fused: bool = False) -> Run:
    model, (x, classes) = make_mlp(device), [torch.tensor(a, device=device) for a in batch()]
    return _trained(model, lambda: F.cross_entropy(model(x), classes), fused)


def mlp_graph(device: str) -> Run:
    """The whole step captured once and replayed."""
    model, (x, classes) = make_mlp(device), [torch.tensor(a, device=device) for a in batch()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True, fused=True)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), classes).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(held: Any = (model, x, classes, optimizer)) -> None:  # the graph does not keep its inputs alive
        graph.replay()

    return Trained(replay, _size(model))


def linear(device: str, fused: bool = False) -> Run:
    model = nn.Linear(2, 1).to(device)
    x, y = torch.tensor(normal(32, 2), device=device), torch.tensor(normal(32, 1), device=device)
    return _trained(model, lambda: (model(x) - y).square().mean(), fused)


def char_gpt(device: str) -> Run:
    model, (ids, following) = torch_model(device), [torch.tensor(a, device=device) for a in window()]
    return _trained(
        model, lambda: F.cross_entropy(model(ids).flatten(0, 1), following.flatten()), True, torch.optim.AdamW
    )


def adamw(device: str) -> Run:
    weight = torch.tensor(normal(ADAMW), device=device, requires_grad=True)
    weight.grad = torch.tensor(normal(ADAMW, seed=1), device=device)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    return lambda: optimizer.step()


def _pulled(function: Callable, cotangent: torch.Tensor, *inputs: torch.Tensor) -> Run:
    leaves = [x.requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent)


def _row_inputs(device: str) -> list[torch.Tensor]:
    n, d = rows(device == "cuda")
    return [torch.tensor(a, device=device) for a in (normal(n, d), normal(n, d, seed=1), normal(d), normal(d, seed=1))]


def softmax(device: str) -> Run:
    x, g, _, _ = _row_inputs(device)
    return _pulled(lambda x: F.softmax(x, dim=-1), g, x)


def layer_norm(device: str) -> Run:
    x, g, weight, bias = _row_inputs(device)
    return _pulled(lambda x, w, b: F.layer_norm(x, w.shape, w, b), g, x, weight, bias)


def gelu(device: str) -> Run:
    x, g, _, _ = _row_inputs(device)
    return _pulled(lambda x: F.gelu(x, approximate="tanh"), g, x)


def conv2d(device: str) -> Run:
    x, weight, g = [torch.tensor(normal(*shape, seed=i), device=device) for i, shape in enumerate(CONV)]
    return _pulled(lambda x, w: F.conv2d(x, w, padding=1), g, x, weight)


def workloads(device: str) -> dict[str, dict[str, Callable[[], Run]]]:
    """Case -> candidate -> what makes it."""
    found: dict[str, dict[str, Callable[[], Run]]] = {
        f.__name__: {"torch": lambda f=f: f(device)} for f in (chain, softmax, layer_norm, gelu, conv2d)
    }
    for f in (mlp, linear):
        found[f.__name__] = {"torch": lambda f=f: f(device), "torch fused Adam": lambda f=f: f(device, fused=True)}
    if device == "cuda":
        found["mlp"]["torch CUDA graph"] = lambda: mlp_graph(device)
    found["adamw"] = {"torch fused": lambda: adamw(device)}
    found["char_gpt"] = {"torch fused AdamW": lambda: char_gpt(device)}
    return found


def agreeing(result: Any) -> list:
    """A result as NumPy arrays; see `ours.agreeing`."""
    parts = result if isinstance(result, tuple) else (result,)
    return [p.detach().cpu().numpy() for p in parts if isinstance(p, torch.Tensor)]
