"""The bytes that autograd keeps for the backward pass, counted on the network itself rather than derived on paper."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headrace.models.config import ModelConfig
from headrace.models.kernels import probabilities_per_token
from headrace.models.network import Network
from headrace.native.engine import planned_bytes
from headrace.training.execution import Execution

LENGTH = 16


def activation_bytes_per_token(network: Network, execution: Execution, sequence_length: int) -> float:
    """Count the bytes that a forward pass keeps for each token; the head's loss keeps nothing of this kind.

    A second row keeps as much again, except of what all rows share: autocast's copies of the weights, rotary tables.
    """
    if execution.engine == "native":
        return native_bytes_per_token(network.config, execution, sequence_length)
    kept = _kept_per_token(network, execution, sequence_length)
    if execution.gradient_checkpointing:  # one block at a time is recomputed, with all that it keeps
        without = replace(execution, gradient_checkpointing=False)
        kept += _kept_per_token(network, without, sequence_length) / len(network.blocks)
    return kept


def native_bytes_per_token(config: ModelConfig, execution: Execution, sequence_length: int) -> float:
    """Return the memory of native steps, which they plan in advance, by token of a micro-batch."""
    rows, threads = execution.micro_batch_size, execution.threads or torch.get_num_threads()
    return planned_bytes(config, rows, sequence_length, execution.precision, threads) / (rows * sequence_length)


def _kept_per_token(network: Network, execution: Execution, sequence_length: int) -> float:
    """Count on short rows, and add what longer ones keep more of: the probabilities of attention, if it keeps them."""
    length = min(LENGTH, sequence_length, network.config.context)
    one, two = (kept_bytes(network, execution, rows, length) for rows in (1, 2))
    kept = (two - one) / length
    if execution.attention == "products" and not execution.gradient_checkpointing:
        heads = network.config.heads
        added = probabilities_per_token(sequence_length, heads) - probabilities_per_token(length, heads)
        kept += len(network.blocks) * execution.dtype.itemsize * added
    return kept


def kept_bytes(network: Network, execution: Execution, rows: int, length: int) -> int:
    """Count the bytes, parameters aside, that a forward pass of rows of tokens keeps for its backward pass."""
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages: dict[int, int] = {}
    alive: list[Tensor] = []  # or a freed storage's address would be counted once for two tensors

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.int64, device=network.device)
    with torch.enable_grad(), execution.autocast(network.device), saved_tensors_hooks(note, lambda tensor: tensor):
        network(tokens, kernels=execution.kernels)
    return sum(storages.values())
