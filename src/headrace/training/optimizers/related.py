"""AdamW for tables with a row for each token, whose rows learn from those of tokens that they share a part with.

A part that tokens share has a vector of its own, which is in all of their rows: its gradient is the sum of theirs, and
AdamW moves it like any other. It is never stored, because it is only ever added to (docs/design/vocabulary.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from headrace.data.tokens.relations import SharedParts
from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import as_whole, local, own_part
from headrace.models.counts import FLOAT_BYTES
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers.adamw import AdamW, apply_adamw

PARTS_STEP, PARTS_AVERAGE, PARTS_SQUARES = "parts_step", "parts_exp_avg", "parts_exp_avg_sq"
USUAL_PARTS = 0.47
"""Parts that tokens share, for each token of a vocabulary: of BPE on English and source code, 0.44 to 0.47."""
USUAL_PAIRS = 2.3
"""Pairs of a token and a part that it shares, for each token of a vocabulary."""


def usual_parts(config: TrainingConfig, vocab_size: int) -> SharedParts | None:
    """Return as many parts as a vocabulary usually has, of random tokens, to measure updates with; None: no parts."""
    num_parts = round(USUAL_PARTS * vocab_size) if config.related_tokens else 0
    if not num_parts:
        return None
    rng, num_pairs = np.random.default_rng(0), round(USUAL_PAIRS * vocab_size)
    tokens = rng.integers(0, vocab_size, num_pairs)
    return SharedParts(tokens, rng.permutation(np.arange(num_pairs) % num_parts), num_parts)


def related_bytes(vocab_size: int, width: int) -> int:
    """Return the memory that an update of a table works in: gradients and moves of the parts, and those of all rows."""
    return round(FLOAT_BYTES * vocab_size * width * (1 + 2 * USUAL_PARTS))


class RelatedAdamW(AdamW):
    """AdamW of tables whose rows are tokens, and of the parts that tokens share."""

    scalars = (*AdamW.scalars, PARTS_STEP)

    def __init__(self, tables: list[Tensor], config: TrainingConfig, weight_decay: float, shared: SharedParts) -> None:
        super().__init__(tables, config, weight_decay)
        self._strength, self._num_parts = config.related_tokens, shared.num_parts
        num_tokens, device = tables[0].shape[0], tables[0].device
        self._tokens_of_parts = _Bags(shared.parts, shared.tokens, shared.num_parts, device)
        self._parts_of_tokens = _Bags(shared.tokens, shared.parts, num_tokens, device)

    @torch.no_grad()
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        tables = [table for table in self.parameters if table.grad is not None]
        moved = [self._move_parts(table, learning_rate) for table in tables]
        super().step(learning_rate, execution, group)
        for table, parts in zip(tables, moved, strict=True):
            rows = self._parts_of_tokens.sum(parts)
            local(table).add_(local(own_part(rows, table)), alpha=self._strength)

    def _move_parts(self, table: Tensor, learning_rate: float) -> Tensor:
        """Return by how much the vectors of the parts move; every process computes all of them."""
        assert table.grad is not None
        gradient = self._tokens_of_parts.sum(as_whole(table.grad)).mul_(self._strength)
        state = self.state.setdefault(table, {})
        if PARTS_STEP not in state:
            state[PARTS_STEP] = torch.zeros((), dtype=torch.float32, device=table.device)
            state[PARTS_AVERAGE], state[PARTS_SQUARES] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        moved = torch.zeros_like(gradient)
        average, squares, step = state[PARTS_AVERAGE], state[PARTS_SQUARES], state[PARTS_STEP]
        apply_adamw([moved], [gradient], [average], [squares], [step], learning_rate, 0.0, self.config)
        return moved

    def whole_state(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        shape = (self._num_parts, parameter.shape[1])
        return {PARTS_AVERAGE: shape, PARTS_SQUARES: shape}


class _Bags:
    """Some rows of a table for each of `num_bags` bags."""

    def __init__(
        self, bags: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], num_bags: int, device: torch.device
    ) -> None:
        order = np.argsort(bags, kind="stable")
        starts = np.searchsorted(bags[order], np.arange(num_bags))
        self._rows, self._starts = torch.from_numpy(rows[order]).to(device), torch.from_numpy(starts).to(device)

    def sum(self, table: Tensor) -> Tensor:
        """Return the sum of the rows of each bag."""
        return embedding_bag(self._rows, table, self._starts, mode="sum")
