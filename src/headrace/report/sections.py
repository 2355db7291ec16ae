"""The sections of a report: each is a function from runs to blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.perf import speed
from headrace.perf.advice import advise
from headrace.report.blocks import Bar, Block, Paragraph, Pipeline, Quote, Section, Station, Table, Tiles
from headrace.report.computing import flops_and_roofline, memory, scaling
from headrace.report.progress import cpu_use, data_wait, loss_progression, loss_table
from headrace.report.read import RunRecord
from headrace.run.records import FindingRecord
from headrace.stages import COMPUTING, PAUSES, Stage
from headrace.units import human_bytes, human_count, human_percent, human_rate, human_time

NOT_KNOWN = "unknown"
HARDWARE = ("SIMD", "caches", "memory bandwidth", "accelerators")


def all_sections(runs: Sequence[RunRecord]) -> list[Section]:
    """Return all sections, in the order in which a person asks."""
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
            NOT_KNOWN if validation is None else f"{validation:.4f}",
            "" if bits is None else f"{bits:.3f} bits per byte",
        ),
        ("data wait", human_percent(wait), speed.data_wait_grade(wait)),
        ("peak memory", human_bytes(run.peak_memory_bytes), f"of {_machine_memory(run)}"),
        ("processor", NOT_KNOWN if cores is None else f"{cores:.1f} cores", f"{run.training.threads} threads"),
        ("parameters", human_count(run.work.counts.num_parameters), f"{run.metrics[-1].step:,} steps"),
    ]


def _loss(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.4f}"


def _known(value: object) -> str:
    return NOT_KNOWN if value is None else str(value)


def _machine_memory(run: RunRecord) -> str:
    return NOT_KNOWN if run.machine_memory_bytes is None else human_bytes(run.machine_memory_bytes)


def bottleneck(runs: Sequence[RunRecord]) -> list[Block]:
    """Name what takes most of the time, with evidence and remedy."""
    blocks: list[Block] = []
    for run in runs:
        found = run.bottleneck
        name = f"{run.name}: {found.name}" if len(runs) > 1 else found.name.capitalize()
        evidence = found.evidence[0].upper() + found.evidence[1:]
        blocks += [Paragraph(f"{name}.", is_key=True), Paragraph(f"{evidence}. {found.remedy}")]
    return blocks


def recommendations(runs: Sequence[RunRecord]) -> list[Block]:
    """List what to try: measured gains before predicted ones, each by its size."""
    measured: list[tuple[float, list[str]]] = []
    predicted: list[tuple[float, list[str]]] = []
    for run in runs:
        name = [run.name] if len(runs) > 1 else []
        measured += [(gain, [*name, *row]) for gain, row in _measured_gains(run)]
        predicted += [(gain, [*name, *row]) for gain, row in _predicted_gains(run)]
    rows = [row for part in (measured, predicted) for _, row in sorted(part, key=lambda one: -one[0])]
    if not rows:
        return [Paragraph("Nothing in the breakdown of this run promises more than 1%.")]
    headings = ["try", "gain", "changes the result", "because"]
    blocks: list[Block] = [Table([*(["run"] if len(runs) > 1 else []), *headings], rows)]
    note = "Predicted gains come from the shares of the time, as upper bounds."
    if any(run.tuning is None for run in runs):
        note += " headrace tune --run RUN measures what would be gained."
    return [*blocks, Paragraph(note)]


def _measured_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each change that `headrace tune --run` found to be faster."""
    return [
        (
            found.gain_percent or 0.0,
            [
                ", ".join(f"{key}={value}" for key, value in found.changes.items()),
                f"measured: {found.gain_percent:.1f}% ± {found.spread_percent or 0.0:.1f}",
                "yes" if found.changes_result else "no",
                found.note or "tried by headrace tune, on top of what it took before",
            ],
        )
        for found in _measured(run)
        if (found.gain_percent or 0.0) > (found.spread_percent or 0.0)
    ]


def _predicted_gains(run: RunRecord) -> list[tuple[float, list[str]]]:
    """Return a row for each gain that the breakdown predicts and nobody has measured."""
    known = {key for found in _measured(run) for key in found.changes}
    often: dict[str, int | None] = {stage: run.steps_between(stage) for stage in PAUSES}
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
        for advice in advise(run.shares, run.percent_of_peak, run.training.model_dump(), often)
        if advice.key not in known
    ]


def _measured(run: RunRecord) -> list[FindingRecord]:
    """Return the findings of `headrace tune --run` that have a figure."""
    findings = run.tuning.findings if run.tuning else []
    return [found for found in findings if found.gain_percent is not None]


def pipeline(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the stages from text to update, and mark the slow one."""
    return _for_each(runs, lambda run: Pipeline(_stages(run)))


def _stages(run: RunRecord) -> list[Station]:
    corpus, data, last = run.corpus, run.config.data, run.metrics[-1]
    per_step = {share.stage: share.seconds / len(run.metrics) for share in run.shares}
    slow = run.bottleneck.name
    depths = [line.queue_depth for line in run.metrics if line.queue_depth is not None]
    loader_cpu = last.loader_cpu_s
    text, tokens = [("text", NOT_KNOWN)], []
    if corpus:
        text = [("text", human_bytes(corpus.bytes)), ("documents", f"{corpus.documents:,}")]
        tokens = [("tokens", human_count(corpus.tokens)), ("bytes a token", f"{corpus.bytes_per_token:.2f}")]
    queue = [
        ("depth", f"{sum(depths) / len(depths):.1f} of {last.queue_limit}" if depths else NOT_KNOWN),
        ("buffer", NOT_KNOWN if last.buffered_bytes is None else human_bytes(last.buffered_bytes)),
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
                ("processor", NOT_KNOWN if loader_cpu is None else f"{loader_cpu:.2f} s in all"),
            ],
        ),
        Station("Queue", queue, slow == Stage.DATA_WAIT),
        Station(
            "Forward and backward",
            [
                ("micro-batches", f"{run.num_micro_batches}, of {run.training.micro_batch_size} sequences"),
                ("a step", _milliseconds(computing)),
            ],
            slow.startswith("computing"),
        ),
        Station(
            "Optimizer",
            [("kind", run.training.optimizer), ("a step", _milliseconds(per_step.get(Stage.OPTIMIZER, 0.0)))],
            slow == Stage.OPTIMIZER,
        ),
        Station(
            "Evaluation, checkpoints",
            [
                ("a step", _milliseconds(sum(per_step.get(stage, 0.0) for stage in PAUSES))),
                ("evaluated", "never" if evaluated is None else f"every {evaluated:,} steps"),
            ],
            slow in PAUSES,
        ),
    ]


def time_breakdown(runs: Sequence[RunRecord]) -> list[Block]:
    """Show the time of each stage per step, per epoch and in all."""
    blocks: list[Block] = []
    for run in runs:
        parts = [(share.stage, share.seconds, f"{share.percent:.1f}%") for share in run.shares]
        blocks.append(Bar(f"{run.name}: {human_time(run.elapsed_s)}", parts))
        per_epoch = run.steps_per_epoch
        rows = []
        for share in run.shares:
            mean = share.seconds / len(run.metrics)
            epoch = NOT_KNOWN if per_epoch is None else human_time(mean * per_epoch)
            rows.append([share.stage, _milliseconds(mean), epoch, f"{share.seconds:,.2f} s", f"{share.percent:.1f}%"])
        total = run.elapsed_s / len(run.metrics)
        whole = NOT_KNOWN if per_epoch is None else human_time(total * per_epoch)
        rows.append(["in all", _milliseconds(total), whole, f"{run.elapsed_s:,.2f} s", "100.0%"])
        blocks.append(Table(["stage", "per step", "per epoch", "in all", "share"], rows))
    return blocks


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def corpus(runs: Sequence[RunRecord]) -> list[Block]:
    """Show text, tokens, packing and the ledger."""
    rows: dict[str, list[str]] = {}
    for number, run in enumerate(runs):
        for name, value in _corpus_facts(run).items():
            rows.setdefault(name, [NOT_KNOWN] * len(runs))[number] = value
    return [Table(["", *(run.name for run in runs)], [[name, *values] for name, values in rows.items()])]


def _corpus_facts(run: RunRecord) -> dict[str, str]:
    facts = {"tokenizer": run.config.data.tokenizer}
    if run.corpus:
        c, cut = run.corpus, run.corpus.chunking
        facts |= {
            "vocabulary": f"{c.tokenizer.vocab_size:,} tokens",
            "text": human_bytes(c.bytes),
            "tokens": f"{c.tokens:,} ({c.bytes_per_token:.2f} bytes each)",
            "documents": f"{c.documents:,}",
            "document length (least, mean, most)": f"{cut.shortest:,} / {cut.mean:,.0f} / {cut.longest:,}",
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
        facts["a pass: trained + carried + dropped"] = (
            f"{ledger['trained']:,} + {ledger['carried']:,} + {ledger['dropped']:,} = {ledger['tokens']:,}"
        )
        facts["passes so far"] = f"{run.tokens / max(ledger['tokens'], 1):.2f}"
    return facts


def _hardware(run: RunRecord) -> dict[str, str]:
    """Return the facts that `headrace machine` had found before the run."""
    hardware = run.environment.machine.hardware if run.environment.machine else None
    bandwidth = run.environment.memory_bandwidth
    facts = {"memory bandwidth": f"{bandwidth / 1e9:,.1f} GB/s"} if bandwidth else {}
    if hardware:
        caches = ", ".join(f"{name} {human_bytes(size)}" for name, size in hardware.caches_bytes.items())
        facts |= {"SIMD": " ".join([hardware.simd, *hardware.fast_formats]), "caches": caches or NOT_KNOWN}
        facts["accelerators"] = ", ".join(hardware.accelerators) or "none"
    return facts


def samples(runs: Sequence[RunRecord]) -> list[Block]:
    """Quote the first and the last sample of each run."""
    blocks: list[Block] = []
    for run in runs:
        chosen = run.samples[:1] + run.samples[1:][-1:]
        for (step, text), when in zip(chosen, ("before", "after"), strict=False):
            blocks.append(Quote(f"{run.name}, {when}: step {step:,}", text))
    return blocks or [Paragraph("No samples were written.")]


def configuration(runs: Sequence[RunRecord]) -> list[Block]:
    """Show machines and configurations; values that differ between runs come first."""
    configs = [run.config.model_dump() for run in runs]
    rows = [
        [f"{section}.{key}", *(str(config[section][key]) for config in configs)]
        for section, values in sorted(configs[0].items())
        for key in sorted(values)
    ]
    rows.sort(key=lambda row: len(set(row[1:])) == 1)
    machine = [
        [name, *(_known(getattr(run.environment, name)) for run in runs)]
        for name in ("processor", "cores", "threads", "platform", "python")
    ]
    machine.append(["memory", *map(_machine_memory, runs)])
    machine.append(["measured peak", *(human_rate(run.peak_flops) for run in runs)])
    machine += [[name, *(_hardware(run).get(name, NOT_KNOWN) for run in runs)] for name in HARDWARE]
    for package in sorted({name for run in runs for name in run.environment.versions}):
        versions = (run.environment.versions.get(package, NOT_KNOWN) for run in runs)
        machine.append([package, *versions])
    headings = ["", *(run.name for run in runs)]
    return [Table(headings, machine), Table(headings, rows)]
