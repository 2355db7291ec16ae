"""One network in several processes: whole in each (DDP), or each with its piece of every tensor (FSDP2)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from headrace.distributed.group import ALONE, Group
from headrace.distributed.pieces import as_whole
from headrace.machine.allocator import release_freed_memory
from headrace.machine.facts import memory_bytes
from headrace.models.dropout import Dropout
from headrace.models.kernels import Kernels
from headrace.models.network import Network
from headrace.native.engine import NativeStep


class Replica:
    """A network as one process trains it. For a process alone it is the network itself; subclasses are for groups."""

    exposed_s: float | None = None
    """Seconds that the last backward pass waited for gradients after it had computed its own; None: not measured."""

    memory_limit: int | None = None
    """Most memory that the process should have; None: no limit."""

    def __init__(self, network: Network, group: Group = ALONE) -> None:
        self.network = network
        self.group = group
        self._forward: nn.Module = _Forward(network)
        self._native: dict[tuple[str, int, int], NativeStep] = {}
        self._borrower: Network | None = None

    def hidden(
        self, tokens_BT: Tensor, documents_BT: Tensor | None, kernels: Kernels, dropout: Dropout | None = None
    ) -> Tensor:
        """Return the network's hidden states of this process's rows."""
        return self._forward(tokens_BT, documents_BT, kernels, dropout)  # type: ignore[no-any-return]

    def native_step(self, precision: str, num_threads: int) -> NativeStep:
        """Return the native step of the network. Only the newest is kept: each has memory of its own."""
        key = (precision, num_threads, len(self.network.blocks))
        if key not in self._native:
            self._native.clear()
            self._native[key] = NativeStep(self.network, precision, num_threads)
        return self._native[key]

    def make_room(self, num_bytes: int) -> bool:
        """Give memory back that is only kept for speed, if this many bytes more would break the limit.

        Return whether there is room for them then.
        """
        if self.memory_limit is None or memory_bytes() + num_bytes <= self.memory_limit:
            return True
        self.release_native_steps()
        release_freed_memory()
        return memory_bytes() + num_bytes <= self.memory_limit

    def release_native_steps(self) -> None:
        """Give the memory of native steps back; the next one plans it again."""
        for step in self._native.values():
            step.release()

    def average_gradients(self) -> None:
        """Make gradients that no backward pass has exchanged, such as native ones, means over the group."""

    def micro_batch(self, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for the passes of a micro-batch; after the last one, gradients are means over the group."""
        return nullcontext()

    def whole(self, weights: Sequence[Tensor] | None = None) -> AbstractContextManager[Network]:
        """Return a context that gives rank 0 the network with all its weights; every process has to enter it.

        `weights`: others in the place of the parameters, such as an average, each divided among processes like its
        parameter; training goes on with the parameters as they are.
        """
        if weights is None:
            return nullcontext(self.network)
        if self._borrower is None:
            self._borrower = without_weights(self.network)
        return lending(self._borrower, weights)


class DdpReplica(Replica):
    """All weights in each process, by PyTorch's DistributedDataParallel.

    Gradients are exchanged during the backward pass, once per update: with the last micro-batch. The head's loss may
    add to the head's gradient in place: DDP reads gradients where they are kept, and takes the head's, like all others,
    in the backward pass.
    """

    def __init__(self, network: Network, group: Group) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(network, group)
        with group.exchanging("comparing the networks"):
            self._ddp = DistributedDataParallel(self._forward, gradient_as_bucket_view=True)
        self._forward = self._ddp
        self._computed_s = 0.0

    def hidden(
        self, tokens_BT: Tensor, documents_BT: Tensor | None, kernels: Kernels, dropout: Dropout | None = None
    ) -> Tensor:
        hidden_BTD = super().hidden(tokens_BT, documents_BT, kernels, dropout)
        if hidden_BTD.requires_grad:
            hidden_BTD.register_hook(self._queue_clock)  # type: ignore[no-untyped-call]
        return hidden_BTD

    def average_gradients(self) -> None:
        with self.group.exchanging("averaging gradients"):
            for parameter in self.network.parameters():
                assert parameter.grad is not None
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(self.group.world_size)

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        local: AbstractContextManager[Any] = nullcontext() if is_last else self._ddp.no_sync()
        with self.group.exchanging("averaging gradients"), local:
            yield
            self.exposed_s = time.perf_counter() - self._computed_s

    def _queue_clock(self, _gradient: Tensor) -> None:
        """Arrange for the time to be noted at the end of the backward pass that begins now.

        Callbacks run in the order in which they are queued, so this one runs before DDP's, which waits for gradients.
        """
        Variable._execution_engine.queue_callback(self._note_time)

    def _note_time(self) -> None:
        self._computed_s = time.perf_counter()


class FsdpReplica(Replica):
    """A piece of each tensor in each process, by PyTorch's fully_shard.

    The weights of one block at a time are gathered for its computation; the root's (embedding and head) stay from
    the forward pass to the end of the backward pass, so the head's loss finds them whole. Gradients are reduced with
    every micro-batch: keeping whole ones until the last would take the memory that sharding is there to save.
    """

    def __init__(self, network: Network, group: Group) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(network, group)
        self._gathered = without_weights(network)
        with group.exchanging("sharding the network"):
            mesh = init_device_mesh(network.device.type, (group.world_size,))
            for block in network.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)

    @contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        with self.group.exchanging("gathering weights or reducing gradients"):
            yield

    @contextmanager
    def whole(self, weights: Sequence[Tensor] | None = None) -> Iterator[Network]:
        gathered: list[Tensor] = []
        with self.group.exchanging("gathering the weights"):
            for piece in self.network.parameters() if weights is None else weights:
                full = as_whole(piece.detach())
                if self.group.is_main:
                    gathered.append(full)
        with lending(self._gathered, gathered) as network:
            yield network


def make_replica(network: Network, group: Group, sharding: str) -> Replica:
    """Return the network ready for training in a group: "ddp" copies it, "fsdp" shards it, one process has it alone."""
    if group.world_size == 1:
        return Replica(network, group)
    return FsdpReplica(network, group) if sharding == "fsdp" else DdpReplica(network, group)


def without_weights(network: Network) -> Network:
    """Return a network of the same kind that has no weights of its own: `lending` gives it some for a while."""
    empty: dict[int, Any] = {id(parameter): nn.Parameter(torch.empty(0)) for parameter in network.parameters()}
    return copy.deepcopy(network, empty)


@contextmanager
def lending(network: Network, weights: Iterable[Tensor]) -> Iterator[Network]:
    """Give a network without weights those of each parameter, or none at all, for as long as the context lasts."""
    for parameter, weight in zip(network.parameters(), weights, strict=False):
        parameter.data = weight
    try:
        yield network
    finally:
        for parameter in network.parameters():
            parameter.data = torch.empty(0)


class _Forward(nn.Module):
    """The forward pass of a network as the module that DistributedDataParallel wraps; it keeps the compiled code."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self._compiled: Callable[..., Tensor] | None = None

    def forward(
        self, tokens_BT: Tensor, documents_BT: Tensor | None, kernels: Kernels, dropout: Dropout | None
    ) -> Tensor:
        if not kernels.compile:
            return self.network(tokens_BT, documents_BT, kernels=kernels, dropout=dropout)  # type: ignore[no-any-return]
        if self._compiled is None:
            self._compiled = torch.compile(self.network.forward, dynamic=False)
        return self._compiled(tokens_BT, documents_BT, kernels=kernels, dropout=dropout)
