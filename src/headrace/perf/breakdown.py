"""Breakdown of the time of a run by stage, and the bottleneck that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.stages import COMPUTING, Stage

NEAR_PEAK_PERCENT = 60.0
TAKEN_PERCENT = 25.0  # if other programs took more of the processor, they are the bottleneck
REMEDIES: dict[str, str] = {
    Stage.DATA_WAIT: "Prepare the corpus first, raise data.num_workers or data.prefetch_batches, or use a faster disk.",
    Stage.AGGREGATION: "Take larger batches (fewer updates for the same tokens), fewer processes with more threads"
    " each, or a faster network between them.",
    Stage.OPTIMIZER: "Take larger batches (fewer updates for the same tokens), or training.optimizer=adamw.",
    Stage.EVALUATION: "Evaluate less often (training.evaluate_every, in steps), or on fewer tokens"
    " (training.evaluation_tokens).",
    Stage.SAVING: "Save less often (training.save_every, in steps), or to a faster disk.",
    Stage.OTHER: "This is the cost of logging, hooks and Python between the stages; make each step larger.",
}


@dataclass(frozen=True)
class Share:
    """One row of a breakdown."""

    stage: str
    seconds: float
    percent: float


def break_down(seconds: Mapping[str, float], wall_s: float | None = None) -> list[Share]:
    """Return the share of each stage; they sum to 100, and what no stage accounts for is `other`.

    >>> [(share.stage, share.percent) for share in break_down({"forward": 3.0, "backward": 6.0}, wall_s=10.0)]
    [('forward', 30.0), ('backward', 60.0), ('other', 10.0)]
    """
    stages = {stage: value for stage, value in seconds.items() if stage != Stage.OTHER}
    known = sum(stages.values())
    other = seconds.get(Stage.OTHER, 0.0) if wall_s is None else max(0.0, wall_s - known)
    total = max(known + other, 1e-9)
    return [Share(stage, value, 100 * value / total) for stage, value in {**stages, str(Stage.OTHER): other}.items()]


@dataclass(frozen=True)
class Bottleneck:
    """The stage that takes most of the time, the evidence for it, and what would help."""

    name: str
    evidence: str
    remedy: str


def find_bottleneck(
    shares: list[Share], percent_of_peak: float | None, taken_percent: float | None = None
) -> Bottleneck:
    """Name the largest share, where forward and backward count as one: computing.

    `taken_percent` is the share of the processor time wanted by the run that other programs had. It comes first: it
    slows every stage.

    >>> shares = break_down({"data wait": 6.0, "forward": 1.0, "backward": 2.0, "optimizer": 1.0})
    >>> find_bottleneck(shares, 40.0).name
    'data wait'
    """
    percents = {share.stage: share.percent for share in shares if share.stage not in COMPUTING}
    computing = sum(share.percent for share in shares if share.stage in COMPUTING)
    if taken_percent is not None and taken_percent >= TAKEN_PERCENT:
        return Bottleneck(
            "processor taken by others",
            f"other programs had the processor for {taken_percent:.0f}% of the time in which this run wanted it",
            "End them, move the run to a quiet machine, or give it fewer threads (training.threads).",
        )
    worst = max(percents, key=lambda stage: percents[stage], default=Stage.OTHER)
    if computing >= percents.get(worst, 0.0):
        return _computing(computing, percent_of_peak)
    evidence = f"{worst} takes {percents[worst]:.1f}% of the time, computing {computing:.1f}%"
    return Bottleneck(worst, evidence, REMEDIES.get(worst, ""))


def _computing(share: float, percent_of_peak: float | None) -> Bottleneck:
    evidence = f"forward and backward take {share:.1f}% of the time"
    if percent_of_peak is None:
        return Bottleneck("computing", f"{evidence}; the machine's peak is unknown", "")
    evidence += f", and training reaches {percent_of_peak:.0f}% of the measured matrix peak"
    if percent_of_peak >= NEAR_PEAK_PERCENT:
        remedy = (
            "This is near what the machine can do: only a smaller model, shorter sequences or more cores would help."
        )
        return Bottleneck("computing: matrix products", evidence, remedy)
    remedy = (
        "Small matrices, memory traffic and the cost of starting operations keep the run from the peak: larger"
        " micro-batches or a wider model use the machine better."
    )
    return Bottleneck("computing: overhead and memory traffic", evidence, remedy)
