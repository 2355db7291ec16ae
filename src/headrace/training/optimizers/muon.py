"""Muon: momentum, orthogonalised by Newton-Schulz iterations (Jordan et al., 2024); one average per weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import as_whole, local, own_part
from headrace.machine.waiting import waits_briefly
from headrace.models.counts import FLOAT_BYTES
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers.newton_schulz import orthogonalisation_flops, orthogonalise
from headrace.training.optimizers.rule import Rule

SCRATCH_ELEMENTS = 1 << 21
"""Elements of matrices of one shape that a process orthogonalises together: enough for full speed, in little memory."""
LEAST_TOGETHER = 2
"""Matrices that are orthogonalised together however large they are: PyTorch multiplies a single one much slower."""

SCRATCH_COPIES = 8
"""Tensors of the size of the matrices that exist at once, in the format of products, with what the allocator loses."""


class Muon(Rule):
    """Muon, batched by shape: a few large products instead of many small ones.

    Products are computed in the step's precision, by the native library where steps are; momentum and weights stay in
    float32. The update is scaled to the size that AdamW's would have, so both share one learning rate. The processes of
    a group share the work: each orthogonalises some of the matrices, and they exchange the results, so their weights
    stay equal to the bit. Where processes share a matrix, each keeps its piece of the momentum, and takes its piece of
    the update.
    """

    averages = ("momentum",)

    @torch.no_grad()
    def step(self, learning_rate: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        for parameters in self._batches(group.world_size):
            self._update(parameters, learning_rate, execution, group)

    def _batches(self, num_processes: int) -> Iterator[list[Tensor]]:
        """Yield parameters whose matrices are orthogonalised together: all of one shape, as many as scratch allows."""
        alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for parameter in self.parameters:
            if parameter.grad is not None:
                alike[self._matrix_shape(parameter)].append(parameter)
        for (rows, columns), parameters in alike.items():
            most = num_processes * max(LEAST_TOGETHER, SCRATCH_ELEMENTS // (rows * columns))
            batch: list[Tensor] = []
            for parameter in parameters:
                if batch and sum(map(self._num_matrices, [*batch, parameter])) > most:
                    yield batch
                    batch = []
                batch.append(parameter)
            yield batch

    def _num_matrices(self, parameter: Tensor) -> int:
        return self.stacked.get(parameter, 1)

    def _matrix_shape(self, parameter: Tensor) -> tuple[int, int]:
        return parameter.shape[0] // self._num_matrices(parameter), parameter.shape[1]

    def _update(self, parameters: list[Tensor], learning_rate: float, execution: Execution, group: Group) -> None:
        rows, columns = self._matrix_shape(parameters[0])
        counts = [self._num_matrices(parameter) for parameter in parameters]
        num_matrices = sum(counts)
        each = -(-num_matrices // group.world_size)
        device, dtype = parameters[0].device, execution.dtype
        matrices = torch.empty(each * group.world_size, rows, columns, dtype=dtype, device=device)
        matrices[num_matrices:] = 0
        for parameter, part in zip(parameters, torch.split(matrices[:num_matrices], counts), strict=True):
            part.view(parameter.shape).copy_(self._look_ahead(parameter))
        # Where PyTorch's threads spin for long after an operation, they hold the cores that the library needs.
        native_threads = torch.get_num_threads() if execution.engine == "native" and waits_briefly() else 0
        mine = orthogonalise(matrices[group.rank * each : (group.rank + 1) * each], native_threads)
        updates = group.gather_rows(mine, "exchanging updates").float()
        size = 0.2 * max(rows, columns) ** 0.5
        for parameter, update in zip(parameters, torch.split(updates[:num_matrices], counts), strict=True):
            weights = local(parameter)
            weights.mul_(1 - learning_rate * self.weight_decay)
            weights.add_(local(own_part(update.view(parameter.shape), parameter)), alpha=-learning_rate * size)

    def _look_ahead(self, parameter: Tensor) -> Tensor:
        """Update the momentum with the gradient, and return Nesterov's look-ahead of it, whole."""
        assert parameter.grad is not None
        if parameter not in self.state:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}
        momentum = self.state[parameter]["momentum"]
        momentum.lerp_(parameter.grad, 1 - self.config.momentum)
        return as_whole(parameter.grad.lerp(momentum, self.config.momentum))

    @staticmethod
    def update_flops(rows: int, columns: int, dtype: torch.dtype) -> int:
        """Return the FLOPs of the Newton-Schulz products of one matrix, of however many processes one does them."""
        return orthogonalisation_flops(rows, columns, dtype)

    @staticmethod
    def working_bytes(rows: int, columns: int, num_matrices: int, dtype: torch.dtype) -> int:
        """Return what the matrices that are orthogonalised together take, and the products on the way."""
        together = min(num_matrices, max(LEAST_TOGETHER, SCRATCH_ELEMENTS // (rows * columns)))
        return together * rows * columns * (SCRATCH_COPIES * dtype.itemsize + 2 * FLOAT_BYTES)
