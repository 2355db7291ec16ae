"""Functions for tensors that may be sharded (PyTorch's DTensor, a piece in each process) or plain."""

from __future__ import annotations

from torch import Tensor


def as_whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded. Every process has to call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own_part(whole: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor that every process has whole in the way that `like` is sharded."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    whole = DTensor.from_local(whole, like.device_mesh, [Replicate()], run_check=False)  # type: ignore[attr-defined]
    return whole.redistribute(placements=like.placements)  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """Return this process's piece of a tensor as a plain tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
