"""The memory that passes take, known before they run: exactly for native ones, which plan it, else by an estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.models.counts import FLOAT_BYTES, count
from headrace.models.memory import (
    checkpointed_bytes_per_token,
    estimated_activation_bytes_per_token,
    number_bytes,
    weight_copy_bytes,
)
from headrace.native.engine import planned_bytes
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.assignment import RULES, state_bytes, update_bytes

SPARE_BYTES = 32_000_000
"""Memory that a way must leave free: pages of libraries that are used for the first time, what kernels keep (25 MB were
measured on `prototype`)."""
KERNEL_BYTES = 16_000_000
"""Memory that the code and the buffers of PyTorch's kernels take once passes have used them."""
STARTS_DIFFER_BYTES = 10_000_000
"""What a budget that is named leaves for the difference between two starts of the same run: some MB were measured."""
KEPT_SHARE = 0.5
"""Share of what an update works in that kernels keep afterwards (measured: 22 to 28 MB of 50)."""
FRAGMENTED = 1.25
"""Times what PyTorch's passes hold at once that they take of the system, where freed memory is given back before each
of them: 0.95 to 1.3 were measured (docs/LOG.md). Where it is not, they take more (docs/design/rehearsal.md)."""


def pass_bytes(model: ModelConfig, sequence_length: int, execution: Execution) -> int:
    """Return the bytes that the passes of a micro-batch take beside weights, gradients and the optimizer's state."""
    rows, threads = execution.micro_batch_size, execution.threads or torch.get_num_threads()
    if execution.engine == "native":
        return planned_bytes(model, rows, sequence_length, execution.precision, threads)
    precision, num_tokens = execution.precision, rows * sequence_length
    counts = count(model, sequence_length)
    per_token = estimated_activation_bytes_per_token(model, precision, execution.attention, sequence_length)
    if execution.gradient_checkpointing:
        per_token = checkpointed_bytes_per_token(model, per_token)
    logits = min(execution.head_chunk_bytes, number_bytes(precision) * num_tokens * model.vocab_size)
    # The head's gradient, in bfloat16 with its copies; then the gradients of a block, before they are added to others.
    copies = 2 if precision == "bfloat16" else 1
    head = logits + FLOAT_BYTES * model.d_model * (copies * model.vocab_size + num_tokens)
    added = FLOAT_BYTES * counts.block_weights // model.num_layers
    held = num_tokens * per_token + weight_copy_bytes(counts, precision) + head + added
    return int(FRAGMENTED * held) + KERNEL_BYTES


def short_pass_bytes(model: ModelConfig, training: TrainingConfig, execution: Execution) -> int:
    """Return the same for the first steps of a run, in which sequences are cut into short windows."""
    rows = execution.micro_batch_size * training.pieces
    return pass_bytes(model, training.sequence_length // training.pieces, replace(execution, micro_batch_size=rows))


@dataclass(frozen=True)
class Demand:
    """The memory that steps need in one way, by when it comes."""

    way: Execution
    held: int
    """What the process has already, its weights included, and without freed memory."""
    to_come: int
    """Gradients and state of the optimizer that are not there yet."""
    working: int
    """What passes, or the update if that takes more, work in, with what kernels keep of it."""
    alternative: str
    """A change of the optimizer that would need less, in words; empty if none does."""

    @classmethod
    def of(cls, model: ModelConfig, training: TrainingConfig, way: Execution, held: int, to_come: int) -> Demand:
        """Build the demand of a way from what the process has and what is known to come."""
        passes = max(pass_bytes(model, training.sequence_length, way), short_pass_bytes(model, training, way))
        update = update_bytes(model, training, way.dtype)
        working = max(passes + int(KEPT_SHARE * update), update)
        return cls(way, held, to_come, working, _smaller_optimizer(model, training))

    @property
    def total(self) -> int:
        return self.held + self.to_come + self.working

    def check(self, limit: int, training: TrainingConfig, is_chosen: bool = False) -> None:
        """Refuse a limit that this way would break; name one that it would not.

        It is the way that takes the least memory, or the one that was chosen before, whose steps have been seen.
        """
        spare_bytes = 0 if is_chosen else SPARE_BYTES
        needed = self.total + spare_bytes
        if needed <= limit:
            return
        limited = (
            f"training.memory_budget={_megabytes(limit)} cannot be kept"
            if training.memory_budget
            else f"{_megabytes(limit)} of memory are not enough"
        )
        enough = _rounded_up(needed + STARTS_DIFFER_BYTES)
        remedies = [f"training.memory_budget={enough} or more"] if training.memory_budget else []
        if not is_chosen:
            remedies += self._other_remedies(training)
        raise UsageError(
            f"{limited}: this run needs {_megabytes(needed)} {'in' if is_chosen else 'even in'} the way that"
            f" {'was chosen for it' if is_chosen else 'takes the least memory'}"
            f" ({self.way.describe()}). The process has {_megabytes(self.held)} before its first step, its weights"
            f" included; gradients and optimizer state add {_megabytes(self.to_come)}, and a step works in"
            f" {_megabytes(self.working)}; {_megabytes(spare_bytes)} are spared for what else comes. Use"
            f" {'; or '.join(remedies)}. To start it as it is: run.force=true or --force."
        )

    def _other_remedies(self, training: TrainingConfig) -> list[str]:
        """Return what would make a run need less memory."""
        remedies = [self.alternative] if self.alternative else []
        remedies += ["no training.micro_batch_size"] if training.micro_batch_size else []
        remedies += ["training.engine=auto"] if training.engine == "torch" else []
        return [*remedies, "a smaller model.d_model, model.num_layers or model.vocab_size"]


def _smaller_optimizer(model: ModelConfig, training: TrainingConfig) -> str:
    """Return the optimizer whose state is the smallest, and what it saves; empty if it is the given one."""
    counts = count(model, training.sequence_length)
    sizes = {name: state_bytes(counts, name, training.related_tokens) for name in RULES}
    least = min(sizes, key=lambda name: sizes[name])
    saved = sizes[training.optimizer] - sizes[least]
    return f"training.optimizer={least}, whose state is {_megabytes(saved)} smaller" if saved else ""


def _megabytes(num_bytes: int) -> str:
    """Return a size in the unit in which people write budgets.

    >>> _megabytes(850_000_000)
    '850MB'
    """
    return f"{num_bytes / 1e6:.0f}MB"


def _rounded_up(num_bytes: int) -> str:
    """Return a size that is not smaller, with a round number.

    >>> _rounded_up(851_000_000)
    '860MB'
    """
    return _megabytes(-(-num_bytes // 10_000_000) * 10_000_000)
