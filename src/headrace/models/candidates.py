"""The tokens of the vocabulary that the loss of an update compares: its own, and some that stand for all others.

Who draws them: training/showing/vocabulary.py. What that is worth: docs/design/vocabulary.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """Some tokens of a vocabulary, every token of the batch among them."""

    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.float32]
    """What is added to the logit of each: the logarithm of how many tokens it stands for."""
    places: npt.NDArray[np.int32]
    """Where each token of the vocabulary stands among the candidates; anything for those that do not."""

    def __len__(self) -> int:
        return len(self.ids)

    def place(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the places of tokens of the batch among the candidates."""
        placed: npt.NDArray[np.int32] = self.places[tokens]
        return placed

    def select(self, table_VD: Tensor) -> Tensor:
        """Return the candidates' rows of a table with one row for each token."""
        return table_VD.index_select(0, torch.from_numpy(self.ids).to(table_VD.device))

    def add_rows(self, table_VD: Tensor, rows: Tensor) -> None:
        """Add rows to those of the candidates in a table with one row for each token."""
        table_VD.index_add_(0, torch.from_numpy(self.ids).to(table_VD.device), rows)
