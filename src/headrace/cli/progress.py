"""The live display of training: one screen in a terminal, greppable lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.display import err, notices, show_notices, show_warning, validation_text
from headrace.perf.breakdown import break_down, find_bottleneck
from headrace.perf.speed import data_wait_grade
from headrace.run.pretraining import Pretraining
from headrace.training.loop import StepInfo
from headrace.units import human_bytes, human_count, human_percent, human_time, plural

LINE_SECONDS = 5.0
LEAST_SHARE_PERCENT = 1.0
CURVE = "▁▂▃▄▅▆▇█"


def curve(values: list[float], width: int = 40) -> str:
    """Return a small chart of a series, one character per point.

    >>> curve([3.0, 2.0, 1.0])
    '█▅▁'
    """
    if not values:
        return ""
    step = max(1, len(values) // width)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(CURVE[round((value - low) / span * (len(CURVE) - 1))] for value in means)


def _validation(loss: float | None, bits_per_byte: float | None, text: str = "") -> str:
    return "" if loss is None or bits_per_byte is None else f"{loss:.4f} ({bits_per_byte:.3f} bits/byte{text})"


def corpus_line(facts: dict[str, Any]) -> str:
    """Describe the corpus of a run in one line; a count that is not known yet is estimated or left out."""
    about = "" if facts["is_complete"] else "about "
    parts = [plural(facts["files"], "file"), human_bytes(facts["bytes"])]
    if facts["documents"] is not None:
        parts.append(plural(facts["documents"], "document"))
    if facts["tokens"] is not None:
        parts.append(f"{about}{facts['tokens']:,} tokens")
    if not facts["is_complete"]:
        parts.append(f"{100 * facts['tokenised_bytes'] / max(facts['bytes'], 1):.0f}% tokenised so far")
    if facts["epochs"] is not None:
        parts.append(f"{about}{facts['epochs']:.3g} epochs in the limit")
    return f"corpus: {', '.join(parts)}; tokenizer {facts['tokenizer']} of {facts['vocab_size']:,} tokens"


class _Doing:
    """A line that says what is being done, and for how long; each time it is drawn it says how long by then."""

    def __init__(self) -> None:
        self.begin("starting")

    def begin(self, doing: str) -> None:
        self._doing, self._began_s = doing, time.monotonic()

    def __rich__(self) -> Text:
        return Text(f"{self._doing} ({human_time(time.monotonic() - self._began_s)})", style="dim")


class TrainingDisplay:
    """The display of a run while it trains: a live screen in a terminal, else a line every few seconds."""

    def __init__(self, pretraining: Pretraining) -> None:
        self._pretraining = pretraining
        self._losses: deque[float] = deque(pretraining.history.losses, maxlen=4000)
        self._shown_s = 0.0
        self._sample = pretraining.run.last_sample
        self._validation = _validation(pretraining.run.validation_loss, pretraining.run.validation_bits_per_byte)
        self._num_warned = 0
        self._has_shown_all = False
        self._is_way_shown = pretraining.computing.is_final
        self._doing = _Doing()
        self._live = Live(self._doing, console=err, refresh_per_second=2, transient=True) if err.is_terminal else None

    def __enter__(self) -> TrainingDisplay:
        pretraining = self._pretraining
        size, arch = human_count(pretraining.counts.num_parameters), pretraining.config.model.arch
        way = self._way() if pretraining.computing.is_final else "how to compute steps is chosen during the first ones"
        err.print(f"{arch}: {size} parameters, {way}; {pretraining.folder.path}", markup=False)
        show_notices(self._pretraining.tokenizer.notices, err)
        self._show_corpus()
        for notice in self._pretraining.notices:
            err.print(notice, markup=False)
        if self._live is not None:
            self._live.__enter__()
        pretraining.activity = self.begin
        return self

    def begin(self, doing: str) -> None:
        """Show what begins now: in a terminal and before the first step always, else where nothing was shown lately."""
        if self._live is not None:
            self._doing.begin(doing)
        elif not self._shown_s or time.monotonic() - self._shown_s > LINE_SECONDS:
            err.print(doing, markup=False)

    def _way(self) -> str:
        """Describe how steps are computed, with the peak that they are compared with once it is known."""
        peak_flops = self._pretraining.computing.peak_flops
        peak = f", peak {peak_flops / 1e9:.0f} GFLOP/s" if peak_flops else ""
        batch_size = self._pretraining.config.training.batch_size
        return f"batches of {batch_size}, {self._pretraining.computing.execution.describe()}{peak}"

    def _show_corpus(self) -> None:
        """Print what the run trains on: before the first step, and again when the whole corpus is tokenised."""
        facts = self._pretraining.corpus()
        self._has_shown_all = facts["is_complete"]
        err.print(corpus_line(facts), markup=False)
        show_notices(notices(facts), err)
        if facts["warning"]:
            show_warning(facts["warning"])

    def __exit__(self, *problem: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*problem)

    def update(self, info: StepInfo) -> None:
        if not self._has_shown_all and self._pretraining.loader.cache.is_complete:
            self._show_corpus()
        if not self._is_way_shown and self._pretraining.computing.is_final:
            self._is_way_shown = True
            err.print(f"chosen, from step {info.step + 1:,} on: {self._way()}", markup=False)
        if not info.is_skipped:
            self._losses.append(info.loss)
        for warning in self._pretraining.run.warnings[self._num_warned :]:
            show_warning(warning)
            self._num_warned += 1
        if info.warning:
            show_warning(info.warning)
        if info.evaluation is not None:
            found = info.evaluation
            on = validation_text(found.num_tokens, found.is_whole)
            self._validation = _validation(found.loss, found.bits_per_byte, f", {on}")
        self._sample = info.sample or self._sample
        now = time.monotonic()
        self._doing.begin("computing steps")
        if self._live is not None:
            if now - self._shown_s > 0.2 or info.is_last:
                self._shown_s = now
                self._live.update(self._screen(info), refresh=True)
        elif now - self._shown_s > LINE_SECONDS or info.evaluation is not None or info.is_last:
            self._shown_s = now
            err.print(self._line(info), markup=False)

    def _facts(self, info: StepInfo) -> dict[str, str]:
        """Return the figures of a step as they are shown, by name."""
        run = self._pretraining.run
        left = info.elapsed_s * (1 - info.progress) / max(info.progress, 1e-9)
        wait = run.data_wait_percent
        shares = break_down(run.seconds)
        return {
            "step": f"{info.step:,}",
            "loss": f"{info.loss:.4f}",
            "validation": self._validation or ("not yet" if self._pretraining.is_validated else "none"),
            "learning_rate": f"{info.learning_rate:.2e}",
            "tokens/s": f"{run.tokens_per_second:,.0f}",
            "of_peak": human_percent(run.percent_of_peak),
            "data_wait": f"{wait:.2f}% ({data_wait_grade(wait)})",
            "bottleneck": find_bottleneck(shares, run.percent_of_peak, run.processor_taken_percent).name,
            "left": human_time(left),
        }

    def _line(self, info: StepInfo) -> str:
        skipped = " SKIPPED (not finite)" if info.is_skipped else ""
        return " ".join(f"{name}={value}" for name, value in self._facts(info).items()) + skipped

    def _screen(self, info: StepInfo) -> Group:
        from headrace.machine.facts import memory_bytes

        table = Table.grid(padding=(0, 2))
        for name, value in self._facts(info).items():
            extra = curve(list(self._losses)) if name == "loss" else ""
            table.add_row(Text(name.replace("_", " "), style="dim"), value, Text(extra, style="cyan"))
        table.add_row(Text("memory", style="dim"), human_bytes(memory_bytes()), "")
        shares = [share for share in break_down(self._pretraining.run.seconds) if share.percent >= LEAST_SHARE_PERCENT]
        table.add_row(Text("time", style="dim"), ", ".join(f"{s.stage} {s.percent:.0f}%" for s in shares), "")
        parts: list[Any] = [ProgressBar(total=1.0, completed=info.progress), table, self._doing]
        if self._sample:
            parts.append(Panel(Text(self._sample[:600]), title="newest sample", border_style="dim"))
        return Group(*parts)
