"""How a step is computed: chosen by measurement, recorded in the configuration, and the same again after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from headrace.models.kernels import CHUNK_BYTES, SMALL_CHUNK_BYTES, Attention, Kernels, Matmul
from headrace.training.config import MAX_THREADS, TrainingConfig
from headrace.units import plural

Precision = Literal["float32", "bfloat16"]
Engine = Literal["torch", "native"]


@dataclass(frozen=True)
class Execution:
    """One way to compute a step, under the configuration's names. It decides speed and memory, never what is learned.

    The limits hold where a saved one is read: pydantic checks them.
    """

    micro_batch_size: Annotated[int, Field(ge=1)]
    """Sequences per forward pass."""
    precision: Precision = "float32"
    """Number format of matrix products."""
    matmul: Matmul = "default"
    """Library of float32 matrix products."""
    gradient_checkpointing: bool = False
    """Whether the backward pass recomputes activations instead of keeping them."""
    compile: bool = False
    """Whether passes go through torch.compile."""
    threads: Annotated[int, Field(ge=0, le=MAX_THREADS)] = 0
    """Threads of the computation; 0 leaves the number as it is."""
    head_chunk_bytes: Annotated[int, Field(ge=1)] = CHUNK_BYTES
    """Most bytes of logits that exist at a time; the one choice that has no key in the configuration."""
    attention: Attention = "fused"
    """Code of attention."""
    engine: Engine = "torch"
    """Code of forward and backward passes; the native library has products and attention of its own."""

    @classmethod
    def from_config(cls, training: TrainingConfig) -> Execution:
        """Return the execution that a configuration describes; the plainest one where it leaves a choice open."""
        return cls(
            training.micro_batch_size or 1,
            "float32" if training.precision == "auto" else training.precision,
            "onednn" if training.matmul == "onednn" and not training.compile else "default",
            training.gradient_checkpointing,
            training.compile,
            training.threads,
            SMALL_CHUNK_BYTES if training.memory_budget else CHUNK_BYTES,
            "products" if training.attention == "products" and not training.compile else "fused",
            "native" if training.engine == "native" else "torch",
        )

    def write_into(self, training: TrainingConfig) -> None:
        """Set the keys of a configuration to this execution, so that it leaves nothing open."""
        for name in (field.name for field in fields(self)):
            if name in TrainingConfig.model_fields:
                setattr(training, name, getattr(self, name))

    def describe(self) -> str:
        """Return the execution in a few words.

        >>> Execution(8, "bfloat16", threads=2).describe()
        'micro-batch 8, bfloat16, 2 threads'
        """
        parts = [f"micro-batch {self.micro_batch_size}", self.precision]
        parts += ["native"] if self.engine == "native" else []
        parts += ["oneDNN"] if self.matmul == "onednn" else []
        parts += ["attention by products"] if self.attention == "products" else []
        parts += ["gradient checkpointing"] if self.gradient_checkpointing else []
        parts += ["compiled"] if self.compile else []
        return ", ".join([*parts, plural(self.threads, "thread")])

    @property
    def kernels(self) -> Kernels:
        """The part that the network needs."""
        return Kernels(self.matmul, self.attention, self.gradient_checkpointing, self.compile, self.head_chunk_bytes)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of matrix products as PyTorch's type."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context in which matrix products on a device are computed in this precision."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(device.type, dtype=self.dtype)

    def set_threads(self) -> None:
        """Give the computations of this process their number of threads."""
        if self.threads:
            torch.set_num_threads(self.threads)


PLAINEST = Execution(1)
"""Float32 by PyTorch's default products, one sequence at a time."""


def upgrade_saved(values: Any) -> Any:
    """Return a saved execution under today's names; older checkpoints have two others.

    >>> upgrade_saved({"micro_batch_size": 2, "use_onednn": True, "compiled": False})
    {'micro_batch_size': 2, 'matmul': 'onednn', 'compile': False}
    """
    if not isinstance(values, Mapping) or "use_onednn" not in values:
        return values
    current = {key: value for key, value in values.items() if key not in ("use_onednn", "compiled")}
    matmul = "onednn" if values["use_onednn"] else "default"
    return {**current, "matmul": matmul, "compile": values.get("compiled", False)}
