"""A JAX/XLA step: GPT-2 in plain JAX, jitted with donated state, optax AdamW."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import load_file

import headrace as hr

Weights = dict[str, Any]


def norm(weights: Weights, name: str, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]  # GPT-2 keeps its matrices transposed


def loss_of(weights: Weights, inputs_BT: Any, targets_BT: Any, layers: int, heads: int) -> Any:
    B, T = inputs_BT.shape
    x_BTD = weights["transformer.wte.weight"][inputs_BT] + weights["transformer.wpe.weight"][:T]
    for layer in range(layers):
        name = f"transformer.h.{layer}"
        qkv = linear(weights, f"{name}.attn.c_attn", norm(weights, f"{name}.ln_1", x_BTD))
        query, key, value = jnp.moveaxis(qkv.reshape(B, T, 3, heads, -1), 2, 0)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(B, T, -1)
        x_BTD = x_BTD + linear(weights, f"{name}.attn.c_proj", attended)
        hidden = jax.nn.gelu(linear(weights, f"{name}.mlp.c_fc", norm(weights, f"{name}.ln_2", x_BTD)))
        x_BTD = x_BTD + linear(weights, f"{name}.mlp.c_proj", hidden)
    logits_BTV = norm(weights, "transformer.ln_f", x_BTD) @ weights["transformer.wte.weight"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT).mean()


def train(job: dict[str, Any], report: Callable[[float], None]) -> int:
    weights = {name: jnp.asarray(array) for name, array in load_file(f"{job['weights']}/model.safetensors").items()}
    num_parameters = int(sum(array.size for array in weights.values()))
    adamw = optax.adamw(job["learning_rate"], b2=0.95, weight_decay=0.0)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)

    def step(weights: Weights, state: Any, inputs: Any, targets: Any) -> tuple[Any, Any, Any]:
        layers, heads = job["model"]["num_layers"], job["heads"]
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets, layers, heads)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    state = optimizer.init(weights)
    with hr.Loader(job["cache"], job["batch_size"], job["sequence_length"]) as loader:
        for _ in range(job["num_steps"]):
            batch = next(loader)
            inputs, targets = batch.inputs.astype(np.int32), batch.targets.astype(np.int32)
            weights, state, loss = compiled(weights, state, inputs, targets)
            report(float(loss))
    return num_parameters
