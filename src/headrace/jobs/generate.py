"""Generate text from a run or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError, UsageError
from headrace.generation.decoding import Sampling, generate
from headrace.generation.text import TextStream
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.training.checkpoint import Checkpoints
from headrace.training.restore import STATE, check_weights_fill, load_weights, read_state


def find_checkpoint(path: Path) -> Path:
    """A checkpoint folder, or the best (else the last) checkpoint of a run."""
    if (path / STATE).exists():
        return path
    for name in ("best", "last"):
        if (path / "checkpoints" / name).is_symlink() and (found := Checkpoints(path / "checkpoints").find(name)):
            return found
    if not path.exists():
        raise CheckpointError(f"{path}: no such run. Make it with: headrace train --out {path}")
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
    file = checkpoint / "tokenizer.json"
    tokenizer = from_json(spec, read_tokenizer_file(file), str(file))
    special = state["config"]["data"].get("special_tokens_in_text", "special")  # runs from before it could be chosen
    return network.eval(), replace(tokenizer, special_tokens_in_text=special)


def stream_text(model: tuple[Network, Tokenizer], prompt: str, sampling: Sampling) -> Iterator[list[str]]:
    """Yield what is new in each sample, piece by piece. Characters of several tokens come when they are whole."""
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise UsageError("temperature and top_k must not be negative, and top_p lies between 0 and 1")
    network, tokenizer = model
    ids = [int(token) for token in tokenizer.encode(prompt)]
    streams = [TextStream(tokenizer, ids) for _ in range(sampling.num_samples)]
    for row in generate(network, ids, sampling, tokenizer.end_of_text_id):
        yield ["" if token is None else stream.add(token) for stream, token in zip(streams, row, strict=True)]


def read_run_config(folder: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values or not all(isinstance(section, dict) for section in values.values()):
        raise CheckpointError(f"{folder}: not a run directory (no readable config.json).")
    values.setdefault("data", {}).setdefault("special_tokens_in_text", "special")  # runs from before it could be chosen
    return values


def read_checkpoint_config(checkpoint: Path, otherwise: CheckpointError) -> dict[str, Any]:
    """Read the configuration that a checkpoint was saved with; raise the given error where there is no checkpoint."""
    if not (checkpoint / STATE).exists():
        raise otherwise
    return dict(read_state(checkpoint)["config"])
