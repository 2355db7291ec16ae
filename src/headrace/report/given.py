"""Sections on what a run was given: its corpus, its configuration and its machine."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.data.corpus.weights import describe_weight
from headrace.errors import UsageError
from headrace.report.blocks import Block, Table
from headrace.report.comparison import all_values
from headrace.report.read import RunRecord
from headrace.units import UNKNOWN, human_bytes, human_rate

HARDWARE = ("SIMD", "caches", "memory bandwidth", "accelerators")


def corpus(runs: Sequence[RunRecord]) -> list[Block]:
    """Show text, tokens, packing and the ledger."""
    rows: dict[str, list[str]] = {}
    for number, run in enumerate(runs):
        for name, value in _corpus_facts(run).items():
            rows.setdefault(name, [UNKNOWN] * len(runs))[number] = value
    table = Table(["", *(run.name for run in runs)], [[name, *values] for name, values in rows.items()])
    return [table, *(mixture for run in runs if (mixture := _mixture(run)))]


def _corpus_facts(run: RunRecord) -> dict[str, str]:
    facts = {"tokenizer": run.config.data.tokenizer}
    if run.corpus:
        c, cut = run.corpus, run.corpus.chunking
        facts |= {
            "vocabulary": f"{c.tokenizer.vocab_size:,} tokens",
            "text": human_bytes(c.bytes),
            "tokens": f"{c.tokens:,} ({c.bytes_per_token:.2f} bytes each)",
            "documents": f"{c.documents:,}",
            "document length (min, mean, max)": f"{cut.shortest:,} / {cut.mean:,.0f} / {cut.longest:,}",
            "packing": f"{cut.packing}, sequences of {cut.sequence_length:,}",
            "sequences": f"{cut.sequences_after:,}",
            "documents split": f"{cut.documents_split:,}",
            "padding": f"{cut.padding:,} places ({cut.fill_percent:.2f}% filled)",
        }
        facts |= {f"noticed: {kind.replace('_', ' ')}": f"{number:,}" for kind, number in c.noticed.items()}
    if run.ledger:
        ledger = {
            key: sum(getattr(part, key) for part in run.ledger) for key in ("trained", "carried", "dropped", "tokens")
        }
        facts["one pass: trained + carried + dropped"] = (
            f"{ledger['trained']:,} + {ledger['carried']:,} + {ledger['dropped']:,} = {ledger['tokens']:,}"
        )
        facts["passes so far"] = f"{run.tokens / max(ledger['tokens'], 1):.2f}"
    return facts


def _mixture(run: RunRecord) -> Table | None:
    """Return the weights of the sources, now and before, and what the run has read of each; None without a mixture."""
    mixture = run.corpus.mixture if run.corpus else None
    if mixture is None:
        return None
    training, step = run.training, run.metrics[-1].step
    try:
        rows = mixture.rows_before(step, training.batch_size, training.seed)
    except (UsageError, ValueError):  # no mixture that a run can have: the file was changed by hand
        return None
    sources = range(len(mixture.names))
    lines = []
    for earlier in mixture.earlier:
        weights = dict(enumerate(earlier.weights or [1.0]))
        lines.append([f"until step {earlier.until:,}", *(describe_weight(weights.get(place)) for place in sources)])
    when = f"from step {mixture.first_step:,}" if mixture.earlier else "weight"
    lines.append([when, *map(describe_weight, mixture.weights)])
    lines.append([f"rows in {step:,} steps", *(f"{number:,}" for number in rows)])
    lines.append(["share of the rows", *(f"{100 * number / max(sum(rows), 1):.1f}%" for number in rows)])
    per_pass = {ledger.source: ledger.rows for ledger in run.ledger or ()}
    if all(per_pass.get(name) for name in mixture.names):
        passes = (f"{number / per_pass[name]:.2f}" for name, number in zip(mixture.names, rows, strict=True))
        lines.append(["passes so far", *passes])
    return Table([f"{run.prefix}mixture", *mixture.names], lines)


def configuration(runs: Sequence[RunRecord]) -> list[Block]:
    """Show machines and configurations."""
    rows = [[key, *values] for key, values in all_values(runs)]
    machine = [
        [name, *(_known(getattr(run.environment, name)) for run in runs)]
        for name in ("processor", "cores", "threads", "platform", "python")
    ]
    machine.append(["memory", *(human_bytes(run.machine_memory_bytes) for run in runs)])
    machine.append(["measured peak", *(human_rate(run.peak_flops) for run in runs)])
    machine += [[name, *(_hardware(run).get(name, UNKNOWN) for run in runs)] for name in HARDWARE]
    for package in sorted({name for run in runs for name in run.environment.versions}):
        versions = (run.environment.versions.get(package, UNKNOWN) for run in runs)
        machine.append([package, *versions])
    headings = ["", *(run.name for run in runs)]
    return [Table(headings, machine), Table(headings, rows)]


def _known(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _hardware(run: RunRecord) -> dict[str, str]:
    """Return the facts that `headrace machine` had found before the run."""
    hardware = run.environment.machine.hardware if run.environment.machine else None
    bandwidth = run.environment.memory_bandwidth
    facts = {"memory bandwidth": f"{bandwidth / 1e9:,.1f} GB/s"} if bandwidth else {}
    if hardware:
        caches = ", ".join(f"{name} {human_bytes(size)}" for name, size in hardware.caches_bytes.items())
        facts |= {"SIMD": " ".join([hardware.simd, *hardware.fast_formats]), "caches": caches or UNKNOWN}
        facts["accelerators"] = ", ".join(hardware.accelerators) or "none"
    return facts
