"""A plain PyTorch script as people write it: a GPT-2 shape on the characters of one text, AdamW, warm-up and cosine.

It knows nothing of headrace. `bench_from_enter.py` runs it as a whole command:
    python plain_gpt.py TRAIN.txt VALIDATION.txt WEIGHTS.safetensors
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12
STEPS, WARMUP, RATE, LEAST_RATE = 2000, 100, 1e-3, 1e-4
EVALUATE_EVERY, EVALUATION_BATCHES = 250, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        parts = self.qkv(self.norm_1(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(B, T, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(B, T, WIDTH))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class PlainGpt(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if is_residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def draw(tokens: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    places = generator.integers(0, len(tokens) - CONTEXT, BATCH)
    rows = torch.stack([tokens[place : place + CONTEXT + 1] for place in places])
    return rows[:, :-1], rows[:, 1:]


def loss_of(network: PlainGpt, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(network(inputs).flatten(0, 1), targets.flatten())


def main(train_file: str, validation_file: str, weights_file: str) -> None:
    torch.manual_seed(0)
    text, held_out = Path(train_file).read_text(), Path(validation_file).read_text()
    table = {character: number for number, character in enumerate(sorted(set(text + held_out)))}
    tokens, validation = (torch.tensor([table[c] for c in part]) for part in (text, held_out))
    network = PlainGpt(len(table))
    decayed = [parameter for parameter in network.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in network.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99), fused=True)
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                for name, part in (("training", tokens), ("validation", validation)):
                    losses = [loss_of(network, *draw(part, generator)).item() for _ in range(EVALUATION_BATCHES)]
                    print(f"step {step}: {name} loss {sum(losses) / len(losses):.4f}", flush=True)
        through = max(0.0, (step - WARMUP) / (STEPS - WARMUP))
        falling = LEAST_RATE + 0.5 * (1 + math.cos(math.pi * through)) * (RATE - LEAST_RATE)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / WARMUP if step < WARMUP else falling
        loss = loss_of(network, *draw(tokens, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    save_file(dict(network.state_dict()), weights_file, metadata={"characters": json.dumps(list(table))})


if __name__ == "__main__":
    main(*sys.argv[1:])
