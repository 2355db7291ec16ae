"""Plan: what a run will cost before it starts, or what to run in a given time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from headrace.data.corpus.remote.addresses import is_remote
from headrace.errors import UsageError
from headrace.instruments.plan import Plan
from headrace.instruments.prediction import predict_run
from headrace.instruments.prediction_worker import predict_apart
from headrace.instruments.proposal import Proposal, propose
from headrace.instruments.short_run import ShortRun
from headrace.run.config import Config, Layers
from headrace.units import human_count


def plan(config: Config) -> Plan:
    """Predict speed, time, memory and disk of a run; takes a few seconds."""
    return predict_run(config)


def plan_apart(config: Config) -> dict[str, Any]:
    """Predict a run in a process of its own, so that several predictions do not disturb each other."""
    return predict_apart(config)


def plan_minutes(
    given: Layers, minutes: float, out: Path, show: Callable[[ShortRun], None] = lambda _: None
) -> Proposal:
    """Propose what to run in a given time, and write it as a configuration file."""
    if out.exists():
        raise UsageError(f"{out}: exists already. Choose another --out.")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no such folder. Choose another --out.")
    proposal = propose(given, minutes, show)
    write_plan(proposal, out)
    return proposal


def write_plan(proposal: Proposal, path: Path) -> None:
    """Write the whole configuration as YAML, which `headrace train` takes; never over another file."""
    values = proposal.config.model_dump(exclude={"run"})
    for name in ("sources", "validation_sources"):
        values["data"][name] = _absolute(values["data"][name])
    exposure = proposal.prospect.exposure
    lines = [
        f"Proposed by headrace plan --minutes {proposal.minutes:g}: {human_count(exposure.parameters)} parameters,"
        f" about {human_count(exposure.tokens)} tokens, expected {proposal.prospect.bits_per_byte:.2f} bits per byte"
        f" ({proposal.interval[0]:.2f} to {proposal.interval[1]:.2f}).",
        *(f"Assumed: {text}." for text in proposal.assumptions),
    ]
    text = "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(values, sort_keys=False)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path}: exists already. Choose another --out.") from None
    except OSError as problem:
        raise UsageError(f"{path}: cannot be written ({problem.strerror}).") from None


def _absolute(source: Any) -> Any:
    """Return a source that is found from any folder."""
    if isinstance(source, dict):
        return {**source, "path": _absolute(source["path"])}
    if isinstance(source, list):
        return [_absolute(path) for path in source]
    is_here = isinstance(source, str) and not is_remote(source)
    return str(Path(source).expanduser().resolve()) if is_here else source
