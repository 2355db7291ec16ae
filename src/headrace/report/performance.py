"""Sections on speed: the main figures, the bottleneck, the pipeline, and the time of each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.perf import speed
from headrace.report.blocks import Bar, Block, Paragraph, Pipeline, Station, Table, Tiles
from headrace.report.read import RunRecord
from headrace.stages import COMPUTING, PAUSES, Stage
from headrace.units import UNKNOWN, human_bytes, human_count, human_percent, human_rate, human_time


def performance(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the main figures at a glance."""
    return _for_each(runs, lambda run: Tiles(_tiles(run)))


def _for_each(runs: Sequence[RunRecord], make: Callable[[RunRecord], Block]) -> list[Block]:
    """Return a block for each run, under its name if there are several."""
    blocks: list[Block] = []
    for run in runs:
        if len(runs) > 1:
            blocks.append(Paragraph(run.name, is_key=True))
        blocks.append(make(run))
    return blocks


def _tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    wait, validation, bits = run.data_wait_percent, run.last("validation_loss"), run.last("validation_bits_per_byte")
    rate = speed.tokens_per_second(run.tokens, run.elapsed_s)
    cores = run.cpu_cores
    return [
        ("tokens/s", f"{rate:,.0f}", f"{human_count(run.tokens)} tokens in {human_time(run.elapsed_s)}"),
        ("of measured peak", human_percent(run.percent_of_peak), f"peak {human_rate(run.peak_flops)}"),
        ("training loss", _loss(run.last("loss")), f"{_loss(run.metrics[0].loss)} at the start"),
        (
            "validation loss",
            UNKNOWN if validation is None else f"{validation:.4f}",
            "" if bits is None else f"{bits:.3f} bits per byte",
        ),
        ("data wait", human_percent(wait), speed.data_wait_grade(wait)),
        ("peak memory", human_bytes(run.peak_memory_bytes), f"of {human_bytes(run.machine_memory_bytes)}"),
        ("processor", UNKNOWN if cores is None else f"{cores:.1f} cores", f"{run.training.threads} threads"),
        ("parameters", human_count(run.work.counts.num_parameters), f"{run.metrics[-1].step:,} steps"),
    ]


def _loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def bottleneck(runs: Sequence[RunRecord]) -> list[Block]:
    """Name what takes most of the time, with evidence and remedy."""
    blocks: list[Block] = []
    for run in runs:
        found = run.bottleneck
        name = f"{run.name}: {found.name}" if len(runs) > 1 else found.name.capitalize()
        evidence = found.evidence[0].upper() + found.evidence[1:]
        blocks += [Paragraph(f"{name}.", is_key=True), Paragraph(f"{evidence}. {found.remedy}")]
    return blocks


def pipeline(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the stages from text to update, and mark the slow one."""
    return _for_each(runs, lambda run: Pipeline(_stages(run)))


def _stages(run: RunRecord) -> list[Station]:
    corpus, data, last = run.corpus, run.config.data, run.metrics[-1]
    per_step = {share.stage: share.seconds / len(run.metrics) for share in run.shares}
    slow = run.bottleneck.name
    depths = [line.queue_depth for line in run.metrics if line.queue_depth is not None]
    loader_cpu = last.loader_cpu_s
    text, tokens = [("text", UNKNOWN)], []
    if corpus:
        text = [("text", human_bytes(corpus.bytes)), ("documents", f"{corpus.documents:,}")]
        tokens = [("tokens", human_count(corpus.tokens)), ("bytes per token", f"{corpus.bytes_per_token:.2f}")]
    queue = [
        ("depth", f"{sum(depths) / len(depths):.1f} of {last.queue_limit}" if depths else UNKNOWN),
        ("buffer", human_bytes(last.buffered_bytes)),
        ("wait", human_percent(run.data_wait_percent)),
    ]
    computing = sum(per_step.get(stage, 0.0) for stage in COMPUTING)
    evaluated = run.steps_between(Stage.EVALUATION)
    return [
        Station("Corpus", text),
        Station("Tokenizer", [("kind", data.tokenizer), *tokens]),
        Station(
            "Workers",
            [
                ("threads", str(data.num_workers)),
                ("processor", UNKNOWN if loader_cpu is None else f"{loader_cpu:.2f} s in total"),
            ],
        ),
        Station("Queue", queue, slow == Stage.DATA_WAIT),
        Station(
            "Forward and backward",
            [
                ("micro-batches", f"{run.num_micro_batches}, of {run.training.micro_batch_size} sequences"),
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
            "Evaluation, checkpoints",
            [
                ("per step", _milliseconds(sum(per_step.get(stage, 0.0) for stage in PAUSES))),
                ("evaluated", "never" if evaluated is None else f"every {evaluated:,} steps"),
            ],
            slow in PAUSES,
        ),
    ]


def time_breakdown(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the time of each stage per step, per epoch and in total."""
    blocks: list[Block] = []
    for run in runs:
        parts = [(share.stage, share.seconds, f"{share.percent:.1f}%") for share in run.shares]
        blocks.append(Bar(f"{run.name}: {human_time(run.elapsed_s)}", parts))
        per_epoch = run.steps_per_epoch
        rows = []
        for share in run.shares:
            mean = share.seconds / len(run.metrics)
            epoch = UNKNOWN if per_epoch is None else human_time(mean * per_epoch)
            rows.append([share.stage, _milliseconds(mean), epoch, f"{share.seconds:,.2f} s", f"{share.percent:.1f}%"])
        total = run.elapsed_s / len(run.metrics)
        whole = UNKNOWN if per_epoch is None else human_time(total * per_epoch)
        rows.append(["total", _milliseconds(total), whole, f"{run.elapsed_s:,.2f} s", "100.0%"])
        blocks.append(Table(["stage", "per step", "per epoch", "total", "share"], rows))
    return blocks


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
