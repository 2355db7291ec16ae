"""A run directory as training writes it, without training: quick, and hostile where text comes from outside."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.run.config import Config

HOSTILE = "<script>document.title='owned'</script><img src=https://example.invalid/x.png onerror=alert(1)> | `x` ]]>"
STAGES = {"data wait": 0.001, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}


def write_run(folder: Path, num_steps: int = 40, **stages: float) -> Path:
    """A run of `num_steps` steps whose stages take what `STAGES` says, unless told otherwise."""
    folder.mkdir(parents=True)
    config = Config()
    config.model.vocab_size, config.model.context = 512, 256
    config.training.micro_batch_size, config.training.threads, config.training.precision = 4, 2, "float32"
    config.training.prompt, config.data.tokenizer = HOSTILE, "bpe:512"
    (folder / "config.json").write_text(json.dumps(config.model_dump()))
    parts = {"weights": 40, "gradients": 40, "optimizer": 60, "activations": 100, "head buffer": 20, "loader": 5}
    environment = {
        "processor": HOSTILE, "cores": 2, "threads": 2, "memory_bytes": 8 << 30, "python": "3.11", "platform": "Linux",
        "versions": {"headrace": metadata.version("headrace")}, "peak_flops": 2e11, "memory_bandwidth": 2e10,
        "activation_bytes_per_token": 1e5, "memory_parts": {n: v << 20 for n, v in {**parts, "runtime": 250}.items()},
        "machine": {
            "measured_at": "2026-01-01 10:00", "is_remembered": True,
            "measurements": {
                "matmul_flops": {"float32": {"1": 1e11, "2": 1.9e11}}, "memory_bandwidth": 2e10, "disk_read_rate": None,
                "fresh_memory_rate": 1e9, "busy_cores": 0.0,
            },
            "hardware": {
                "host": "mill", "system": "Linux", "processor": HOSTILE, "cores": 2, "usable_threads": 2,
                "simd": "AVX512", "fast_formats": ["avx512_bf16"], "caches_bytes": {"L2": 3 << 20}, "accelerators": [],
            },
        },
    }  # fmt: skip
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _lines(num_steps, stages)))
    (folder / "samples.txt").write_text(f"--- step 0 ---\n{HOSTILE}\n\n--- step {num_steps} ---\nText {HOSTILE}\n\n")
    (folder / "summary.json").write_text(json.dumps({"peak_memory_bytes": 600 << 20, "steps": num_steps}))
    ledger = {"tokens": 1000, "trained": 900, "carried": 60, "dropped": 40, "rows": 1600, "slots": 1, "filled": 1}
    (folder / "ledger.json").write_text(json.dumps([ledger]))
    chunking = {
        "sequence_length": 256, "packing": "stream", "shortest": 3, "mean": 80.5, "longest": 900, "padding": 0,
        "sequences_after": 123, "documents_split": 45, "fill_percent": 100.0,
    }  # fmt: skip
    corpus = {
        "bytes": 5 << 20, "tokens": 1_500_000, "documents": 321, "bytes_per_token": 3.5, "chunking": chunking,
        "tokenizer": {"vocab_size": 512}, "noticed": {"nul_bytes": 2},
    }  # fmt: skip
    (folder / "corpus.json").write_text(json.dumps(corpus))
    return folder


def _lines(num_steps: int, stages: dict[str, float]) -> list[dict[str, Any]]:
    lines, elapsed = [], 0.0
    for step in range(1, num_steps + 1):
        is_evaluated = step % 10 == 0
        seconds = {**STAGES, "evaluation": 0.02 * is_evaluated, "saving": 0.01 * is_evaluated, **stages}
        step_s = sum(seconds.values())
        elapsed += step_s + 0.0005
        line = {
            "step": step, "tokens": 4096 * step, "loss": 6 - step / 20, "learning_rate": 0.003, "gradient_norm": 1.0,
            "elapsed_s": elapsed, "step_s": step_s, "seconds": seconds, "tokens_per_second": 4096 * step / elapsed,
            "memory_bytes": 500 << 20, "cpu_s": 1.8 * elapsed, "loader_cpu_s": 0.01 * step, "queue_depth": 3,
            "queue_limit": 4, "buffered_bytes": 65536,
        }  # fmt: skip
        if is_evaluated:
            line |= {"validation_loss": 6.1 - step / 20, "validation_bits_per_byte": 2.0, "validation_perplexity": 9.0}
        lines.append(line)
    return lines


def configure(folder: Path, section: str, **values: object) -> None:
    """Change values in a section of a run's configuration."""
    config = json.loads((folder / "config.json").read_text())
    config[section] |= values
    (folder / "config.json").write_text(json.dumps(config))
