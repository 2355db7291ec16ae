"""The facts that define an architecture, and the registry that finds one by its name.

Importing this module, or `models.config`, does not import torch: the file of an architecture is imported when the
architecture is first asked for. How to add one: docs/design/architectures.md.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

    from headrace.models.config import ModelConfig
    from headrace.models.hugging_face import HuggingFaceConfig
    from headrace.models.network import Network

Part = Literal["embedding", "attention", "feed-forward", "norms", "head"]
PARTS: tuple[Part, ...] = get_args(Part)
BlockPart = Literal["attention", "feed-forward"]
BLOCK_PARTS: tuple[BlockPart, ...] = get_args(BlockPart)
"""The parts whose matrices are in blocks, which gradient checkpointing computes twice."""
BUILT_IN = ("gpt2", "llama", "qwen3")
"""Names of the architectures that headrace carries: each is the module of that name in this folder."""


@dataclass(frozen=True)
class Matrix:
    """A weight of every block: `stacked` matrices of `rows` x `columns`, one above the other, in one parameter."""

    part: BlockPart
    name: str
    """Name of the parameter inside its block, such as `down.weight`."""
    rows: int
    columns: int
    stacked: int = 1

    @property
    def num_weights(self) -> int:
        return self.stacked * self.rows * self.columns


class Architecture(ABC):
    """Everything that is true of one kind of network; counts, FLOPs, memory and optimizers derive from it.

    What all kinds share is not repeated here: a token embedding, and a head that is tied to it or not.
    """

    name: str
    """What `model.arch` calls it."""
    native_kind: str | None = None
    """Kind of blocks by which the native library computes it (native/engine.py: KINDS); None if it cannot."""
    hugging_face_types: tuple[str, ...] = ()
    """Values of `model_type` in a config.json whose models this architecture computes exactly."""
    default_epsilon: float = 1e-5
    """Number that norms add before they divide, unless a model is given one."""
    is_context_fixed: bool = True
    """Whether the longest sequence is in the weights, as a table of positions is."""
    has_grouped_heads: bool = False
    """Whether heads may share keys and values (`model.num_kv_heads`), and be of any width (`model.head_dim`)."""

    @abstractmethod
    def default_feed_forward(self, d_model: int) -> int:
        """Return the feed-forward width that a model has unless it is given one."""

    def check(self, config: ModelConfig) -> None:  # noqa: B027 - most architectures have nothing to refuse
        """Raise a ValueError for a shape that this architecture cannot have."""

    @abstractmethod
    def block_matrices(self, config: ModelConfig) -> Sequence[Matrix]:
        """List the matrices of one block."""

    @abstractmethod
    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        """Count the norms, biases and positions of the whole network, by the part that they belong to."""

    @abstractmethod
    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        """Estimate the bytes that one block keeps per token for its backward pass.

        Precision is float32 or bfloat16. The figures are counted on a network, by `training.ways.activations`.
        """

    def why_not_native(self, config: ModelConfig) -> str:
        """Return what of a shape the native library does not know; empty if it can compute it."""
        if self.native_kind is None:
            return f"the architecture {self.name}"
        is_usual = config.epsilon == self.default_epsilon
        return "" if is_usual else f"model.norm_epsilon={config.norm_epsilon:g}"

    def read_hugging_face(self, values: HuggingFaceConfig) -> dict[str, Any]:
        """Return the keys of `model` that a config.json of one of `hugging_face_types` stands for.

        Raises `UnsupportedError` with the name of what this architecture does not compute.
        """
        raise NotImplementedError

    @abstractmethod
    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        """Build the network with random weights drawn from the generator."""


_registered: dict[str, Architecture] = {}


def register(architecture: Architecture) -> None:
    """Make an architecture available as `model.arch`."""
    _registered[architecture.name] = architecture


def unregister(name: str) -> None:
    """Remove an architecture that was registered."""
    del _registered[name]


def architecture_names() -> list[str]:
    """List every name that `model.arch` can have."""
    return sorted({*BUILT_IN, *_registered})


def check_name(name: str) -> str:
    """Return the name of an architecture as it is, or raise a ValueError that suggests the nearest name."""
    names = architecture_names()
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"unknown architecture {name!r}; there are {', '.join(names)}.{hint}")


def find_architecture(name: str) -> Architecture:
    """Return the architecture of this name, after importing its file if it is built in.

    >>> find_architecture("gpt2").default_feed_forward(512)
    2048
    """
    check_name(name)
    if name not in _registered:
        import_module(f"headrace.models.built_in.{name}")
    return _registered[name]
