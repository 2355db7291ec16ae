"""Generate text from a run or a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.data.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError, UsageError
from headrace.generation.generate import Sampling, generate
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.training.restore import STATE, check_weights_fill, load_weights, read_state


def find_checkpoint(path: Path) -> Path:
    """A checkpoint folder, or the best (else the last) checkpoint of a run."""
    for candidate in (path, path / "checkpoints" / "best", path / "checkpoints" / "last"):
        if (candidate / "state.json").exists():
            return candidate
    if not path.exists():
        raise CheckpointError(f"{path}: no such run. `headrace train` makes one.")
    raise CheckpointError(f"{path}: no checkpoint here yet.")


def load_model(path: Path) -> tuple[Network, Tokenizer]:
    """The network and tokenizer of a checkpoint, checked."""
    checkpoint = find_checkpoint(path)
    state = read_state(checkpoint)
    try:
        model, spec = ModelConfig.model_validate(state["config"]["model"]), str(state["config"]["data"]["tokenizer"])
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(f"{checkpoint / STATE}: damaged, or of another version ({problem}).") from None
    check_weights_fill(checkpoint, count(model, model.context).num_parameters)
    network = build(model)
    load_weights(checkpoint, network)
    tokenizer = from_json(spec, (checkpoint / "tokenizer.json").read_text(encoding="utf-8"), str(checkpoint))
    return network.eval(), tokenizer


def stream_text(run: str | os.PathLike[str], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """What is new in each sample, piece by piece. Characters of several tokens come when they are whole."""
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UsageError("temperature and top_k must not be negative, and top_p lies between 0 and 1")
    network, tokenizer = load_model(Path(run))
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


def read_run_config(folder: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run."""
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise CheckpointError(f"{folder}: not a run directory (no readable config.json).") from None


def read_checkpoint_config(checkpoint: Path, otherwise: CheckpointError) -> dict[str, Any]:
    """Read the configuration that a checkpoint was saved with; raise the given error where there is no checkpoint."""
    if not (checkpoint / STATE).exists():
        raise otherwise
    return dict(read_state(checkpoint)["config"])
