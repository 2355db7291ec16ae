"""The interface of an update rule: how some parameters are updated from their gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.distributed.group import ALONE, Group
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution


class Rule(ABC):
    """An update rule, the parameters that it updates, and the state that it keeps for them.

    Rules are plain objects over PyTorch's functions: `torch.optim.Optimizer` would import all of torch.compile, a
    second and 75 MB that a small machine has better uses for.
    """

    scalars: tuple[str, ...] = ()
    """Names of the numbers that are kept once for each parameter."""
    averages: tuple[str, ...]
    """Names of the tensors that are kept in the shape of each parameter: one number of state per weight each."""

    def __init__(
        self,
        parameters: list[Tensor],
        config: TrainingConfig,
        weight_decay: float,
        stacked: Mapping[Tensor, int] | None = None,
    ) -> None:
        """`stacked` is the number of matrices that stand one above the other in a parameter, where it is not 1."""
        self.parameters = parameters
        self.config = config
        self.weight_decay = weight_decay
        self.stacked = stacked or {}
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    @abstractmethod
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        """Update every parameter that has a gradient; every process of the group has to call this."""

    def whole_state(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        """Return the shapes of further state of a parameter by name; every process keeps it whole."""
        return {}

    @staticmethod
    @abstractmethod
    def update_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
        """Return the FLOPs of the matrix products in an update of one matrix, computed in this number format."""

    @staticmethod
    def working_bytes(rows: int, columns: int, num_matrices: int, dtype: torch.dtype) -> int:
        """Return the memory that an update of matrices of one shape works in, beside gradients and state."""
        return 0
