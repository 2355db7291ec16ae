"""The result of a run, printed when it ends: what it learned, what it cost, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.display import out, printable
from headrace.cli.screen import sample_text
from headrace.generation.prompts import BETWEEN_SAMPLES
from headrace.perf.breakdown import break_down, find_bottleneck
from headrace.run.config import Config
from headrace.run.directory import read_record
from headrace.run.records import Run, TuningRecord
from headrace.run.session.overfitting import remedies
from headrace.training.schedule import doubled_limits
from headrace.units import human_bytes, human_count, human_energy, human_percent, human_time, plural

LEAST_SHARE_PERCENT = 0.5
MOST_SAMPLE_CHARACTERS = 600
PROMPT_CHARACTERS = 40


def show_result(run: Run, config: Config) -> None:
    """Print the result: as a page in a terminal, as key=value and text elsewhere."""
    if out.is_terminal:
        _show_page(run, config)
    else:
        for line in plain_lines(run, config):
            out.print(line, markup=False)


# In a terminal


def _show_page(run: Run, config: Config) -> None:
    epochs = run.corpus.get("epoch_tokens")
    passes = f" ({run.tokens / epochs:.2f} epochs)" if epochs else ""
    out.print()
    out.print(
        Text.assemble(
            (str(run.folder), "bold"), f": {'stopped after' if run.was_stopped else 'finished'}"
            f" {plural(run.steps, 'step')}, {human_count(run.tokens)} tokens{passes},"
            f" {human_time(run.train_seconds)} of training",
        ),
        soft_wrap=False,
    )  # fmt: skip
    for name, before, after, prompt in _sample_pairs(run):
        _show_heading(name)
        _show_sample("before", before, prompt)
        _show_sample("after", after, prompt)
    for heading, rows in (("learned", _learned(run)), ("cost", _costs(run))):
        _show_heading(heading)
        out.print(_table(rows), soft_wrap=False)
    _show_heading("next")
    for command in next_commands(run, config):
        out.print(f"  {command}", markup=False)  # in one line, however long, so that it can be copied


def _show_heading(name: str) -> None:
    out.print(Text(f"\n{name}", style="bold cyan"))


def _show_sample(name: str, sample: str, prompt: str) -> None:
    if sample:
        text = sample_text(sample[:MOST_SAMPLE_CHARACTERS], prompt)
        out.print(Group(Text(f"  {name}", style="dim"), Padding(text, (0, 0, 0, 4))), soft_wrap=False)


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(f"  {name}", Text(value))
    return table


def _sample_pairs(run: Run) -> Iterator[tuple[str, str, str, str]]:
    """Yield a heading, the samples before and after training, and the prompt of both."""
    firsts, lasts = run.first_sample.split(BETWEEN_SAMPLES), run.last_sample.split(BETWEEN_SAMPLES)
    total = max(len(firsts), len(lasts))
    samples = zip_longest(firsts, lasts, run.prompts[:total], fillvalue="")
    for number, (before, after, prompt) in enumerate(samples, 1):
        if before or after:
            yield "sample" if total == 1 else f"sample {number} of {total}", before, after, prompt


def _learned(run: Run) -> list[tuple[str, str]]:
    """Return the losses, by name."""
    rows = []
    if run.first_loss is not None and run.smoothed_loss is not None:
        rows.append(("training loss", f"{run.first_loss:.4f} → {run.smoothed_loss:.4f}{_improvement(run)} (smoothed)"))
    if run.validation_loss is not None:
        bits = "" if run.validation_bits_per_byte is None else f", {run.validation_bits_per_byte:.3f} bits per byte"
        rows.append(("validation loss", f"{run.validation_loss:.4f}{bits}{_validated_on(run)}"))
    for source, loss in run.validation_loss_by_source.items():
        rows.append((f"  {printable(source)}", "no validation text" if loss is None else f"{loss:.4f}"))
    if run.calibrated_by != 1 and run.best_step in (None, run.steps):
        was = "too sure of itself" if run.calibrated_by < 1 else "not sure enough"
        rows.append(
            ("calibrated", f"logits times {run.calibrated_by:.3f}, as the network was {was} on the validation text")
        )
    if best := _best(run):
        rows.append(("best step", best))
    if run.skipped_steps:
        rows.append(("skipped", f"{plural(run.skipped_steps, 'update')}: the loss or gradient was not finite"))
    return rows or [("loss", "unknown: no update was finished")]


def _best(run: Run) -> str:
    """Say which step the best checkpoint is from, where it is not the last; empty if it is."""
    best, newest = run.best_validation_loss, run.compared_loss
    if run.best_step is None or run.best_step >= run.steps or best is None or newest is None or newest < best:
        return ""
    later = "later steps made it worse" if run.overfitting else "no later step was better"
    return (
        f"{run.best_step:,}, with {best:.4f}; {later} ({newest:.4f} at the last evaluation, on the same sample)."
        " generate, serve and export use it"
    )


def _improvement(run: Run) -> str:
    if not run.first_loss or run.smoothed_loss is None:
        return ""
    percent = 100 * (1 - run.smoothed_loss / run.first_loss)
    return f", {percent:.0f}% lower" if percent >= 0.5 else f", {-percent:.0f}% higher" if percent <= -0.5 else ""


def _validated_on(run: Run) -> str:
    if not run.validation_tokens:
        return ""
    return f", on {validation_text(run.validation_tokens, run.validation_is_whole)}"


def validation_text(num_tokens: int, is_whole: bool) -> str:
    """Say what an evaluation was made on.

    >>> validation_text(10_240, is_whole=False), validation_text(55_770, is_whole=True)
    ('a sample of 10,240 tokens', 'the whole validation part')
    """
    return "the whole validation part" if is_whole else f"a sample of {num_tokens:,} tokens"


def _costs(run: Run) -> list[tuple[str, str]]:
    """Return time, speed and memory, by name."""
    shares = break_down(run.seconds)
    bottleneck = find_bottleneck(shares, run.percent_of_peak, run.processor_taken_percent)
    parts = ", ".join(f"{share.stage} {share.percent:.1f}%" for share in shares if share.percent >= LEAST_SHARE_PERCENT)
    rows = [
        (
            "elapsed",
            f"{human_time(run.elapsed_seconds)} (user {human_time(run.user_seconds)},"
            f" system {human_time(run.system_seconds)}; {run.cpu_cores:.1f} cores busy)",
        ),
        ("time went to", parts),
        ("bottleneck", f"{bottleneck.name} ({bottleneck.evidence})"),
        (
            "speed",
            f"{run.tokens_per_second:,.0f} tokens/s, {human_percent(run.percent_of_peak)} of this machine's measured"
            " peak while training",
        ),
        ("memory", f"{human_bytes(run.peak_memory_bytes)} at most"),
    ]
    if run.energy_joules:
        used = human_energy(sum(run.energy_joules.values()))
        rows.append(("energy", f"{used} ({', '.join(run.energy_joules)}; other programs included)"))
    best = _best_batch_size(run.folder)
    return rows if best is None else [*rows, ("best batch", f"{best} sequences, as headrace tune measured")]


def _best_batch_size(folder: Path) -> int | None:
    """Return the best batch size, if `headrace tune --run` has measured it."""
    tuning = read_record(folder / "tune.json", TuningRecord)
    return tuning.best_batch_size if tuning else None


# Elsewhere


def plain_lines(run: Run, config: Config) -> list[str]:
    """Return the same facts as lines of key=value, and the samples as text."""
    shares = break_down(run.seconds)
    values: dict[str, object] = {
        "run": run.folder,
        "was_stopped": str(run.was_stopped).lower(),
        "steps": run.steps,
        "tokens": run.tokens,
        "first_loss": _figure(run.first_loss),
        "smoothed_loss": _figure(run.smoothed_loss),
        "validation_loss": _figure(run.validation_loss),
        "validation_bits_per_byte": _figure(run.validation_bits_per_byte),
        "validation_tokens": run.validation_tokens,
        "best_step": run.best_step,
        "best_validation_loss": _figure(run.best_validation_loss),
        "compared_loss": _figure(run.compared_loss),
        "calibrated_by": None if run.calibrated_by == 1 else _figure(run.calibrated_by),
        "overfitting_since_step": run.overfitting.best_step if run.overfitting else None,
        **{
            f"validation_loss[{printable(name)}]": _figure(loss) for name, loss in run.validation_loss_by_source.items()
        },
        "skipped_steps": run.skipped_steps or None,
        "train_seconds": f"{run.train_seconds:.1f}",
        "elapsed_seconds": f"{run.elapsed_seconds:.1f}",
        "user_seconds": f"{run.user_seconds:.1f}",
        "system_seconds": f"{run.system_seconds:.1f}",
        **{f"{share.stage.replace(' ', '_')}_percent": f"{share.percent:.1f}" for share in shares},
        "bottleneck": find_bottleneck(shares, run.percent_of_peak, run.processor_taken_percent).name,
        "tokens_per_second": f"{run.tokens_per_second:.0f}",
        "of_peak": human_percent(run.percent_of_peak),
        "cpu_cores": f"{run.cpu_cores:.1f}",
        "peak_memory_bytes": run.peak_memory_bytes,
        "energy_joules": round(sum(run.energy_joules.values())) or None,
        "best_batch_size": _best_batch_size(run.folder),
    }
    lines = [f"{name}={value}" for name, value in values.items() if value is not None]
    for name, before, after, _ in _sample_pairs(run):
        for when, sample in (("before", before), ("after", after)):
            if not sample:
                continue
            lines.append(f"{name} {when} training:")
            lines += [f"    {line}" for line in printable(sample[:MOST_SAMPLE_CHARACTERS]).rstrip().split("\n")]
    return [*lines, *(f"next={command}" for command in next_commands(run, config))]


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


# Both


def next_commands(run: Run, config: Config) -> list[str]:
    """Return the commands that a user may want next, as they can be typed."""
    folder = shlex.quote(str(run.folder))
    prompt = next((line.strip() for line in "\n".join(run.prompts).splitlines() if line.strip()), "")
    start = quoted(printable(prompt)[:PROMPT_CHARACTERS]) if prompt else '"..."'
    further = "" if run.was_stopped else f" {doubled_limits(config.training)}"
    found = None if run.was_stopped else run.overfitting
    better = [command for _, command in remedies(found, config, run.folder)] if found else []
    return [
        f"headrace generate {folder} --prompt {start}",
        f"headrace report {folder}",
        *(better or [f"headrace train --resume {folder}{further}"]),  # going on would make it worse
    ]


def quoted(text: str) -> str:
    """Quote a text for a shell, as a person would.

    >>> print(quoted("ROMEO:"), quoted("def main("), quoted("'Tis fond"), quoted("'$5'"))
    ROMEO: 'def main(' "'Tis fond" ''"'"'$5'"'"''
    """
    if "'" in text and not any(character in text for character in '"$`\\!'):
        return f'"{text}"'
    return shlex.quote(text)
