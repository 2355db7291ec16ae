"""The display of a run while it trains: one screen in a terminal, greppable lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import ConsoleRenderable
from rich.control import Control
from rich.live import Live
from rich.text import Text

from headrace.cli.display import as_notice, as_warning, err, notices, say, wrapped
from headrace.cli.figures import Figures
from headrace.cli.screen import Screen
from headrace.perf.smoothing import SmoothedLoss
from headrace.run.pretraining import Pretraining
from headrace.training.loop import StepInfo
from headrace.units import human_bytes, human_count, plural

LINE_SECONDS = 5.0
REFRESHES_PER_SECOND = 2


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
        epochs = f"{facts['epochs']:.3g}" if facts["epochs"] >= 0.001 else "less than 0.001"
        parts.append(f"{about}{epochs} epochs until the limit")
    return f"corpus: {', '.join(parts)}; tokenizer {facts['tokenizer']} of {facts['vocab_size']:,} tokens"


class _RedrawnLive(Live):
    """A live display that draws everything again when its terminal becomes smaller.

    Terminals then break rows that are too long into several, so that what was drawn is no longer where it was.
    """

    def __init__(self, screen: Screen, rows_above: Callable[[], list[Text]]) -> None:
        super().__init__(
            screen, console=err, refresh_per_second=REFRESHES_PER_SECOND, transient=True, vertical_overflow="crop"
        )
        self._rows_above, self._drawn, self._last_size = rows_above, screen, err.size

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put what is to be printed above the screen, after all that was printed before where that is needed."""
        old, new = self._last_size, self.console.size
        self._last_size = new
        if new.width < old.width or new.height < old.height:
            above = self._rows_above()
            self._drawn.rows_above = len(above)
            renderables = [Control.clear(), Control.home(), *above, *renderables]
        return super().process_renderables(renderables)


class TrainingDisplay:
    """Shows a run while it trains: a live screen in a terminal, else a line every few seconds.

    What is printed, such as a warning, stays above the screen; the screen shrinks so that it all stays in sight.
    """

    def __init__(self, pretraining: Pretraining) -> None:
        self._pretraining = pretraining
        self._shown_s = 0.0
        self._num_warned = 0
        self._epoch_tokens: float | None = None
        self._has_shown_all = False
        self._is_way_shown = pretraining.computing.is_final
        self._smoothed = SmoothedLoss()
        self._said: list[str | Text] = []
        self._screen = Screen(rows_above=0)
        self._recall()
        self._live = _RedrawnLive(self._screen, self._rows_above) if err.is_interactive else None

    def _recall(self) -> None:
        """Put what was done before a resume on the screen."""
        screen, history = self._screen, self._pretraining.history
        screen.sample = self._pretraining.run.last_sample
        screen.validations = [(float(step), loss) for step, loss in history.validations]
        for step, loss in zip(history.steps, history.losses, strict=True):
            screen.curve.add(step, self._smoothed.add(loss))

    def __enter__(self) -> TrainingDisplay:
        pretraining = self._pretraining
        size, arch = human_count(pretraining.counts.num_parameters), pretraining.config.model.arch
        way = self._way() if pretraining.computing.is_final else "the first steps find the fastest way to compute"
        self._say(f"{arch}: {size} parameters; {way}; {pretraining.folder.path}")
        for notice in pretraining.tokenizer.notices:
            self._say(as_notice(notice))
        self._show_corpus()
        for notice in pretraining.notices:
            self._say(notice)
        if self._live is not None:
            self._live.__enter__()
        pretraining.activity = self.begin
        return self

    def __exit__(self, *problem: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*problem)
        self._show_warnings()  # of what was noticed after the last step

    def begin(self, doing: str) -> None:
        """Show what begins now: in a terminal and before the first step always, else where nothing was shown lately."""
        if self._live is not None:
            self._screen.doing.begin(doing)
            if self._screen.doing.is_stopping:
                err.show_cursor(True)  # a second Ctrl-C ends the process at once, and nothing else would show it again
        elif not self._shown_s or time.monotonic() - self._shown_s > LINE_SECONDS:
            err.print(doing, markup=False)

    def stop(self) -> None:
        """Show that the run was asked to stop. A signal may come at any moment, so that nothing is printed here."""
        self._screen.doing.is_stopping = True

    def update(self, info: StepInfo) -> None:
        """Show a step."""
        self._show_news(info)
        screen = self._screen
        if not info.is_skipped:
            screen.curve.add(info.step, self._smoothed.add(info.loss))
        if info.evaluation is not None:
            screen.validations = [*screen.validations, (float(info.step), info.evaluation.loss)]
        screen.sample = info.sample or screen.sample or self._pretraining.run.first_sample
        screen.prompts = self._pretraining.run.prompts
        screen.figures = figures = self._figures(info)
        now = time.monotonic()
        if self._live is not None:
            screen.doing.begin("ending" if info.is_last else f"computing step {info.step + 1:,}")
        elif now - self._shown_s > LINE_SECONDS or info.evaluation is not None or info.is_last:
            self._shown_s = now
            err.print(figures.line(), markup=False)

    def _figures(self, info: StepInfo) -> Figures:
        pretraining = self._pretraining
        return Figures(
            info,
            pretraining.run,
            dict(pretraining.run.seconds),  # a copy, because another thread reads it while this one goes on
            pretraining.max_steps,
            self._epoch_tokens,
            pretraining.is_validated,
        )

    def _show_news(self, info: StepInfo) -> None:
        """Print what is known since this step: the whole corpus, how steps are computed, warnings."""
        pretraining = self._pretraining
        if not self._has_shown_all and pretraining.loader.cache.is_complete:
            self._show_corpus()
        if not self._is_way_shown and pretraining.computing.is_final:
            self._is_way_shown = True
            self._say(f"chosen, from step {info.step + 1:,} on: {self._way()}")
        self._show_warnings()
        if info.warning:
            self._say(as_warning(info.warning))

    def _show_warnings(self) -> None:
        """Print the warnings of the run that were not printed before."""
        warnings = self._pretraining.run.warnings[self._num_warned :]
        self._num_warned += len(warnings)
        for warning in warnings:
            self._say(as_warning(warning))

    def _say(self, text: str | Text) -> None:
        if self._live is not None and self._live.is_started:
            self._live.refresh()  # in a terminal that has become smaller, all that was said so far comes first
        self._screen.rows_above += len(wrapped(text))  # first, because the screen is drawn again below what is printed
        say(text)
        self._said.append(text)

    def _rows_above(self) -> list[Text]:
        """Return what was printed so far in the rows that it takes now."""
        return [row for text in self._said for row in wrapped(text)]

    def _way(self) -> str:
        """Describe how steps are computed, with the peak that they are compared with once it is known."""
        peak_flops = self._pretraining.computing.peak_flops
        peak = f", peak {peak_flops / 1e9:.0f} GFLOP/s" if peak_flops else ""
        batch_size = self._pretraining.config.training.batch_size
        return f"batches of {batch_size}, {self._pretraining.computing.execution.describe()}{peak}"

    def _show_corpus(self) -> None:
        """Print what the run trains on: before the first step, and again when the whole corpus is tokenised."""
        facts = self._pretraining.corpus()
        self._has_shown_all, self._epoch_tokens = facts["is_complete"], facts["epoch_tokens"]
        self._say(corpus_line(facts))
        for notice in notices(facts):
            self._say(as_notice(notice))
        if facts["warning"]:
            self._say(as_warning(facts["warning"]))
