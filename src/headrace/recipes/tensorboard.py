"""TensorBoard event files beside metrics.jsonl: the same numbers, for people who have it open already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import UsageError

SCALARS = (
    "loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "memory_bytes",
    "validation_loss",
    "validation_bits_per_byte",
)


class TensorBoard:
    """A hook that takes lines of metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("run.tensorboard needs an extra: pip install 'headrace[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def __call__(self, line: dict[str, Any]) -> None:
        for name in SCALARS:
            if line.get(name) is not None:
                self._writer.add_scalar(name, line[name], line["step"])
