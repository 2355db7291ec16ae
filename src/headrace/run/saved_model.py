"""A trained model, found in a run directory or a checkpoint and loaded with its tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError
from headrace.files import pointed_to
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.run.resume import read_saved_model
from headrace.training.checkpoint import Checkpoints
from headrace.training.restore import STATE, check_weights_fill, load_weights


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint at a path, or the best (else the last) checkpoint of the run at it."""
    if (path / STATE).exists():
        return path
    folder = path / "checkpoints"
    for name in ("best", "last"):
        if pointed_to(folder / name) is not None and (found := Checkpoints(folder).find(name)):
            return found
    if not path.exists():
        raise CheckpointError(f"{path}: no such run. Make it with: headrace train --out {path}")
    raise CheckpointError(f"{path}: no checkpoint here yet. Wait until the run has saved one.")


@dataclass(frozen=True)
class TrainedModel:
    """A network that was trained, its tokenizer, and how far it was trained."""

    checkpoint: Path
    network: Network
    tokenizer: Tokenizer
    num_steps: int
    num_tokens: int

    @property
    def name(self) -> str:
        """The name of the run, as a file or a model can be called."""
        return name_of(self.checkpoint)


def run_of(checkpoint: Path) -> Path:
    """Return the run directory of a checkpoint; the checkpoint itself where it lies by itself."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint


def name_of(checkpoint: Path) -> str:
    """Return the name of a checkpoint's run, as a file or a model can be called."""
    return re.sub(r"[^\w.-]+", "-", run_of(checkpoint.resolve()).name, flags=re.ASCII).strip(".-") or "model"


def load_trained(path: Path) -> TrainedModel:
    """Load the model of a run or a checkpoint, once every file of the checkpoint has been checked."""
    checkpoint = find_checkpoint(path)
    saved = read_saved_model(checkpoint)
    model, data = saved.config.model, saved.config.data
    check_weights_fill(checkpoint, count(model, model.context).num_parameters)
    network = build(model)
    load_weights(checkpoint, network)
    file = checkpoint / "tokenizer.json"
    tokenizer = from_json(data.tokenizer, read_tokenizer_file(file), str(file))
    tokenizer = replace(tokenizer, special_tokens_in_text=data.special_tokens_in_text)
    return TrainedModel(checkpoint, network.eval(), tokenizer, saved.position.step, saved.position.tokens)


def load_model(path: Path) -> tuple[Network, Tokenizer]:
    """Load the network and the tokenizer of a run or a checkpoint."""
    trained = load_trained(path)
    return trained.network, trained.tokenizer
