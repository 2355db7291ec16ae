"""Weights in safetensors files, one or several: every name, type and shape is checked before a number is read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from headrace.errors import CheckpointError
from headrace.interop.pretrained.files import PICKLES, ModelFiles

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Number formats that float32 holds exactly, by their names in safetensors."""
MAXIMUM_INDEX_BYTES = 64 << 20
_FILE_NAME = re.compile(r"[\w][\w.-]*\.safetensors", re.ASCII)


class Weights:
    """The tensors of a model by name, read one at a time, as float32."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._opened: dict[str, Any] = {}
        """The files by tensor."""
        single = files.find(SINGLE)
        parts = {SINGLE: single} if single is not None else self._parts()
        for name, path in parts.items():
            self._add(name, path)

    @property
    def num_numbers(self) -> int:
        """The numbers in all tensors."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def __getitem__(self, name: str) -> Tensor:
        """Read a tensor; one that holds anything but finite numbers is refused."""
        try:
            tensor: Tensor = self._opened[name].get_tensor(name)
        except (OSError, safetensors.SafetensorError) as problem:
            raise CheckpointError(f"{self._files.name}: {name} cannot be read ({problem}).") from None
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{self._files.name}: {name} holds values that are not finite (NaN or infinite).")
        return tensor.float()

    def _parts(self) -> dict[str, Path]:
        """Return the files that the index names, each once."""
        index = self._files.find(INDEX)
        if index is None:
            raise self._missing()
        where = self._files.where(INDEX)
        try:
            with open(index, "rb") as file:
                names = json.loads(file.read(MAXIMUM_INDEX_BYTES))["weight_map"]
            self._promised: dict[str, str] = {str(tensor): str(name) for tensor, name in names.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise CheckpointError(f"{where}: damaged, or not an index of safetensors.") from None
        parts: dict[str, Path] = {}
        for name in sorted(set(self._promised.values())):
            if not _FILE_NAME.fullmatch(name):
                raise CheckpointError(f"{where}: {name!r:.80} is not the name of a safetensors file beside it.")
            path = self._files.find(name)
            if path is None:
                raise CheckpointError(f"{self._files.where(name)}: missing, and {INDEX} names it. Get all its files.")
            parts[name] = path
        return parts

    def _missing(self) -> CheckpointError:
        name = self._files.name
        if any(self._files.has(pickle) for pickle in PICKLES):
            return CheckpointError(
                f"{name}: holds pickled weights only, which can run code when they are read; headrace reads"
                " safetensors. If you trust them, convert them once:"
                ' python -c "from transformers import AutoModelForCausalLM as M;'
                f" M.from_pretrained('{name}').save_pretrained('converted')\""
            )
        return CheckpointError(f"{name}: no {SINGLE} and no {INDEX}, so there are no weights that headrace reads.")

    def _add(self, file_name: str, path: Path) -> None:
        """Read the header of a file: the names, types and shapes of its tensors."""
        where = self._files.where(file_name)
        try:
            opened: Any = safetensors.safe_open(path, framework="pt")
            names = list(opened.keys())
            parts = {name: opened.get_slice(name) for name in names}
        except (OSError, safetensors.SafetensorError) as problem:
            raise CheckpointError(f"{where}: cannot be read as safetensors ({problem}).") from None
        for name, part in parts.items():
            if name in self._shapes:
                raise CheckpointError(f"{where}: {name} is in another file of the model, too.")
            if part.get_dtype() not in READABLE:
                raise CheckpointError(
                    f"{where}: {name} is of type {part.get_dtype()}; headrace reads {', '.join(READABLE)}."
                )
            self._shapes[name] = tuple(part.get_shape())
            self._opened[name] = opened
