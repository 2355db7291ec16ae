"""Benchmark of trainers: equal models, weights, batches and arithmetic; the time per step is compared."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from headrace.bench.peer import Corpus, Peer, Result, Say, begin, run_peer
from headrace.errors import ChildError, UsageError
from headrace.machine.peak import measure_peak_flops
from headrace.models.counts import count
from headrace.models.network import build
from headrace.run.config import Config, Layers
from headrace.run.presets import preset_values

PEERS = [
    Peer("headrace", "headrace.bench.peers.train.headrace_trainer", "headrace", is_headrace=True),
    Peer("pytorch-loop", "headrace.bench.peers.train.pytorch_loop", "torch"),
    Peer("hf-trainer", "headrace.bench.peers.train.hf_trainer", "transformers"),
    Peer("jax", "headrace.bench.peers.train.jax_step", "jax"),
]
NUM_WARMUP_STEPS = 2
LOSS_TOLERANCE = 2e-3
TIMEOUT_S = 900.0


def bench_config(preset: str) -> Config:
    """Return the configuration of a GPT-2 of a preset's size, which every peer can train."""
    layers = Layers()
    layers.add(preset_values(preset), f"preset {preset}")
    layers.add({"model.arch": "gpt2"}, "bench train")
    config = layers.build()
    if not config.model.vocab_size:
        raise UsageError(f"--preset {preset}: has no vocabulary size of its own; use one that has, such as wiki")
    config.model.context = config.training.sequence_length
    return config


def bench_train(
    corpus: Corpus,
    peers: Sequence[Peer],
    config: Config,
    num_steps: int,
    num_repeats: int,
    say: Say,
) -> list[Result]:
    """Return medians and ranges over the repeats. Peers take turns, so that a slow minute hits all of them."""
    job = _write_job(corpus, config, NUM_WARMUP_STEPS + num_steps)
    results = {peer.name: begin(peer) for peer in peers}
    runs: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in peers}
    peak_flops = measure_peak_flops()
    for repeat in range(num_repeats):
        for peer in peers:
            result = results[peer.name]
            if result.status != "ok":
                continue
            say(peer.name, f"trains, run {repeat + 1} of {num_repeats}")
            try:
                runs[peer.name].append(run_peer(peer, "train", {"job": job}, TIMEOUT_S))
            except ChildError as problem:
                result.status, result.message = "failed", str(problem)
        peak_flops = max(peak_flops, measure_peak_flops())
    flops = count(config.model, config.training.sequence_length).training_flops_per_token
    for name, result in results.items():
        if result.status == "ok":
            result.values = _summary(runs[name], flops, peak_flops)
    _compare(list(results.values()))
    return list(results.values())


def _write_job(corpus: Corpus, config: Config, num_steps: int) -> dict[str, Any]:
    """Write the weights as a Hugging Face folder, and return everything that peers must have in common."""
    network = build(config.model, seed=0)
    hf_config, tensors = network.to_hugging_face()
    weights = Path(corpus.folder) / "weights"
    weights.mkdir(exist_ok=True)
    (weights / "config.json").write_text(json.dumps(hf_config), encoding="utf-8")
    save_file(tensors, weights / "model.safetensors", metadata={"format": "pt"})
    return {
        "text": corpus.text,
        "cache": corpus.cache,
        "tokenizer": f"bpe:{config.model.vocab_size}",
        "weights": str(weights),
        "model": config.model.model_dump(),
        "heads": config.model.heads,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "batch_size": config.training.batch_size,
        "sequence_length": config.training.sequence_length,
        "learning_rate": 3e-4,
        "num_steps": num_steps,
        "num_warmup_steps": NUM_WARMUP_STEPS,
    }


def _summary(runs: list[dict[str, Any]], flops_per_token: float, peak_flops: float) -> dict[str, Any]:
    speeds = [run["tokens_per_second"] for run in runs]
    speed = statistics.median(speeds)
    return {
        "tokens_per_second": speed,
        "slowest": min(speeds),
        "fastest": max(speeds),
        "percent_of_peak": 100 * speed * flops_per_token / peak_flops,
        "peak_memory_bytes": max(run["peak_memory_bytes"] for run in runs),
        "parameters": runs[0]["parameters"],
        "losses": runs[0]["losses"],
    }


def _compare(results: list[Result]) -> None:
    """Add ratios to the results; a peer that trained another model counts as failed."""
    done = [result for result in results if result.status == "ok"]
    ours = next((result for result in done if result.peer == "headrace"), None)
    for result in done:
        reference = (ours or done[0]).values
        if result.values["parameters"] != reference["parameters"]:
            mine, theirs = reference["parameters"], result.values["parameters"]
            result.status, result.message = "failed", f"another model: {theirs:,} parameters instead of {mine:,}"
            continue
        pairs = zip(result.values["losses"], reference["losses"], strict=True)
        result.values["largest_loss_difference"] = max(abs(mine - theirs) for mine, theirs in pairs)
        result.values["same_losses"] = result.values["largest_loss_difference"] < LOSS_TOLERANCE
        if ours is not None:
            result.values["headrace_is"] = ours.values["tokens_per_second"] / result.values["tokens_per_second"]
