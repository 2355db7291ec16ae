"""The sections of a report, in their order: each is a function from runs to blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.report.blocks import Block, Section
from headrace.report.computing import flops_and_roofline, memory, scaling
from headrace.report.given import configuration, corpus
from headrace.report.performance import bottleneck, performance, pipeline, time_breakdown
from headrace.report.progress import cpu_use, data_wait, loss_progression, loss_table, samples
from headrace.report.read import RunRecord
from headrace.report.recommendations import recommendations


def all_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return all sections, in the order in which a reader needs them."""
    contents: list[tuple[str, str, Callable[[Sequence[RunRecord]], list[Block]]]] = [
        ("performance", "Performance", performance),
        ("bottleneck", "Bottleneck", bottleneck),
        ("recommendations", "What would make it faster", recommendations),
        ("loss", "Loss", loss_progression),
        ("pipeline", "Pipeline", pipeline),
        ("time", "Where the time went", time_breakdown),
        ("flops", "FLOPs and roofline", flops_and_roofline),
        ("wait", "Data wait", data_wait),
        ("memory", "Memory", memory),
        ("cpu", "Processor", cpu_use),
        ("corpus", "Tokenisation and chunking", corpus),
        ("samples", "Samples", samples),
        ("progress", "Loss in figures", loss_table),
        ("scaling", "Scaling", scaling),
        ("configuration", "Configuration and machine", configuration),
    ]
    return [Section(key, title, make(runs)) for key, title, make in contents]
