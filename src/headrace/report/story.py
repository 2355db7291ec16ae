"""The first section: what was trained on what, how good it got, and the figures that people ask for first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from headrace.data.corpus.sources import as_sources
from headrace.perf import speed
from headrace.report.blocks import Block, Paragraph, Quote, Table, Tiles
from headrace.report.columns import SIZES, TIMES, in_one_unit
from headrace.report.read import RunRecord
from headrace.run.session.overfitting import describe
from headrace.units import NOT_YET, UNKNOWN, human_bytes, human_count, human_percent, human_rate, human_time, plural

NOTABLE = 0.01
"""Relative change of a validation loss that is worth a sentence."""
LATE = 0.8
"""Share of the run after which a falling loss counts as falling at the end."""


def story(runs: Sequence[RunRecord]) -> list[Block]:
    """Tell what a run did in a few sentences and figures; of several runs, show the figures side by side."""
    if len(runs) > 1:
        return [_side_by_side(runs)]
    run = runs[0]
    return [
        Paragraph(f"{_what(run)} {_how_long(run)}"),
        Paragraph(_how_good(run), is_key=True),
        Tiles(_main_tiles(run), is_main=True),
        Tiles(_speed_tiles(run)),
    ]


def samples(runs: Sequence[RunRecord]) -> list[Block]:
    """Quote the first and the last sample of each run."""
    blocks: list[Block] = []
    for run in runs:
        chosen = run.samples[:1] + run.samples[1:][-1:]
        for (step, text), when in zip(chosen, ("before training", "after"), strict=False):
            blocks.append(Quote(f"{run.prefix}{when} {plural(step, 'step')}" if step else f"{run.prefix}{when}", text))
    return blocks or [Paragraph("No samples were written.")]


def losses_fall(run: RunRecord) -> bool:
    """Return whether the validation loss was still falling at the end of what the run has done."""
    if len(run.judged) < 2:
        return False
    last = run.judged[-1]
    earlier = [judged.loss for judged in run.judged if judged.step <= LATE * last.step]
    return bool(earlier) and last.loss < earlier[-1] * (1 - NOTABLE)


def _what(run: RunRecord) -> str:
    model, counts = run.config.model, run.work.counts
    network = f"A {model.arch} network of {human_count(counts.num_parameters)} parameters"
    text = f" ({human_bytes(run.corpus.bytes)} of text)" if run.corpus else ""
    return (
        f"{network} ({model.num_layers} layers, {model.d_model} wide){_beginning(run)} learned from"
        f" {_corpus_name(run)}{text}."
    )


def _beginning(run: RunRecord) -> str:
    """Say which model the run went on from; empty where it began from random weights."""
    if not run.config.model.init:
        return ""
    start = run.summary.continues_from if run.summary else None
    loss = start.validation_loss if start else None
    began = "" if loss is None else f", whose loss on the text that was kept for validation was {loss:.3f},"
    return f" that went on from {start.name if start else Path(run.config.model.init).name}{began}"


def _corpus_name(run: RunRecord) -> str:
    """Return the names of the sources as people say them: without the folders that they lie in."""
    if not run.config.data.sources:
        return "the Python standard library"
    sources = as_sources(run.config.data.sources)
    names = [source.name or Path(path).name or path for source in sources for path in source.paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _how_long(run: RunRecord) -> str:
    did = "So far it did" if run.is_running else "It did"
    steps, tokens = plural(run.metrics[-1].step, "step"), human_count(run.tokens)
    total = sum(ledger.tokens for ledger in run.ledger) if run.ledger else 0
    passes = f": {run.tokens / total:.2g} passes over the text" if total else ""
    return f"{did} {steps} in {human_time(run.elapsed_s)}, on {tokens} tokens{passes}."


def _how_good(run: RunRecord) -> str:
    """Say which loss the run reached, what that is compared with, and where it was going."""
    size = run.config.model.vocab_size
    guess = f"guessing among {size:,} tokens would be {math.log(max(size, 1)):.2f}"
    if not run.evaluations:
        why = "No text was held out to validate on." if _has_no_validation(run) else "It was not evaluated."
        so_far = "It has not been evaluated yet." if run.is_to_be_evaluated else why
        return f"Training loss {_loss(run.training_loss)} nats per token; {guess}. {so_far}"
    last = run.evaluations[-1][1]
    sentence = f"On text that it was not trained on, it reached a loss of {last:.3f} nats per token; {guess}."
    if run.overfitting is not None:
        told = describe(run.overfitting)
        return f"{sentence} {told[0].upper()}{told[1:]}{_kept(run)}"
    best = min(run.judged, key=lambda judged: judged.loss, default=None)
    if best is not None and run.judged[-1].loss > best.loss * (1 + NOTABLE):
        return f"{sentence} It was lowest at step {best.step:,} ({best.loss:.3f}) and has risen since.{_kept(run)}"
    return f"{sentence} The loss was still falling at the end." if losses_fall(run) and not run.is_running else sentence


def _has_no_validation(run: RunRecord) -> bool:
    return not (run.config.data.validation_fraction or run.config.data.validation_sources)


def _kept(run: RunRecord) -> str:
    """Say of which step the best checkpoint is, where that is not the last step."""
    step = run.best_step
    if step is None or step == run.metrics[-1].step:
        return ""
    return f" The checkpoint of step {step:,} is kept as the best, which generate, serve and export use."


def _main_tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    bits, first = run.last("validation_bits_per_byte"), run.metrics[0].loss
    rate = speed.tokens_per_second(run.tokens, run.elapsed_s)
    validation = NOT_YET if run.is_to_be_evaluated else _loss(run.last("validation_loss"))
    return [
        ("validation loss", validation, "" if bits is None else f"{bits:.3f} bits per byte"),
        ("training loss", _loss(run.training_loss), f"smoothed; {_loss(first)} at the start"),
        ("training time", human_time(run.elapsed_s), plural(run.metrics[-1].step, "step")),
        ("tokens per second", f"{rate:,.0f}", f"{human_count(run.tokens)} tokens in all"),
    ]


def _speed_tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    wait, cores, threads = run.data_wait_percent, run.cpu_cores, run.training.threads
    return [
        ("of measured peak", human_percent(run.percent_of_peak), f"peak {human_rate(run.peak_flops)}"),
        ("data wait", human_percent(wait), speed.data_wait_grade(wait)),
        ("processor", UNKNOWN if cores is None else f"{cores:.1f} cores", plural(threads, "thread") if threads else ""),
        ("peak memory", human_bytes(run.peak_memory_bytes), f"of {human_bytes(run.machine_memory_bytes)}"),
    ]


def _loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def _side_by_side(runs: Sequence[RunRecord]) -> Table:
    """Return the main figures, with a row for each run, so that a column compares them."""
    time_unit, times = in_one_unit([run.elapsed_s for run in runs], TIMES)
    memory_unit, memory = in_one_unit([run.peak_memory_bytes for run in runs], SIZES)
    headings = ["run", "validation loss", "bits per byte", "training loss", "steps", "tokens", f"time, {time_unit}"]
    headings += ["tokens/s", "of peak", "data wait", f"memory, {memory_unit}"]
    rows = []
    for run, took, size in zip(runs, times, memory, strict=True):
        bits = run.last("validation_bits_per_byte")
        rows.append(
            [
                run.name, _loss(run.last("validation_loss")), _loss(bits), _loss(run.training_loss),
                f"{run.metrics[-1].step:,}", human_count(run.tokens), took,
                f"{speed.tokens_per_second(run.tokens, run.elapsed_s):,.0f}", human_percent(run.percent_of_peak),
                human_percent(run.data_wait_percent), size,
            ]
        )  # fmt: skip
    return Table(headings, rows)
