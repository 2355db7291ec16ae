"""A model that somebody else trained: its shape from its config.json, and its weights copied into a network of ours.

    model = Pretrained(FolderFiles(Path("smollm")))
    network = build(model.config)
    model.load_into(network)

No code of the model is run, and no pickle is read. What headrace does not compute is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from pydantic import ValidationError

from headrace.errors import CheckpointError
from headrace.interop.pretrained.files import ModelFiles
from headrace.interop.pretrained.weights import Weights
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.hugging_face import HuggingFaceConfig, MalformedError, UnsupportedError, find_by_type
from headrace.models.network import Network

CONFIG = "config.json"
MAXIMUM_CONFIG_BYTES = 4 << 20
HEAD = "lm_head.weight"
_BASE_PREFIXES = ("transformer.", "model.")
"""What the names of tensors begin with, unless a model was saved without its head."""
_NOT_WEIGHTS = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
"""Masks and tables that older versions of transformers saved."""


class Pretrained:
    """A model to begin from."""

    def __init__(self, files: ModelFiles, config: ModelConfig | None = None) -> None:
        """`config`: its shape where that is known already; None: as its config.json says."""
        self.files = files
        self.config = config or _read_config(files)
        """Its shape, with the vocabulary and the context that its weights have."""

    @property
    def name(self) -> str:
        """The model as the user named it."""
        return self.files.name

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self.files)

    def load_into(self, network: Network, pieces: Mapping[int, Sequence[int]] | None = None) -> None:
        """Copy the weights into a network of this shape, whose vocabulary may be larger.

        A token that is new, an id in `pieces`, begins as the mean of the tokens that its text consisted of; rows
        beyond them, which no token has, as the mean of all.
        """
        self.check_size()
        self._check_layout(network)
        known, pieces = self.config.vocab_size, pieces or {}
        rows = (network.embedding.weight, network.head)
        with torch.no_grad():
            for name, own in network.hugging_face_tensors().items():
                found = self._weights[self._stored(name)]
                if any(own is row for row in rows):
                    own[:known] = found
                    own[known:] = found.mean(0)
                    for index, parts in pieces.items():
                        own[index] = found[list(parts)].mean(0) if parts else found.mean(0)
                else:
                    own.copy_(found)
            self._check_head(network)

    def check_size(self) -> None:
        """Refuse a model whose files hold fewer weights than its shape has, before memory is taken for it."""
        expected = count(self.config, self.config.context).num_parameters
        if self._weights.num_numbers < expected:
            raise CheckpointError(
                f"{self.name}: its files hold {self._weights.num_numbers:,} numbers, and a model of the shape in"
                f" {CONFIG} has {expected:,}: {CONFIG} belongs to another model, or files are missing."
            )

    def _check_layout(self, network: Network) -> None:
        """Compare the names and shapes of all tensors with those of the network."""
        tensors = network.hugging_face_tensors()
        rows = (network.embedding.weight, network.head)
        used = set()
        for name, own in tensors.items():
            stored = self._stored(name)
            if stored not in self._weights:
                raise CheckpointError(f"{self.name}: no tensor {name}, which a model of the shape in {CONFIG} has.")
            expected = tuple(own.shape)
            if any(own is row for row in rows):
                expected = (self.config.vocab_size, *expected[1:])
            if self._weights.shape(stored) != expected:
                raise CheckpointError(
                    f"{self.name}: {stored} is {self._weights.shape(stored)}, and by {CONFIG} it would be {expected}:"
                    f" {CONFIG} belongs to another model."
                )
            used.add(stored)
        for name in self._weights:
            is_tied_head = name == HEAD and self.config.tie_embeddings
            if name not in used and not is_tied_head and not _NOT_WEIGHTS.search(name):
                raise CheckpointError(
                    f"{self.name}: has a tensor {name}, which headrace's {self.config.arch} does not compute with."
                )

    def _check_head(self, network: Network) -> None:
        """Refuse a head that differs from the embedding where config.json says that they are one."""
        if self.config.tie_embeddings and HEAD in self._weights:
            embedding = network.embedding.weight[: self.config.vocab_size]
            head = self._weights[HEAD]
            if head.shape != embedding.shape or not torch.equal(head, embedding.cpu()):
                raise CheckpointError(
                    f"{self.name}: {CONFIG} says that head and embedding are one (tie_word_embeddings), and {HEAD}"
                    ' holds another head. If the head is right, write "tie_word_embeddings": false there.'
                )

    def _stored(self, name: str) -> str:
        """Return the name under which a tensor is stored: with or without the name of the part that it is in."""
        bare = next((name.removeprefix(prefix) for prefix in _BASE_PREFIXES if name.startswith(prefix)), name)
        return bare if name not in self._weights and bare in self._weights else name

    def tensor_names(self) -> list[str]:
        """List the tensors that are stored."""
        return list(self._weights)


def _read_config(files: ModelFiles) -> ModelConfig:
    """Read a config.json and return the shape that it describes; refuse what no architecture of ours computes."""
    values = read_values(files)
    where = files.where(CONFIG)
    if own_code := values.get("auto_map"):
        code = ", ".join(sorted({str(name) for name in own_code.values()} if isinstance(own_code, dict) else []))
        raise CheckpointError(
            f"{where}: the model brings code of its own (auto_map: {code:.120}), which headrace does not run. Use"
            " a model that transformers computes without trust_remote_code."
        )
    try:
        architecture = find_by_type(values)
        return ModelConfig.model_validate({"arch": architecture.name, **architecture.read_hugging_face(values)})
    except UnsupportedError as problem:
        raise CheckpointError(f"{where}: not supported: it has {problem}.") from None
    except ValidationError as problem:
        first = problem.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        key = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{where}: no model has this shape ({key + ': ' if key else ''}{reason}).") from None
    except (MalformedError, TypeError, AttributeError, ValueError, OverflowError) as problem:
        raise CheckpointError(f"{where}: not the configuration of a model: {problem}.") from None


def read_values(files: ModelFiles) -> HuggingFaceConfig:
    """Read the values of a config.json."""
    path = files.find(CONFIG)
    if path is None:
        raise CheckpointError(f"{files.name}: no {CONFIG} here, so this is not a model that transformers saved.")
    try:
        with open(path, "rb") as file:
            values: Any = json.loads(file.read(MAXIMUM_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as problem:
        raise CheckpointError(f"{files.where(CONFIG)}: cannot be read as JSON ({problem}).") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{files.where(CONFIG)}: not the configuration of a model: it is not an object.")
    return HuggingFaceConfig(values)
