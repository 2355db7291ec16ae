"""Train a small transformer with JAX and optax on headrace's batches: a mesh over data, checkpoints, exact resume.

    python examples/train_jax.py                                    # the Python standard library: no download
    python examples/train_jax.py corpus.txt --out runs/jax --steps 200 --cpu-devices 8   # the same batches on 8 devices

Killed at any moment, the same command continues from the last checkpoint and ends with the same loss. The last line of
stdout is JSON. Needs `pip install 'headrace[jax]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

import headrace as hr
from headrace.interop.jax import jax_batches

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 16


def make_parameters(vocab_size: int) -> dict[str, Any]:
    random = np.random.default_rng(0)  # not jax.random, which would be compiled for every shape

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(0.02 * random.standard_normal(shape, dtype=np.float32))

    blocks = [
        {
            "query_key_value": matrix(WIDTH, 3 * WIDTH),
            "attention_out": matrix(WIDTH, WIDTH),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"embedding": matrix(vocab_size, WIDTH), "positions": matrix(LENGTH, WIDTH), "blocks": blocks}


def normalise(x_BTD: jax.Array) -> jax.Array:
    return x_BTD * jax.lax.rsqrt(jnp.mean(x_BTD**2, axis=-1, keepdims=True) + 1e-6)


def loss_of(parameters: dict[str, Any], inputs_BT: jax.Array, targets_BT: jax.Array) -> jax.Array:
    B, T = inputs_BT.shape
    x_BTD = parameters["embedding"][inputs_BT] + parameters["positions"][:T]
    for block in parameters["blocks"]:
        qkv = (normalise(x_BTD) @ block["query_key_value"]).reshape(B, T, 3, HEADS, WIDTH // HEADS)
        attended = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        x_BTD = x_BTD + attended.reshape(B, T, WIDTH) @ block["attention_out"]
        x_BTD = x_BTD + jax.nn.gelu(normalise(x_BTD) @ block["up"]) @ block["down"]
    logits_BTV = normalise(x_BTD) @ parameters["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits_BTV, targets_BT).mean()


def save(out: Path, step: int, train_state: Any, progress: dict[str, Any]) -> None:
    """Whole or not there: a folder is filled under another name and renamed."""
    leaves, _ = jax.tree.flatten(train_state)
    temporary = out / "saving"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file({str(n): np.asarray(leaf) for n, leaf in enumerate(leaves)}, temporary / "state.safetensors")
    (temporary / "progress.json").write_text(json.dumps(progress))
    os.replace(temporary, out / f"step-{step:08}")


def newest(out: Path) -> Path | None:
    return max(out.glob("step-*"), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-jax"))
    parser.add_argument("--tokenizer", default="bpe:2048")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--cpu-devices", type=int, default=0, help="simulate this many devices on the CPU")
    options = parser.parse_args()
    if options.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.cpu_devices)
        # Simulated devices share a few threads: collectives of two steps at once can wait for each other for ever.
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer=options.tokenizer, out=options.out / "cache")
    mesh = Mesh(jax.devices(), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    optimizer = optax.adamw(1e-3)

    @jax.jit
    def train_step(train_state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        parameters, moments = train_state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch["inputs"], batch["targets"])
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), loss

    with hr.Loader(cache, BATCH, LENGTH, rank=jax.process_index(), world_size=jax.process_count()) as loader:
        batches = jax_batches(loader, mesh)
        parameters = make_parameters(cache.tokenizer.vocab_size)
        train_state = jax.device_put((parameters, optimizer.init(parameters)), everywhere)
        progress: dict[str, Any] = {}
        checkpoint = newest(options.out)
        if checkpoint is not None:
            progress = json.loads((checkpoint / "progress.json").read_text())
            batches.restore(progress["loader"])
            saved = load_file(checkpoint / "state.safetensors")
            structure = jax.tree.structure(train_state)
            train_state = jax.tree.unflatten(structure, [saved[str(n)] for n in range(structure.num_leaves)])
            train_state = jax.device_put(train_state, everywhere)
        while batches.step < options.steps:
            train_state, loss = train_step(train_state, next(batches))
            if batches.step % options.save_every == 0 or batches.step == options.steps:
                progress = {"loss": float(loss), "loader": batches.state()}
                save(options.out, batches.step, train_state, progress)
                print(f"step {batches.step}: loss {float(loss):.4f}", flush=True)
        print(json.dumps({"steps": batches.step, "loss": progress["loss"], "devices": jax.device_count()}))


if __name__ == "__main__":
    main()
