"""What autograd keeps for the backward pass, counted on the network itself rather than worked out on paper."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headrace.models.network import Network
from headrace.training.step import autocast

LENGTH = 16


def activation_bytes_per_token(network: Network, precision: str = "float32") -> float:
    """Count the bytes that a forward pass keeps for each token; the head's loss keeps nothing of this kind.

    A second row keeps as much again, except of what all rows share: autocast's copies of the weights, rotary tables.
    """
    kept = _kept_per_token(network, precision)
    if network.checkpoint_blocks:  # one block at a time is computed again, with all that it keeps
        network.checkpoint_blocks = False
        kept += _kept_per_token(network, precision) / len(network.blocks)
        network.checkpoint_blocks = True
    return kept


def _kept_per_token(network: Network, precision: str) -> float:
    length = min(LENGTH, network.config.context)
    one, two = (kept_bytes(network, precision, rows, length) for rows in (1, 2))
    return (two - one) / length


def kept_bytes(network: Network, precision: str, rows: int, length: int) -> int:
    """Count the bytes that a forward pass of so many tokens keeps for its backward pass, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    storages: dict[int, int] = {}
    alive: list[Tensor] = []  # or a freed storage's address would be counted once for two tensors

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.int64, device=network.head_weight_VD.device)
    with torch.enable_grad(), autocast(network, precision), saved_tensors_hooks(note, lambda tensor: tensor):
        network(tokens)
    return sum(storages.values())
