"""What would make a run faster, with the gain that its own breakdown predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.perf.breakdown import COMPUTE, NEAR_PEAK_PERCENT, Share

LEAST_GAIN_PERCENT = 1.0


@dataclass(frozen=True)
class Advice:
    """One thing to try."""

    title: str
    gain_percent: float
    """More tokens/s: predicted from shares of the time, as an upper bound."""
    changes_result: bool
    """Whether training would end in another model, or only sooner."""
    why: str


def advise(shares: list[Share], percent_of_peak: float | None, settings: Mapping[str, object]) -> list[Advice]:
    """The largest predicted gain first.

    >>> shares = [Share("data wait", 5.0, 50.0), Share("forward", 5.0, 50.0)]
    >>> [(advice.title, advice.gain_percent) for advice in advise(shares, 70.0, {})]
    [('Prepare the corpus first, or raise data.num_workers', 100.0)]
    """
    share = {item.stage: item.percent for item in shares}
    computing = sum(share.get(stage, 0.0) for stage in COMPUTE)
    found = [
        Advice(
            "Prepare the corpus first, or raise data.num_workers",
            _gain(share.get("data wait", 0.0)),
            False,
            f"steps wait for data {share.get('data wait', 0.0):.1f}% of the time",
        ),
        Advice(
            "Evaluate half as often (training.evaluate_every)",
            _gain(share.get("evaluation", 0.0) / 2),
            False,
            f"evaluation takes {share.get('evaluation', 0.0):.1f}% of the time",
        ),
        Advice(
            "Save half as often (training.save_every)",
            _gain(share.get("checkpointing", 0.0) / 2),
            False,
            f"checkpointing takes {share.get('checkpointing', 0.0):.1f}% of the time",
        ),
        Advice(
            "Double training.batch_size: half the updates for the same tokens",
            _gain(share.get("optimizer", 0.0) / 2),
            True,
            f"the optimizer takes {share.get('optimizer', 0.0):.1f}% of the time",
        ),
    ]
    if settings.get("gradient_checkpointing"):
        saved = share.get("backward", 0.0) / 3  # a forward pass beside the two products of a backward pass
        why = "the blocks' forward pass is computed twice"
        found.append(Advice("Turn off training.gradient_checkpointing, if memory allows", _gain(saved), False, why))
    if percent_of_peak is not None and 0 < percent_of_peak < NEAR_PEAK_PERCENT:
        saved = computing * (1 - percent_of_peak / NEAR_PEAK_PERCENT)
        why = f"computing reaches {percent_of_peak:.0f}% of the measured peak; {NEAR_PEAK_PERCENT:.0f}% is usual"
        title = "Larger micro-batches, or fewer other processes on this machine"
        found.append(Advice(title, _gain(saved), False, why))
    worthwhile = [advice for advice in found if advice.gain_percent >= LEAST_GAIN_PERCENT]
    return sorted(worthwhile, key=lambda advice: -advice.gain_percent)


def _gain(saved_percent: float) -> float:
    """Percent more tokens/s when this share of the time is saved.

    >>> _gain(50.0)
    100.0
    """
    return 100 * saved_percent / max(100 - saved_percent, 1.0)
