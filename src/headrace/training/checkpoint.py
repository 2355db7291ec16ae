"""Checkpoints: a Hugging Face model directory that is whole or not there, and from which a run resumes exactly.

checkpoints/step-00001000/   config.json  generation_config.json  model.safetensors
                             tokenizer.json  tokenizer_config.json
                             optimizer.safetensors  state.json (written last, with a hash of every other file)
                             unaveraged.safetensors (only where the model is an average of weights, or calibrated)
checkpoints/last, best       links to two of them; the others are removed
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CheckpointError
from headrace.files import (
    point_to,
    pointed_to,
    sync_directory,
    temporary_beside,
    write_checked_json,
    writing_failed,
)
from headrace.models.counts import FLOAT_BYTES
from headrace.models.network import Network
from headrace.training.restore import (
    MODEL,
    OPTIMIZER,
    STATE,
    STATE_VERSION,
    UNAVERAGED,
    file_hash,
    name_whole_one,
    newest_whole,
)

CHECKPOINT_NAME = r"step-\d{8,}"


def checkpoint_bytes(network: Network, sets_trained_weights_apart: bool = False) -> int:
    """Return the disk space of one checkpoint: weights, and at most two numbers of optimizer state per weight.

    `sets_trained_weights_apart`: whether it holds the weights that training goes on with beside those of the model.
    """
    numbers = 4 if sets_trained_weights_apart else 3
    return numbers * FLOAT_BYTES * sum(parameter.numel() for parameter in network.parameters()) + (8 << 20)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise an error if the disk has fewer bytes free than will be written."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 2**20:.0f} MiB, but only {free / 2**20:.0f} MiB are free."
            " Free some space, or choose another place with --out."
        )


@dataclass(frozen=True)
class Contents:
    """Everything in a checkpoint but its state: what a thread can write while training goes on."""

    files: Mapping[str, bytes]
    """The small files, by name."""
    weights: Mapping[str, Tensor]
    """Weights of the model, under the names of transformers."""
    optimizer: Mapping[str, Tensor]
    unaveraged: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that training goes on with, where those of the model are an average of them, or calibrated."""

    @property
    def tensor_files(self) -> dict[str, Mapping[str, Tensor]]:
        """The tensors by the name of their file."""
        files = {OPTIMIZER: self.optimizer, MODEL: self.weights}
        return {**files, UNAVERAGED: self.unaveraged} if self.unaveraged else files

    @property
    def nbytes(self) -> int:
        """Return about the disk space that it takes."""
        tensors = [tensor for file in self.tensor_files.values() for tensor in file.values()]
        return sum(tensor.nbytes for tensor in tensors) + sum(map(len, self.files.values())) + (1 << 20)


@dataclass(frozen=True)
class Unsealed:
    """A checkpoint that is written, but lacks its state and is not in its place."""

    folder: Path
    hashes: dict[str, str]


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
        """Write a checkpoint to a temporary folder, then rename it. A failed save leaves earlier ones as they were."""
        contents = Contents(small_files(network, tokenizer), network.to_hugging_face()[1], optimizer)
        return self.seal(self.write(contents), step, state, is_best)

    def write(self, contents: Contents) -> Unsealed:
        """Write all files of a checkpoint but its state, hashed and synced, to a place where nobody looks for one."""
        self._sweep()
        check_disk_space(self._folder, contents.nbytes)
        folder = temporary_beside(self._folder / "saving")
        try:
            folder.mkdir(parents=True)
            for name, data in contents.files.items():
                (folder / name).write_bytes(data)
            mode = (folder / "config.json").stat().st_mode

            def write_tensors(name: str) -> str:
                save_file(dict(contents.tensor_files[name]), folder / name, metadata={"format": "pt"})
                os.chmod(folder / name, mode)  # safetensors makes files that nobody else can read
                return _seal_file(folder / name)

            here, *others = contents.tensor_files
            with ThreadPoolExecutor(1, "headrace-save") as beside:  # most of the time goes into hashing
                written = beside.map(write_tensors, others)
                hashes = {here: write_tensors(here), **dict(zip(others, written, strict=True))}
            return Unsealed(folder, hashes | {name: _seal_file(folder / name) for name in contents.files})
        except BaseException as problem:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(problem, OSError | SafetensorError):
                raise writing_failed(self._folder, _as_os_error(problem)) from None
            raise

    def seal(self, unsealed: Unsealed, step: int, state: dict[str, Any], is_best: bool) -> Path:
        """Add the state to what was written, move it to its place, and make the links."""
        final = self._folder / f"step-{step:08}"
        try:
            files = {**state, "version": STATE_VERSION, "step": step, "files": unsealed.hashes}
            write_checked_json(unsealed.folder / STATE, files)
            _move_to(final, unsealed.folder)
            sync_directory(self._folder)
            point_to(self._folder / "last", final.name)
            if is_best:
                point_to(self._folder / "best", final.name)
        except OSError as problem:
            raise writing_failed(final, problem) from None
        finally:
            self.discard(unsealed)
        self._prune()
        return final

    def discard(self, unsealed: Unsealed) -> None:
        """Remove what was written, unless it was moved to its place."""
        shutil.rmtree(unsealed.folder, ignore_errors=True)

    def find(self, name: str = "last") -> Path | None:
        """Return the checkpoint of this name (`last`, `best` or step-N); None if the run has no checkpoint yet.

        A run that was killed after its first save, before it could make the link, has a last checkpoint without one.
        """
        place = self._folder / name
        pointed = pointed_to(place)
        target = name if pointed is None else pointed
        if re.fullmatch(CHECKPOINT_NAME, target) and (self._folder / target).exists():
            return self._folder / target
        if name == "last" and pointed is None:
            newest = newest_whole(self._folder)
            if newest is not None or not list(self._folder.glob("step-*")):
                return newest
        found = "no such checkpoint" if pointed is None else f"leads to {target!r}, which is no checkpoint beside it"
        raise CheckpointError(f"{place}: {found}. {name_whole_one(self._folder, target)}")

    def _sweep(self) -> None:
        """Remove what a killed save left. Nobody else saves here: the run directory is locked."""
        for leftover in self._folder.glob("*.tmp"):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    def _prune(self) -> None:
        kept = {pointed_to(self._folder / name) for name in ("last", "best")}
        for folder in self._folder.glob("step-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


def _move_to(final: Path, folder: Path) -> None:
    """Move a whole checkpoint to its place. One of the same step, saved before a resume, is removed only after that."""
    if not final.exists():
        os.replace(folder, final)
        return
    aside = temporary_beside(final)
    os.replace(final, aside)
    try:
        os.replace(folder, final)
    except OSError:
        os.replace(aside, final)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def small_files(network: Network, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files by which transformers builds the model and its tokenizer; they are the same for a whole run."""
    end, padding = tokenizer.end_of_text, tokenizer.padding
    ids = {"bos_token_id": tokenizer.end_of_text_id, "eos_token_id": tokenizer.end_of_text_id}
    ids["pad_token_id"] = tokenizer.special_tokens[padding]
    facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": network.config.context}
    facts |= {"bos_token": end, "eos_token": end, "pad_token": padding, "clean_up_tokenization_spaces": False}
    values = {
        "config.json": {**network.hugging_face_config(), **ids, "dtype": "float32"},
        "generation_config.json": ids,
        "tokenizer_config.json": facts,
    }
    files = {name: json.dumps(value, indent=1).encode() for name, value in values.items()}
    return {**files, "tokenizer.json": tokenizer.export_json().encode()}


def _as_os_error(problem: Exception) -> OSError:
    """Return the error of the system; safetensors raises its own exception, with the number in its text."""
    if isinstance(problem, OSError):
        return problem
    found = re.search(r"\(os error (\d+)\)", str(problem))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number))


def _seal_file(path: Path) -> str:
    """Have a file written to the disk, and return its hash."""
    with open(path, "rb+") as file:  # Windows flushes only what may be written
        os.fsync(file.fileno())
    return file_hash(path)
