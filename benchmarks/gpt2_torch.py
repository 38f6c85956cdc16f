"""GPT-2 in PyTorch, written by hand around its fused attention, as nanoGPT is: the peers of benchmarks/gpt2.py."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

PEERS = ["torch eager, bf16 parameters", "torch.compile, autocast bf16"]
ROWS = 50304


def torch_model(layers: int, heads: int, width: int, length: int) -> Any:
    """The model, which returns the mean loss of ids and targets."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(ROWS, width), nn.Embedding(length, width)
            self.body = nn.Sequential(*[Block() for _ in range(layers)], nn.LayerNorm(width))
            self.head = nn.Linear(width, ROWS, bias=False)
            self.head.weight = self.tokens.weight
            for p in self.parameters():
                nn.init.normal_(p, 0.0, 0.02) if p.ndim > 1 else None

        def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            scores = self.head(self.body(x))
            return F.cross_entropy(scores.view(-1, ROWS).float(), targets.view(-1))

    return Gpt2()


def torch_step(name: str, size: Any, batch: int, length: int) -> tuple[Callable[[], Any], int]:
    """The training step of one of PEERS: fused AdamW, the global norm clipped at 1; and how many parameters it has."""
    import torch

    torch.manual_seed(0)
    ids, targets = (torch.randint(0, 50257, (batch, length), device="cuda") for _ in range(2))
    model = torch_model(size.layers, size.heads, size.width, length).to("cuda")
    if "parameters" in name:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run: Any = torch.compile(model) if "compile" in name else model

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled="autocast" in name):
            loss = run(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step, sum(p.numel() for p in model.parameters())
