"""The optimizer of a network: the rules of all its parameters, and their state by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torch import Tensor

from headrace.data.tokens.relations import SharedParts
from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import as_whole, own_part
from headrace.models.counts import FLOAT_BYTES
from headrace.models.network import Network
from headrace.training.config import TrainingConfig
from headrace.training.execution import PLAINEST, Execution
from headrace.training.optimizers.assignment import assign, update_bytes


class Optimizer:
    """All parameters of a network, each updated by the rule it is assigned to."""

    def __init__(self, network: Network, config: TrainingConfig, shared: SharedParts | None = None) -> None:
        """`shared`: the parts that tokens share, where they are to learn from each other."""
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
        self._peak = config.learning_rate
        self._model, self._config = network.config, config
        self.rules = assign(network, config, shared)

    def step(self, factor: float, execution: Execution = PLAINEST, group: Group = ALONE) -> None:
        """Update all parameters with the learning rate at this share of its peak; a group does so together."""
        for rule in self.rules:
            rule.step(self._peak * factor, execution, group)

    def bytes_to_come(self) -> int:
        """Return the bytes of state that the first step will allocate."""
        return sum(
            FLOAT_BYTES
            * (len(rule.averages) * parameter.numel() + sum(map(math.prod, rule.whole_state(parameter).values())))
            for rule in self.rules
            for parameter in rule.parameters
            if parameter not in rule.state
        )

    def gradient_bytes_to_come(self) -> int:
        """Return the bytes of gradients that are not there now."""
        return sum(
            FLOAT_BYTES * parameter.numel()
            for rule in self.rules
            for parameter in rule.parameters
            if parameter.grad is None
        )

    def working_bytes(self, execution: Execution) -> int:
        """Return the bytes that an update works in and gives back."""
        return update_bytes(self._model, self._config, execution.dtype)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the state of each parameter, whole, by name. Processes that share a model must do so together."""
        for rule in self.rules:
            for parameter, state in rule.state.items():
                for key, value in state.items():
                    yield f"{self._names[parameter]}.{key}", as_whole(value)

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what `tensors` yields once every parameter has been updated."""
        shapes: dict[str, tuple[int, ...]] = {}
        for rule in self.rules:
            for parameter in rule.parameters:
                name = self._names[parameter]
                shapes |= {f"{name}.{key}": () for key in rule.scalars}
                shapes |= {f"{name}.{key}": tuple(parameter.shape) for key in rule.averages}
                shapes |= {f"{name}.{key}": shape for key, shape in rule.whole_state(parameter).items()}
        return shapes

    def load_tensors(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Restore the state that `tensors` yielded, in this `layout`; each process keeps its own pieces."""
        owners = {self._names[parameter]: (rule, parameter) for rule in self.rules for parameter in rule.parameters}
        for name, tensor in tensors:
            owner, _, key = name.rpartition(".")
            rule, parameter = owners[owner]
            value = tensor.to(parameter.device, copy=True)
            is_shared = value.dim() and key not in rule.whole_state(parameter)
            rule.state.setdefault(parameter, {})[key] = own_part(value, parameter) if is_shared else value
