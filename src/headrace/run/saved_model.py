"""A trained model, found by what a user names it and loaded with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.run.start.find import (
    TOKENIZER,
    FoundModel,
    check_vocabulary,
    file_name,
    find_model,
    name_of,
    run_of,
)
from headrace.training.restore import check_weights_fill, load_weights


@dataclass(frozen=True)
class TrainedModel:
    """A network that was trained, its tokenizer, and how far headrace trained it."""

    name: str
    """The name of its run, folder or repository, as a file or a model can be called."""
    folder: Path
    """Where files that are made of it go: its run directory or folder, or here for a model of the hub."""
    network: Network
    tokenizer: Tokenizer
    num_steps: int = 0
    num_tokens: int = 0


def load_trained(given: str | Path) -> TrainedModel:
    """Load a model: of a run or a checkpoint, every file of which is checked; of a folder; or of the hub."""
    found = find_model(given)
    if found.checkpoint is None or found.saved is None:
        return _load_foreign(found)
    checkpoint, saved = found.checkpoint, found.saved
    model, data = saved.config.model, saved.config.data
    check_weights_fill(checkpoint, count(model, model.context).num_parameters)
    network = build(model)
    load_weights(checkpoint, network)
    file = checkpoint / TOKENIZER
    tokenizer = from_json(data.tokenizer, read_tokenizer_file(file), str(file))
    tokenizer = replace(tokenizer, special_tokens_in_text=data.special_tokens_in_text)
    position = saved.position
    return TrainedModel(
        name_of(checkpoint), run_of(checkpoint), network.eval(), tokenizer, position.step, position.tokens
    )


def load_model(given: str | Path) -> tuple[Network, Tokenizer]:
    """Load the network and the tokenizer of a model."""
    trained = load_trained(given)
    return trained.network, trained.tokenizer


def _load_foreign(found: FoundModel) -> TrainedModel:
    """Load a model that headrace did not train."""
    tokenizer = found.tokenizer()
    if tokenizer is None:
        raise CheckpointError(f"{found.given}: has no {TOKENIZER}, by which text becomes tokens.")
    check_vocabulary(found, found.read_tokenizer_text())
    found.model.check_size()
    model = found.model.config
    network = build(model.model_copy(update={"vocab_size": max(model.vocab_size, tokenizer.vocab_size)}))
    found.model.load_into(network)
    is_hub = found.kind == "hub"
    name = file_name(found.given.partition("@")[0].rpartition("/")[2]) if is_hub else name_of(Path(found.given))
    return TrainedModel(name, Path() if is_hub else Path(found.given), network.eval(), tokenizer)
