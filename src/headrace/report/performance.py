"""Sections on speed: what limited a run, where its time went, and the pipeline from text to update."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.report.blocks import Bar, Block, Paragraph, Pipeline, Station
from headrace.report.columns import TIMES, in_one_unit
from headrace.report.read import RunRecord
from headrace.stages import COMPUTING, PAUSES, Stage
from headrace.units import NOT_YET, UNKNOWN, human_bytes, human_count, human_time, plural


def bottleneck(runs: Sequence[RunRecord]) -> list[Block]:
    """Name what takes most of the time, with evidence and remedy, and show the time of every stage."""
    blocks: list[Block] = []
    for run in runs:
        found = run.bottleneck
        name = f"{run.prefix}{found.name}" if run.prefix else found.name.capitalize()
        evidence = found.evidence[0].upper() + found.evidence[1:]
        blocks += [Paragraph(f"{name}.", is_key=True), Paragraph(f"{evidence}. {found.remedy}"), _time_breakdown(run)]
    return blocks


def _time_breakdown(run: RunRecord) -> Bar:
    """Return the time of each stage per step, per epoch and in total."""
    per_epoch = run.steps_per_epoch
    seconds = [*(share.seconds for share in run.shares), run.elapsed_s]
    step_unit, per_step = in_one_unit([value / len(run.metrics) for value in seconds], TIMES)
    total_unit, totals = in_one_unit(seconds, TIMES)
    headings, columns = ["stage", "share", f"{step_unit} per step"], [per_step]
    if per_epoch is not None:
        unit, epochs = in_one_unit([value / len(run.metrics) * per_epoch for value in seconds], TIMES)
        headings.append(f"{unit} per epoch")
        columns.append(epochs)
    columns.append(totals)
    cells = [
        [name, f"{percent:.1f}%", *figures]
        for name, percent, *figures in zip(
            [*(share.stage for share in run.shares), "total"],
            [*(share.percent for share in run.shares), 100.0],
            *columns,
            strict=True,
        )
    ]
    rows = [(share.seconds, row) for share, row in zip(run.shares, cells[:-1], strict=True)]
    title = f"{run.prefix}{human_time(run.elapsed_s)} by stage"
    return Bar(title, [*headings, f"{total_unit} in total"], rows, cells[-1])


def pipeline(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the stages from text to update, and mark the slow one."""
    blocks: list[Block] = []
    for run in runs:
        if len(runs) > 1:
            blocks.append(Paragraph(run.name, is_key=True))
        blocks.append(Pipeline(_stages(run)))
    return blocks


def _stages(run: RunRecord) -> list[Station]:
    corpus, data, last = run.corpus, run.config.data, run.metrics[-1]
    per_step = {share.stage: share.seconds / len(run.metrics) for share in run.shares}
    slow = run.bottleneck.name
    depths = [line.queue_depth for line in run.metrics if line.queue_depth is not None]
    loader_cpu = last.loader_cpu_s
    text, tokens = [("text", NOT_YET if run.is_running else UNKNOWN)], []
    if corpus:
        text = [("text", human_bytes(corpus.bytes)), ("documents", f"{corpus.documents:,}")]
        tokens = [("tokens", human_count(corpus.tokens)), ("bytes per token", f"{corpus.bytes_per_token:.2f}")]
    loader = [
        ("workers", plural(data.num_workers, "thread")),
        ("processor", UNKNOWN if loader_cpu is None else f"{loader_cpu:.2f} s in total"),
        ("batches ready", f"{sum(depths) / len(depths):.1f} of {last.queue_limit}" if depths else UNKNOWN),
        ("buffer", human_bytes(last.buffered_bytes)),
    ]
    computing = sum(per_step.get(stage, 0.0) for stage in COMPUTING)
    return [
        Station("Corpus", text),
        Station("Tokenizer", [("kind", data.tokenizer), *tokens]),
        Station("Loader", loader, slow == Stage.DATA_WAIT),
        Station(
            "Forward and backward",
            [
                ("micro-batches", f"{run.num_micro_batches} x {plural(run.training.micro_batch_size, 'sequence')}"),
                ("per step", _milliseconds(computing)),
            ],
            slow.startswith("computing"),
        ),
        Station(
            "Optimizer",
            [("kind", run.training.optimizer), ("per step", _milliseconds(per_step.get(Stage.OPTIMIZER, 0.0)))],
            slow == Stage.OPTIMIZER,
        ),
        Station(
            "Evaluation and saving",
            [
                ("per step", _milliseconds(sum(per_step.get(stage, 0.0) for stage in PAUSES))),
                ("evaluated", _how_often_evaluated(run)),
            ],
            slow in PAUSES,
        ),
    ]


def _how_often_evaluated(run: RunRecord) -> str:
    every = run.steps_between(Stage.EVALUATION)
    if not run.evaluations or every is None:
        return NOT_YET if run.is_to_be_evaluated else "never"
    return "once" if len(run.evaluations) == 1 else f"every {every:,} steps"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
