"""Several plans side by side, as `headrace plan a.yaml b.yaml` shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from headrace.cli import display
from headrace.run.config import Config
from headrace.units import UNKNOWN, human_bytes, human_count, human_time

Plan = Mapping[str, Any]


def _or_unknown(key: str, format_value: Callable[[Any], str]) -> Callable[[Plan], str]:
    return lambda plan: UNKNOWN if plan[key] is None else format_value(plan[key])


ROWS: dict[str, Callable[[Plan], str]] = {
    "parameters": _or_unknown("parameters", human_count),
    "tokens/s": _or_unknown("tokens_per_second", lambda rate: f"{rate:,.0f}"),
    "a step": _or_unknown("step_s", human_time),
    "an epoch": _or_unknown("epoch_s", human_time),
    "steps": _or_unknown("total_steps", lambda steps: f"{steps:,}"),
    "in total": _or_unknown("total_s", human_time),
    "memory": _or_unknown("memory_bytes", human_bytes),
    "fits": lambda plan: "yes" if plan["fits"] else f"no: {human_bytes(-plan['headroom_bytes'])} missing",
    "disk": lambda plan: human_bytes(plan["cache_bytes"] + plan["checkpoint_bytes"]),
    "computed in": lambda plan: (
        f"{plan['execution']['precision']}, micro-batch {plan['execution']['micro_batch_size']}"
    ),
    "bound by": lambda plan: str(plan["bound"]["name"]),
}


def show_comparison(names: list[str], configs: list[Config], plans: Sequence[Plan]) -> None:
    """Print which is fastest and whether all fit, what differs in the configurations, and the predictions."""
    display.say(_verdict(names, plans), display.out)
    display.out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("", *names):
        table.add_column(Text(heading), justify="right" if heading else "left", overflow="fold")
    for key, values in differences(configs).items():
        table.add_row(Text(key), *(Text(value) for value in values), style="dim")
    table.add_section()
    for label, shown in ROWS.items():
        table.add_row(label, *(Text(shown(plan)) for plan in plans))
    display.out.print(table, soft_wrap=False)


def differences(configs: list[Config]) -> dict[str, list[str]]:
    """Return the keys whose values differ between configurations, with the value of each; where runs go is left out."""
    flat = [
        {f"{section}.{key}": value for section, keys in config.model_dump(exclude={"run"}).items()
         for key, value in keys.items()}
        for config in configs
    ]  # fmt: skip
    found = {key: [str(values[key]) for values in flat] for key in flat[0]}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


def _verdict(names: list[str], plans: Sequence[Plan]) -> Text:
    known = {name: plan["tokens_per_second"] for name, plan in zip(names, plans, strict=True)}
    rates = {name: rate for name, rate in known.items() if rate is not None}
    verdict = Text("speeds are unknown")
    if rates:
        ordered = sorted(rates, key=lambda name: -rates[name])
        others = [f"{rates[ordered[0]] / rates[name]:.2f} times {name}" for name in ordered[1:]]
        verdict = Text.assemble((f"fastest: {ordered[0]}", "bold"), f", {', '.join(others)}" if others else "")
    misfits = [name for name, plan in zip(names, plans, strict=True) if not plan["fits"]]
    fits = f"; memory is too small for {', '.join(misfits)}" if misfits else "; all fit in memory"
    return Text.assemble(verdict, fits)
