"""Reading a checkpoint: everything in it is compared with what is needed before any of it is used."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from headrace.errors import CheckpointError
from headrace.files import read_checked_json
from headrace.models.network import Network
from headrace.training.optimizers.adamw import NEVER_NEGATIVE
from headrace.training.optimizers.optimizer import Optimizer

STATE_VERSION = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
UNAVERAGED = "unaveraged.safetensors"
"""The weights that training goes on with, where those of the model are an average of them, or calibrated."""
NEEDED_FILES = {MODEL, OPTIMIZER, "config.json", "tokenizer.json", "tokenizer_config.json"}
FLOAT32 = "F32"  # the name in safetensors
FILE_NAME = re.compile(r"\w[\w.-]*")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the state of a checkpoint, once every file of it has been checked.

    The error for a damaged one names another checkpoint beside it that is whole, if there is one.
    """
    with _offering_another(checkpoint):
        return _read_whole(checkpoint)


def newest_whole(folder: Path, other_than: str = "") -> Path | None:
    """Find the newest checkpoint of a folder that is whole."""
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            if candidate.name != other_than:
                _read_whole(candidate)
                return candidate
        except CheckpointError:
            continue
    return None


def name_whole_one(folder: Path, other_than: str) -> str:
    """Return a sentence that names another checkpoint of a folder to resume from."""
    found = newest_whole(folder, other_than)
    if found is None:
        return "There is no other checkpoint that is whole."
    return f"{found} is whole: `headrace train --resume {found}` continues from it."


def load_weights(checkpoint: Path, network: Network, file: str = MODEL) -> None:
    """Load the weights of a checkpoint; those of another model are refused by the name of the tensor."""
    path = checkpoint / file
    expected = {name: tuple(tensor.shape) for name, tensor in network.to_hugging_face()[1].items()}
    with _offering_another(checkpoint):
        _check_layout(path, expected, "the weights of another model")
        network.load_hugging_face(dict(_load(path)))


def load_training_weights(checkpoint: Path, network: Network, is_averaged: bool) -> list[Tensor] | None:
    """Load the weights that training goes on with, and return the average that was saved as the model.

    `is_averaged`: whether training goes on averaging; None is returned if not, or if it has not averaged before.
    """
    if not (checkpoint / UNAVERAGED).exists():
        load_weights(checkpoint, network)
        return None
    average = None
    if is_averaged:
        load_weights(checkpoint, network)
        average = [parameter.detach().clone() for parameter in network.parameters()]
    load_weights(checkpoint, network, UNAVERAGED)
    return average


def load_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    """Load the optimizer's state of a checkpoint; it is empty if not one update was made before."""
    path = checkpoint / OPTIMIZER
    with _offering_another(checkpoint):
        expected = optimizer.layout() if _names(path) else {}
        _check_layout(path, expected, "the state of another optimizer or model")
        optimizer.load_tensors(_load(path))


def check_weights_fill(checkpoint: Path, num_parameters: int) -> None:
    """Refuse a model that is larger than its weights before memory is taken for it."""
    if (checkpoint / MODEL).stat().st_size < 4 * num_parameters:
        raise CheckpointError(
            f"{checkpoint / MODEL}: holds fewer weights than the {num_parameters:,} that {STATE} says the model has."
        )


def file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:40]


@contextmanager
def _offering_another(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError as problem:
        raise CheckpointError(f"{problem} {name_whole_one(checkpoint.parent, checkpoint.resolve().name)}") from None


def _read_whole(checkpoint: Path) -> dict[str, Any]:
    if not (checkpoint / STATE).exists():
        if list(checkpoint.glob("*.bin")) or list(checkpoint.glob("*.pt")):
            raise CheckpointError(f"{checkpoint}: holds pickled weights; headrace reads safetensors only.")
        raise CheckpointError(f"{checkpoint}: not a headrace checkpoint (no {STATE}).")
    state = read_checked_json(checkpoint / STATE, CheckpointError, remedy="")
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(f"{checkpoint}: version {state.get('version')}; this headrace reads {STATE_VERSION}.")
    files = state.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{checkpoint / STATE}: damaged (its list of files is not one).")
    for name in files:
        if not FILE_NAME.fullmatch(name):
            raise CheckpointError(f"{checkpoint / STATE}: {name!r} is not the name of a file of a checkpoint.")
    not_listed = {UNAVERAGED} if (checkpoint / UNAVERAGED).exists() else set()  # which would be loaded
    for name in sorted(NEEDED_FILES | files.keys() | not_listed):
        file = checkpoint / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing from the checkpoint.")
        if file_hash(file) != files.get(name):
            raise CheckpointError(f"{file}: damaged (its hash differs from {STATE}).")
    return state


def _check_layout(path: Path, expected: Mapping[str, tuple[int, ...]], otherwise: str) -> None:
    """Compare names, shapes and types, which are in the file's header, with those that are expected."""
    with _opened(path) as file:
        names = set(file.keys())
        for name, shape in expected.items():
            if name not in names:
                raise CheckpointError(f"{path}: no tensor {name}: {otherwise}.")
            part = file.get_slice(name)
            found = tuple(part.get_shape())
            if found != shape:
                raise CheckpointError(f"{path}: {name} is {found} instead of {shape}: {otherwise}.")
            if part.get_dtype() != FLOAT32:
                raise CheckpointError(f"{path}: {name} is of type {part.get_dtype()}, not {FLOAT32}.")
        unknown = sorted(names - expected.keys())
        if unknown:
            raise CheckpointError(f"{path}: unknown tensor {unknown[0]}: {otherwise}.")


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _load(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield one tensor after the other: a process that keeps a piece of each never holds them all."""
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a dictionary
            tensor = file.get_tensor(name)
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f"{path}: {name} holds values that are not finite (NaN or infinite).")
            if name.endswith(NEVER_NEGATIVE) and bool((tensor < 0).any()):
                raise CheckpointError(f"{path}: {name} holds negative values, which no optimizer leaves there.")
            yield name, tensor


def _opened(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError) as problem:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({problem}).") from None
