"""The section on what to do next: commands to go on with, and what would make a run faster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from headrace.perf.advice import Advice, advise
from headrace.report.blocks import Block, Command, Paragraph, Table
from headrace.report.read import RunRecord
from headrace.report.story import losses_fall
from headrace.run.records import FindingRecord
from headrace.run.session.overfitting import has_come_round, remedies
from headrace.stages import PAUSES
from headrace.training.schedule import doubled_limits


def recommendations(runs: Sequence[RunRecord]) -> list[Block]:
    """Give commands to go on with, and list what would make runs faster: measured gains first, each by its size."""
    measured: list[tuple[float, list[str]]] = []
    predicted: list[tuple[float, list[str]]] = []
    for run in runs:
        name = [run.name] if len(runs) > 1 else []
        measured += [(gain, [*name, *row]) for gain, row in _measured_gains(run)]
        predicted += [(gain, [*name, *row]) for gain, row in _predicted_gains(run)]
    rows = [row for part in (measured, predicted) for _, row in sorted(part, key=lambda one: -one[0])]
    commands: list[Block] = []
    for run in runs:
        commands += [*_commands(run), *_more_text(run)]
    if not rows:
        return [*commands, Paragraph("The breakdown shows nothing that would make it more than 1% faster.")]
    headings = [*(["run"] if len(runs) > 1 else []), "to be faster, try", "gain", "changes the result", "because"]
    note = Paragraph("Predicted gains come from the shares of the time, as upper bounds.")
    return [*commands, Table(headings, rows, is_prose=True), *([note] if predicted else [])]


def _commands(run: RunRecord) -> Iterator[Command]:
    """Yield commands that make sense after such a run."""
    folder, of = shlex.quote(str(run.folder)), run.prefix
    was_cut_short = run.summary is None or run.summary.was_stopped
    if (run.folder / "checkpoints").is_dir():
        yield Command(f"{of}Write text with it", f"headrace generate {folder} --prompt {shlex.quote(_prompt(run))}")
    if run.overfitting is not None:
        for title, line in remedies(run.overfitting, run.config, run.folder):
            yield Command(f"{of}{title}: it learned the text by heart", line)
    if run.is_running:
        return
    if was_cut_short:
        yield Command(f"{of}Continue it where it stopped", f"headrace train --resume {folder}")
    elif losses_fall(run) and (limits := doubled_limits(run.training)):
        longer = f"headrace train --resume {folder} {limits}"
        yield Command(f"{of}Its loss was still falling: train twice as long", longer)
    safe = [advice.setting for advice in _advice(run) if advice.setting and not advice.changes_result]
    if safe:
        safe += ["run.resume=false"] if run.config.run.resume else []
        changed = f"headrace train {folder}/config.json {' '.join(safe)} --out {folder}-faster"
        yield Command(f"{of}Train the same model in less time", changed)
    if run.tuning is None:
        yield Command(f"{of}Measure what would make it faster", f"headrace tune --run {folder}")


def _more_text(run: RunRecord) -> Iterator[Paragraph]:
    """Yield what helps most where a run learned its text by heart, and what no command can give."""
    if run.overfitting is not None and has_come_round(run.overfitting):
        yield Paragraph(
            f"{run.prefix}More text helps most against learning by heart: add files or folders to data.sources."
        )


def _prompt(run: RunRecord) -> str:
    """Return the prompt of the run's samples, or else the first words of the newest."""
    words = run.samples[-1][1].split()[:3] if run.samples else []
    prompt = run.training.prompt or " ".join(words)
    return "".join(filter(str.isprintable, prompt))  # it will be pasted into a terminal


def _measured_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each change that `headrace tune --run` found to be faster."""
    return [
        (
            found.gain_percent or 0.0,
            [
                ", ".join(f"{key}={value}" for key, value in found.changes.items()),
                f"measured: {found.gain_percent:.1f}% ± {found.spread_percent or 0.0:.1f}",
                "yes" if found.changes_result else "no",
                found.note or "measured by headrace tune, on top of the changes it had taken before",
            ],
        )
        for found in _measured(run)
        if (found.gain_percent or 0.0) > (found.spread_percent or 0.0)
    ]


def _predicted_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each gain that the breakdown predicts and nobody has measured."""
    return [
        (
            advice.gain_percent,
            [
                advice.title,
                f"predicted: up to {advice.gain_percent:.0f}%",
                "yes" if advice.changes_result else "no",
                advice.why,
            ],
        )
        for advice in _advice(run)
    ]


def _advice(run: RunRecord) -> list[Advice]:
    """Return what the breakdown suggests to try, without the keys that were measured already."""
    known = {key for found in _measured(run) for key in found.changes}
    often: dict[str, int | None] = {stage: run.steps_between(stage) for stage in PAUSES}
    often = {stage: steps for stage, steps in often.items() if steps and steps < len(run.metrics)}  # not: only once
    found = advise(run.shares, run.percent_of_peak, run.training.model_dump(), often)
    return [advice for advice in found if advice.key not in known]


def _measured(run: RunRecord) -> list[FindingRecord]:
    """Return the findings of `headrace tune --run` that have a figure."""
    findings = run.tuning.findings if run.tuning else []
    return [found for found in findings if found.gain_percent is not None]
