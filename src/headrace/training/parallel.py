"""One network in several processes: gradients are averaged over them while the backward pass still goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from headrace.machine.group import Group
from headrace.models.network import Network


class Replica:
    """A process's copy of a network, wrapped in PyTorch's DistributedDataParallel.

    The head's loss may add to the head's gradient on the spot: gradients are read where they are kept, not where they
    are made, and the head's turn comes in the backward pass as everybody's.
    """

    def __init__(self, network: Network, group: Group) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._group = group
        with group.exchanging("comparing the networks"):
            self._module = DistributedDataParallel(_Hidden(network), gradient_as_bucket_view=True)

    def hidden(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        return self._module(tokens_BT, documents_BT)  # type: ignore[no-any-return]

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Gradients travel once per update: with the last micro-batch."""
        local: AbstractContextManager[Any] = nullcontext() if is_last else self._module.no_sync()
        with self._group.exchanging("averaging gradients"), local:
            yield


class _Hidden(nn.Module):
    """What training calls of a network, as the `forward` that DistributedDataParallel wants."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        return self.network.hidden(tokens_BT, documents_BT)
