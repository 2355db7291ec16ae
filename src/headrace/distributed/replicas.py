"""One network in several processes: whole in each (DDP), or each with its part of every tensor (FSDP2)."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from headrace.distributed.group import Group
from headrace.distributed.pieces import as_whole
from headrace.models.network import Network


class Replica(ABC):
    """A process's share in the training of one network; gradients become the mean over all processes."""

    exposed_s: float | None = None
    """How long the last backward pass waited for gradients to be aggregated when it had nothing left to compute."""

    def __init__(self, network: Network, group: Group) -> None:
        self._network = network
        self._group = group

    @abstractmethod
    def hidden(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        """The network's hidden states of this process's rows."""

    @abstractmethod
    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; gradients are common when the last has ended."""

    @abstractmethod
    def whole(self) -> AbstractContextManager[Network]:
        """The network with all its weights, for rank 0 to use alone; every process has to take part."""


class Copied(Replica):
    """All weights in each process, by PyTorch's DistributedDataParallel.

    Gradients travel during the backward pass, once per update: with the last micro-batch. The head's loss may add to
    the head's gradient on the spot: gradients are read where they are kept, not where they are made, and the head's
    turn comes in the backward pass as everybody's.
    """

    def __init__(self, network: Network, group: Group) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(network, group)
        with group.exchanging("comparing the networks"):
            self._module = DistributedDataParallel(_Hidden(network), gradient_as_bucket_view=True)
        self._computed_s = 0.0

    def hidden(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        hidden_BTD: Tensor = self._module(tokens_BT, documents_BT)
        if hidden_BTD.requires_grad:
            hidden_BTD.register_hook(self._note_the_end)  # type: ignore[no-untyped-call]
        return hidden_BTD

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        local: AbstractContextManager[Any] = nullcontext() if is_last else self._module.no_sync()
        with self._group.exchanging("averaging gradients"), local:
            yield
            self.exposed_s = time.perf_counter() - self._computed_s

    def _note_the_end(self, _gradient: Tensor) -> None:
        """Called as the backward pass begins. What is queued first is called first: before DDP waits for gradients."""
        Variable._execution_engine.queue_callback(self._note_time)

    def _note_time(self) -> None:
        self._computed_s = time.perf_counter()

    def whole(self) -> AbstractContextManager[Network]:
        return nullcontext(self._network)


class Sharded(Replica):
    """A part of each tensor in each process, by PyTorch's fully_shard.

    The weights of one block at a time are gathered for its computation; the root's (embedding and head) stay from
    the forward pass to the end of the backward pass, so the head's loss finds them whole. Gradients are reduced with
    every micro-batch: keeping whole ones until the last would take the memory that this is here to save.
    """

    def __init__(self, network: Network, group: Group) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(network, group)
        # A plain network, whose weights come and go: all but the parameters is copied.
        empty: dict[int, Any] = {id(parameter): nn.Parameter(torch.empty(0)) for parameter in network.parameters()}
        self._twin = copy.deepcopy(network, empty)
        with group.exchanging("sharing out the network"):
            mesh = init_device_mesh(network.head_weight_VD.device.type, (group.world_size,))
            for block in network.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)

    def hidden(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        return self._network(tokens_BT, documents_BT)  # type: ignore[no-any-return]  # its hooks want a plain call

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        with self._group.exchanging("gathering weights or reducing gradients"):
            yield

    @contextmanager
    def whole(self) -> Iterator[Network]:
        with self._group.exchanging("gathering the weights"):
            for part, parameter in zip(self._network.parameters(), self._twin.parameters(), strict=True):
                full = as_whole(part.detach())
                if self._group.is_main:
                    parameter.data = full
        yield self._twin
        for parameter in self._twin.parameters():
            parameter.data = torch.empty(0)


def share_out(network: Network, group: Group, sharding: str) -> Replica | None:
    """The network made ready for training in this group; None for one process alone, which needs nothing."""
    if group.world_size == 1:
        return None
    return Sharded(network, group) if sharding == "fsdp" else Copied(network, group)


class _Hidden(nn.Module):
    """What training calls of a network, as the `forward` that DistributedDataParallel wants."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        return self.network.hidden(tokens_BT, documents_BT)
