"""Where networks live."""

from __future__ import annotations

import torch


def best_device() -> torch.device:
    """A CUDA device if there is one (a path that is written, but that nobody has tested yet), else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
