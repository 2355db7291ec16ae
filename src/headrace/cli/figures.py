"""The figures of a step as they are shown: by name on the screen, and as key=value in plain lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.machine.facts import memory_bytes
from headrace.perf.breakdown import break_down, find_bottleneck
from headrace.perf.speed import data_wait_grade
from headrace.run.records import Run
from headrace.training.loop import StepInfo
from headrace.units import NOT_YET, human_bytes, human_count, human_percent, human_time

LEAST_SHARE_PERCENT = 1.0


@dataclass(frozen=True)
class Figures:
    """What is known after a step."""

    info: StepInfo
    run: Run
    """The summary so far, which goes on to change."""
    seconds: Mapping[str, float]
    """Time by stage so far."""
    max_steps: int | None
    """Steps at which the run ends; None where only the time limits it."""
    epoch_tokens: float | None
    """Tokens of a pass over the training part; None while that is not known."""
    is_validated: bool

    @property
    def total_steps(self) -> tuple[int, bool] | None:
        """Return the number of steps of the run, and whether it is exact; None while it cannot be estimated."""
        step, progress = self.info.step, self.info.progress
        if progress <= 0:
            return None
        expected = max(step, round(step / min(progress, 1.0)))
        if self.max_steps and self.max_steps <= 1.02 * expected:
            return self.max_steps, True
        return expected, False

    @property
    def left_s(self) -> float:
        """Return the seconds that the rest of the run is expected to take; infinity while that is not known."""
        progress = self.info.progress
        return self.info.elapsed_s * (1 - progress) / progress if progress > 0 else math.inf

    @property
    def epoch(self) -> float | None:
        """Return the passes over the training part so far."""
        return self.info.tokens / self.epoch_tokens if self.epoch_tokens else None

    @property
    def bottleneck(self) -> str:
        """Return what takes most of the time."""
        run = self.run
        return find_bottleneck(break_down(self.seconds), run.percent_of_peak, run.processor_taken_percent).name

    def position(self) -> dict[str, str]:
        """Return how far the run is, by name."""
        total = self.total_steps
        of = "" if total is None else f" of {'' if total[1] else 'about '}{total[0]:,}"
        named = {"step": f"{self.info.step:,}{of}"}
        if self.epoch is not None:
            named["epoch"] = f"{self.epoch:.2f}"
        named["tokens"] = human_count(self.info.tokens)
        named["speed"] = f"{self.run.tokens_per_second:,.0f} tokens/s"
        return named

    def times(self) -> str:
        """Return the time so far and the time left, as words."""
        return f"{human_time(self.info.elapsed_s)} elapsed, {human_time(self.left_s)} left"

    def losses(self) -> dict[str, str]:
        """Return the losses, by name."""
        run = self.run
        named = {"loss": _loss(run.smoothed_loss), "validation": "none"}
        if run.validation_loss is not None:
            bits = "" if run.validation_bits_per_byte is None else f" ({run.validation_bits_per_byte:.3f} bits/byte)"
            named["validation"] = f"{run.validation_loss:.4f}{bits}"
        elif self.is_validated:
            named["validation"] = NOT_YET
        return named

    def performance(self) -> dict[str, str]:
        """Return how well the machine is used, by name."""
        run, wait = self.run, self.run.data_wait_percent
        shares = [share for share in break_down(self.seconds) if share.percent >= LEAST_SHARE_PERCENT]
        return {
            "of peak": human_percent(run.percent_of_peak),
            "data wait": f"{wait:.2f}% ({data_wait_grade(wait)})",
            "memory": human_bytes(memory_bytes()),
            "learning rate": f"{self.info.learning_rate:.2e}",
            "bottleneck": self.bottleneck,
            "time": ", ".join(f"{share.stage} {share.percent:.0f}%" for share in shares),
        }

    def line(self) -> str:
        """Return everything as one line of key=value, for logs and programs."""
        info, run, total = self.info, self.run, self.total_steps
        values: dict[str, str | None] = {
            "step": f"{info.step}" + (f"/{total[0]}" if total else ""),
            "epoch": None if self.epoch is None else f"{self.epoch:.3f}",
            "tokens": f"{info.tokens}",
            "loss": f"{info.loss:.4f}",
            "smoothed_loss": _loss(run.smoothed_loss),
            "validation_loss": _loss(run.validation_loss) if self.is_validated else None,
            "bits_per_byte": None if run.validation_bits_per_byte is None else f"{run.validation_bits_per_byte:.3f}",
            "learning_rate": f"{info.learning_rate:.2e}",
            "tokens_per_second": f"{run.tokens_per_second:.0f}",
            "of_peak": human_percent(run.percent_of_peak),
            "data_wait": f"{run.data_wait_percent:.2f}%",
            "bottleneck": self.bottleneck.replace(" ", "_"),
            "memory_bytes": f"{memory_bytes()}",
            "elapsed_s": f"{info.elapsed_s:.1f}",
            "left_s": None if math.isinf(self.left_s) else f"{self.left_s:.1f}",
            "skipped": "not_finite" if info.is_skipped else None,
        }
        return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _loss(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
