"""Checkpoints: a Hugging Face model directory that is whole or not there, and from which a run resumes exactly.

checkpoints/step-00001000/   config.json  generation_config.json  model.safetensors
                             tokenizer.json  tokenizer_config.json
                             optimizer.safetensors  state.json (written last, with a hash of every other file)
checkpoints/last, best       links to two of them; the others are removed
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from headrace.data.tokenizers import Tokenizer
from headrace.errors import CheckpointError
from headrace.files import (
    read_checked_json,
    sync_directory,
    temporary_beside,
    write_atomically,
    write_checked_json,
    writing_failed,
)
from headrace.models.network import Network
from headrace.training.optimizer import Optimizer

STATE_VERSION = 1
CHECKPOINT_NAME = re.compile(r"step-\d{8,}")
FILE_NAME = re.compile(r"\w[\w.-]*")
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def checkpoint_bytes(network: Network) -> int:
    """Disk space of one checkpoint: weights, and at most two more numbers for each."""
    return 12 * sum(parameter.numel() for parameter in network.parameters()) + (8 << 20)


def check_disk_space(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 2**20:.0f} MiB, but only {free / 2**20:.0f} MiB are free."
            " Free some space, or choose another place with --out."
        )


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self,
        step: int,
        network: Network,
        optimizer: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        state: dict[str, Any],
        is_best: bool,
    ) -> Path:
        """Write everything beside its place, then move it there. A failed save leaves what was there before."""
        check_disk_space(self._folder, checkpoint_bytes(network))
        self._sweep()
        final = self._folder / f"step-{step:08}"
        temporary = temporary_beside(self._folder / "saving")
        try:
            temporary.mkdir(parents=True)
            _write_model(temporary, network, tokenizer)
            save_file(dict(optimizer), temporary / OPTIMIZER)
            names = sorted(file.name for file in temporary.iterdir())
            for name in names:
                _sync(temporary / name)
            files = {name: _file_hash(temporary / name) for name in names}
            write_checked_json(temporary / STATE, {**state, "version": STATE_VERSION, "step": step, "files": files})
            if final.exists():  # the same step again, after a resume
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_directory(self._folder)
        except (OSError, safetensors.SafetensorError) as problem:
            raise writing_failed(final, _as_os_error(problem)) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _link(self._folder / "last", final.name)
        if is_best:
            _link(self._folder / "best", final.name)
        self._prune()
        return final

    def last(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return self.linked("last")

    def linked(self, name: str) -> Path | None:
        """Return the checkpoint that `last` or `best` leads to; a link to anything else is refused."""
        link = self._folder / name
        if not link.is_symlink():
            return None
        target = os.readlink(link)
        if not CHECKPOINT_NAME.fullmatch(target):
            raise CheckpointError(
                f"{link}: leads to {target!r}, which is not the name of a checkpoint beside it (step-NUMBER)."
                " Make it a link to one of those, or remove it."
            )
        return self._folder / target if link.exists() else None

    def _sweep(self) -> None:
        """Remove what a killed save left. Nobody else saves here: the run directory is locked."""
        for leftover in self._folder.glob("*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self) -> None:
        kept = {os.readlink(link) for link in (self._folder / "last", self._folder / "best") if link.is_symlink()}
        for folder in self._folder.glob("step-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state of a checkpoint, once every file of it has been checked."""
    if not (checkpoint / STATE).exists():
        if list(checkpoint.glob("*.bin")) or list(checkpoint.glob("*.pt")):
            raise CheckpointError(f"{checkpoint}: holds pickled weights; headrace reads safetensors only.")
        raise CheckpointError(f"{checkpoint}: not a headrace checkpoint (no {STATE}).")
    state = read_checked_json(checkpoint / STATE)
    if state.get("version") != STATE_VERSION:
        raise CheckpointError(f"{checkpoint}: version {state.get('version')}; this headrace reads {STATE_VERSION}.")
    for name, expected in state["files"].items():
        if not FILE_NAME.fullmatch(name):
            raise CheckpointError(f"{checkpoint / STATE}: {name!r} is not the name of a file of a checkpoint.")
        file = checkpoint / name
        if not file.exists():
            raise CheckpointError(f"{file}: missing from the checkpoint. Resume from another one.")
        if _file_hash(file) != expected:
            raise CheckpointError(f"{file}: damaged (its hash differs from state.json). Resume from another one.")
    return state


def load_weights(checkpoint: Path, network: Network) -> None:
    """Weights of a checkpoint; another model's are refused by the name of the tensor."""
    tensors = dict(_load(checkpoint / MODEL))
    expected = network.to_hugging_face()[1]
    for name, tensor in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{checkpoint / MODEL}: no tensor {name}: the weights of another model.")
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
            raise CheckpointError(f"{checkpoint / MODEL}: {name} is {shapes}: the weights of another model.")
    network.load_hugging_face(tensors)


def load_optimizer(checkpoint: Path, optimizer: Optimizer) -> None:
    optimizer.load_tensors(_load(checkpoint / OPTIMIZER))


def _load(path: Path) -> Iterator[tuple[str, Tensor]]:
    """One tensor after the other: a process that keeps a piece of each never holds them all."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                yield name, file.get_tensor(name)
    except (OSError, safetensors.SafetensorError) as problem:
        raise CheckpointError(f"{path}: cannot be read as safetensors ({problem}).") from None


def _write_model(folder: Path, network: Network, tokenizer: Tokenizer) -> None:
    config, tensors = network.to_hugging_face()
    save_file(tensors, folder / MODEL, metadata={"format": "pt"})
    end, padding = tokenizer.end_of_text, tokenizer.padding
    ids = {"bos_token_id": tokenizer.end_of_text_id, "eos_token_id": tokenizer.end_of_text_id}
    ids["pad_token_id"] = tokenizer.special_tokens[padding]
    facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": network.config.context}
    facts |= {"bos_token": end, "eos_token": end, "pad_token": padding, "clean_up_tokenization_spaces": False}
    written = {"config.json": {**config, **ids, "dtype": "float32"}, "generation_config.json": ids}
    for name, value in {**written, "tokenizer_config.json": facts}.items():
        write_atomically(folder / name, json.dumps(value, indent=1).encode())
    write_atomically(folder / "tokenizer.json", tokenizer.export_json().encode())


def _as_os_error(problem: Exception) -> OSError:
    """What the system said; safetensors has an exception of its own, with the number in its text."""
    if isinstance(problem, OSError):
        return problem
    found = re.search(r"\(os error (\d+)\)", str(problem))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number))


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:40]


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _link(link: Path, target: str) -> None:
    temporary = temporary_beside(link)
    temporary.symlink_to(target)
    os.replace(temporary, link)
