"""Generate text from a run or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from headrace.data.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError, UsageError
from headrace.generation.generate import Sampling, generate
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.checkpoint import load_weights, read_state


def find_checkpoint(path: Path) -> Path:
    """A checkpoint folder, or the best (else the last) checkpoint of a run."""
    for candidate in (path, path / "checkpoints" / "best", path / "checkpoints" / "last"):
        if (candidate / "state.json").exists():
            return candidate
    if not path.exists():
        raise CheckpointError(f"{path}: no such run. Make it with: headrace train --out {path}")
    raise CheckpointError(f"{path}: no checkpoint here yet.")


def load_model(path: Path) -> tuple[Network, Tokenizer]:
    """The network and tokenizer of a checkpoint, checked."""
    checkpoint = find_checkpoint(path)
    state = read_state(checkpoint)
    network = build(ModelConfig.model_validate(state["config"]["model"]))
    load_weights(checkpoint, network)
    tokenizer = from_json(
        state["config"]["data"]["tokenizer"], (checkpoint / "tokenizer.json").read_text(), str(checkpoint)
    )
    return network.eval(), tokenizer


def stream_text(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """Yield what is new in each sample, piece by piece. Characters of several tokens come when they are whole."""
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UsageError("temperature and top_k must not be negative, and top_p lies between 0 and 1")
    network, tokenizer = model
    ids = [int(token) for token in tokenizer.encode(prompt)]
    made: list[list[int]] = [[] for _ in range(sampling.num_samples)]
    shown = [""] * sampling.num_samples
    for row in generate(network, ids, sampling, tokenizer.end_of_text_id):
        pieces = []
        for number, token in enumerate(row):
            if token is not None and token != tokenizer.end_of_text_id and token < tokenizer.vocab_size:
                made[number].append(token)
            text = tokenizer.decode(made[number]).rstrip("\ufffd")
            pieces.append(text[len(shown[number]) :])
            shown[number] = text
        yield pieces


def read_run_config(folder: Path) -> dict[str, dict[str, object]]:
    """The resolved configuration of a run."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values or not all(isinstance(section, dict) for section in values.values()):
        raise CheckpointError(f"{folder}: not a run directory (no readable config.json).")
    return values
