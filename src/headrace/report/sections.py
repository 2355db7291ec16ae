"""The sections of a report, in their order: each is a function from runs to blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.report.blocks import Block, Section
from headrace.report.comparison import differences
from headrace.report.computing import flops_and_roofline, memory, scaling
from headrace.report.given import configuration, corpus
from headrace.report.performance import bottleneck, pipeline
from headrace.report.progress import data_wait, loss_progression, throughput, training_figures
from headrace.report.read import RunRecord
from headrace.report.recommendations import recommendations
from headrace.report.story import samples, story


def all_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return all sections that have something to say: first the story, then the evidence."""
    contents: list[tuple[str, str, Callable[[Sequence[RunRecord]], list[Block]]]] = [
        ("differences", "What differs", differences),
        ("story", "Result", story),
        ("samples", "What it writes", samples),
        ("loss", "Loss", loss_progression),
        ("bottleneck", "What limited it", bottleneck),
        ("recommendations", "What to do next", recommendations),
        ("pipeline", "Pipeline", pipeline),
        ("wait", "Data wait", data_wait),
        ("cpu", "Throughput and processor", throughput),
        ("memory", "Memory", memory),
        ("flops", "FLOPs and roofline", flops_and_roofline),
        ("corpus", "Tokenisation and chunking", corpus),
        ("progress", "Training in figures", training_figures),
        ("scaling", "Scaling", scaling),
        ("configuration", "Configuration and machine", configuration),
    ]
    sections = [Section(key, title, make(runs)) for key, title, make in contents]
    return [section for section in sections if section.blocks]
