"""The device that networks are computed on."""

from __future__ import annotations

import torch


def best_device() -> torch.device:
    """Pick the device: a CUDA device if there is one (written, but not tested by anybody yet), else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
