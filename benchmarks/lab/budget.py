"""Budgets of a cell: steps, FLOPs or seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UsageError
from headrace.models.counts import count
from headrace.run.config import Config

Unit = Literal["steps", "FLOPs", "s"]
_UNITS: dict[str, tuple[Unit, float]] = {
    "step": ("steps", 1), "steps": ("steps", 1), "flop": ("FLOPs", 1), "flops": ("FLOPs", 1),
    "s": ("s", 1), "second": ("s", 1), "seconds": ("s", 1),
    "min": ("s", 60), "minute": ("s", 60), "minutes": ("s", 60),
    "h": ("s", 3600), "hour": ("s", 3600), "hours": ("s", 3600),
}  # fmt: skip
LIMITS = ("training.max_steps", "training.max_minutes")
"""The keys that a budget sets. Epochs are left to the recipe, unless a variant says `num_epochs=0`: no limit."""


@dataclass(frozen=True)
class Budget:
    """What a cell may spend on training."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget as people write it.

        >>> [str(Budget.parse(text)) for text in ("90 s", "5 min", "400 steps", "2e13 FLOPs")]
        ['90 s', '300 s', '400 steps', '2e13 FLOPs']
        """
        found = re.fullmatch(r"\s*([\d_.,]+(?:[eE][-+]?\d+)?)\s*([a-zA-Z]+)\s*", text)
        unit = _UNITS.get(found[2].lower()) if found else None
        try:
            amount = float(found[1].replace(",", "").replace("_", "")) if found else 0.0
        except ValueError:
            amount = 0.0
        if unit is None or not amount > 0 or (unit[0] == "steps" and amount != int(amount)):
            raise UsageError(
                f'budget {text!r}: write a number and its unit, such as "400 steps", "2e13 FLOPs", "90 s".'
            )
        return cls(amount * unit[1], unit[0])

    def __str__(self) -> str:
        amount = f"{self.amount:.0f}" if self.unit == "steps" else f"{self.amount:.6g}".replace("e+", "e")
        return f"{amount} {self.unit}"

    def limits(self, config: Config) -> dict[str, float]:
        """Return the limits that this budget means for a configuration whose vocabulary size is known."""
        if self.unit == "s":
            return dict(zip(LIMITS, (0, self.amount / 60), strict=True))
        steps = int(self.amount) if self.unit == "steps" else steps_for_flops(config, self.amount)
        return dict(zip(LIMITS, (steps, 0), strict=True))


def steps_for_flops(config: Config, flops: float) -> int:
    """Return the updates whose forward and backward passes cost at most this many FLOPs.

    The optimizer's own work is not counted (models/counts.py counts the network's).
    """
    model, training = config.model, config.training
    counts = count(model, training.mean_window, training.num_logits(model.vocab_size))
    per_update = counts.training_flops_per_token * training.tokens_per_update
    if flops < per_update:
        raise UsageError(f"a budget of {flops:.3g} FLOPs is less than one update, which takes {per_update:.3g}.")
    return int(flops / per_update)
