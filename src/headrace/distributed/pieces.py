"""Tensors of which each process has a piece (PyTorch's DTensor), and plain ones, under the same names."""

from __future__ import annotations

from torch import Tensor


def as_whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which each process may have a part. Every process has to ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own_part(whole: Tensor, like: Tensor) -> Tensor:
    """Of a tensor that every process has whole, what this process has of `like`, as the same kind of tensor."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    whole = DTensor.from_local(whole, like.device_mesh, [Replicate()], run_check=False)  # type: ignore[attr-defined]
    return whole.redistribute(placements=like.placements)  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, as a plain one."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
