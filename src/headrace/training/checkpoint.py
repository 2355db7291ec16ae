"""Checkpoints: a Hugging Face model directory that is whole or not there, and from which a run resumes exactly.

checkpoints/step-00001000/   config.json  generation_config.json  model.safetensors
                             tokenizer.json  tokenizer_config.json
                             optimizer.safetensors  state.json (written last, with a hash of every other file)
checkpoints/last, best       links to two of them; the others are removed
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from headrace.data.tokens.tokenizers import Tokenizer
from headrace.errors import CheckpointError
from headrace.files import (
    sync_directory,
    temporary_beside,
    write_atomically,
    write_checked_json,
    writing_failed,
)
from headrace.models.network import Network
from headrace.training.restore import MODEL, OPTIMIZER, STATE, STATE_VERSION, file_hash, name_whole_one, newest_whole

CHECKPOINT_NAME = r"step-\d{8,}"


def checkpoint_bytes(network: Network) -> int:
    """Return the disk space of one checkpoint: weights, and at most two more numbers for each."""
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
            mode = (temporary / "config.json").stat().st_mode
            for name in names:
                os.chmod(temporary / name, mode)  # safetensors makes files that nobody else can read
                _sync(temporary / name)
            files = {name: file_hash(temporary / name) for name in names}
            write_checked_json(temporary / STATE, {**state, "version": STATE_VERSION, "step": step, "files": files})
            if final.exists():  # the same step again, after a resume
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_directory(self._folder)
        except (OSError, SafetensorError) as problem:
            raise writing_failed(final, _as_os_error(problem)) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _link(self._folder / "last", final.name)
        if is_best:
            _link(self._folder / "best", final.name)
        self._prune()
        return final

    def find(self, name: str = "last") -> Path | None:
        """Return the checkpoint of that name, which may be a link's; None if the run has none at all yet.

        A run that was killed after its first save, before it could make the link, has a last checkpoint without one.
        """
        place = self._folder / name
        target = os.readlink(place) if place.is_symlink() else name
        if re.fullmatch(CHECKPOINT_NAME, target) and (self._folder / target).exists():
            return self._folder / target
        if name == "last" and not place.is_symlink():
            newest = newest_whole(self._folder)
            if newest is not None or not list(self._folder.glob("step-*")):
                return newest
        found = f"leads to {target!r}, which is no checkpoint beside it" if place.is_symlink() else "no such checkpoint"
        raise CheckpointError(f"{place}: {found}. {name_whole_one(self._folder, target)}")

    def _sweep(self) -> None:
        """Remove what a killed save left. Nobody else saves here: the run directory is locked."""
        for leftover in self._folder.glob("*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self) -> None:
        kept = {os.readlink(link) for link in (self._folder / "last", self._folder / "best") if link.is_symlink()}
        for folder in self._folder.glob("step-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


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
    """Return the error of the system; safetensors raises its own exception, with the number in its text."""
    if isinstance(problem, OSError):
        return problem
    found = re.search(r"\(os error (\d+)\)", str(problem))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number))


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _link(link: Path, target: str) -> None:
    temporary = temporary_beside(link)
    temporary.symlink_to(target)
    os.replace(temporary, link)
