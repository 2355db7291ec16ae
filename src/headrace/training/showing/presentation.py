"""How batches are put before the network while it learns: cut into windows, with dropout, among some candidates.

All are settings of training, not of the network: evaluations see every number and all tokens, in windows as long as
those of training at that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.distributed.group import Group
from headrace.models.candidates import Candidates
from headrace.models.dropout import row_keys
from headrace.training.config import TrainingConfig, count_pieces
from headrace.training.showing.vocabulary import VocabularySampler


class TokenBatch(Protocol):
    """The parts of a batch that a step uses; the data engine's `Batch` has them."""

    @property
    def inputs(self) -> npt.NDArray[Any]: ...
    @property
    def targets(self) -> npt.NDArray[Any]: ...
    @property
    def documents(self) -> npt.NDArray[np.int32] | None: ...
    @property
    def mask(self) -> npt.NDArray[np.bool_] | None: ...
    @property
    def num_tokens(self) -> int: ...


@dataclass(frozen=True)
class Shown:
    """Rows as the network sees them, and a key for each that decides what is dropped of it; None: nothing is."""

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    documents: npt.NDArray[np.int32] | None
    mask: npt.NDArray[np.bool_] | None
    dropout: float = 0.0
    keys: npt.NDArray[np.uint32] | None = None
    candidates: Candidates | None = None
    """Tokens that the loss compares; None: all."""


@dataclass(frozen=True)
class Presentation:
    """How the sequences of one batch are shown."""

    window: int = 0
    """Tokens of the windows into which each sequence is cut; 0: it stays whole, as it does where they do not divide it
    evenly."""
    dropout: float = 0.0
    """Share of the numbers that are dropped."""
    seed: int = 0
    first_row: int = 0
    """The number of the batch's first sequence, among those of all steps and processes of a run."""
    candidates: Candidates | None = None
    """Tokens that the loss of the batch compares; None: all."""

    @classmethod
    def at(
        cls,
        config: TrainingConfig,
        window: int,
        step: int,
        group: Group,
        batch: TokenBatch,
        sampler: VocabularySampler | None = None,
    ) -> Presentation:
        """Return how a step shows its batch, of which every process of the group has as many sequences.

        `window`: tokens of the windows into which sequences are cut; 0: they stay whole. `sampler`: draws the tokens
        that the loss compares; None: it compares all.
        """
        first_row = (step * group.world_size + group.rank) * len(batch.inputs)
        candidates = sampler.draw(step, (batch.inputs, batch.targets), group) if sampler else None
        return cls(window, config.dropout, config.seed, first_row, candidates)

    def show(self, batch: TokenBatch, rows: slice) -> Shown:
        """Return some sequences of a batch as the network sees them."""

        pieces = count_pieces(batch.inputs.shape[1], self.window)

        def cut(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            whole = array[rows]
            return whole if pieces == 1 else whole.reshape(len(whole) * pieces, -1)

        inputs = cut(batch.inputs)
        first_piece = (self.first_row + rows.start) * pieces
        keys = row_keys(self.seed, first_piece, len(inputs)) if self.dropout else None
        return Shown(
            inputs,
            cut(batch.targets),
            None if batch.documents is None else cut(batch.documents),
            None if batch.mask is None else cut(batch.mask),
            self.dropout,
            keys,
            self.candidates,
        )


AS_IT_IS = Presentation()
"""Whole sequences, and every number."""
