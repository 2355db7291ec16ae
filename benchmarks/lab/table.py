"""Tables of experiments: a TOML or YAML file becomes cells, each a variant x corpus x budget x seed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import UsageError
from headrace.run.config import Config, Layers
from headrace.run.config_files import is_override, parse_override, read_config_file
from headrace.run.presets import PRESETS
from headrace.run.start.budget import is_open
from headrace.run.start.keys import is_given
from headrace.sizes import Size
from lab.budget import LIMITS, Budget

RESERVED = frozenset(
    [*LIMITS, "training.seed", "data.sources", "data.validation_sources", "run.out", "run.resume", "run.processes"]
)
"""Keys that the table or the laboratory sets for every cell."""


def _as_seeds(given: Any) -> Any:
    """Return the seeds that a number of them stands for."""
    return list(range(given)) if isinstance(given, int) and not isinstance(given, bool) else given


class Table(BaseModel):
    """A table of experiments, as its file says it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    variants: dict[str, str] = Field(min_length=1)
    """What is compared: a name, and arguments as after `headrace train`: key=value, or --preset NAME."""
    corpora: list[str] = Field(min_length=1)
    """Names of corpora (`python benchmarks/lab corpora` lists them)."""
    budgets: list[str] = Field(min_length=1)
    """What each cell may spend: "400 steps", "2e13 FLOPs", "90 s"."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], BeforeValidator(_as_seeds)] = Field(default=[0], min_length=1)
    """Seeds, or how many of them."""
    base: str = ""
    """Arguments of all variants; a variant's own go over them."""
    baseline: str = ""
    """The variant that the others are compared with; empty: the first."""
    context: Annotated[int, Field(ge=0)] | Literal["own"] = 0
    """Tokens of the windows in which all models are judged; 0: the longest that a variant trains with; own: each is
    judged in windows as long as those that it was trained with."""
    judge_bytes: Size = Field(default=1_000_000, validate_default=True)
    """Most bytes of the held-out text that models are judged on."""
    seed_spread: float = Field(default=0.0, ge=0)
    """Standard deviation between seeds, in bits per byte, that is known from before; used where no variant has two."""

    @model_validator(mode="after")
    def _check(self) -> Table:
        self.baseline = self.baseline or next(iter(self.variants))
        if self.baseline not in self.variants:
            raise ValueError(f"baseline {self.baseline!r} is not one of the variants: {', '.join(self.variants)}")
        for what, names in (
            ("variants", list(self.variants)), ("corpora", self.corpora),
            ("budgets", [str(Budget.parse(text)) for text in self.budgets]), ("seeds", [str(s) for s in self.seeds]),
        ):  # fmt: skip
            twice = [name for name, number in Counter(map(slug, names)).items() if number > 1]
            if twice:
                raise ValueError(f"{what}: {twice[0]!r} would be the folder of two of them. Give them other names")
        return self

    @property
    def cells(self) -> list[Cell]:
        """All cells: seed by seed, so that a table that is stopped half-way has every variant once before any twice."""
        return [
            Cell(variant, corpus, Budget.parse(budget), seed)
            for seed in self.seeds
            for budget in self.budgets
            for corpus in self.corpora
            for variant in self.variants
        ]

    def layers(self, variant: str, corpus_values: dict[str, Any]) -> Layers:
        """Return the configuration of a variant: default < preset < corpus < base < variant."""
        arguments = [*_split(self.base, "base"), *_split(self.variants[variant], f"variant {variant!r}")]
        layers = Layers()
        presets = [value for key, value in arguments if key == "preset"]
        if presets:
            layers.add(PRESETS[presets[-1]](), f"preset {presets[-1]}")
        layers.add(corpus_values, "the corpus")
        for key, value in arguments:
            if key != "preset":
                layers.add({key: value}, f"variant {variant!r}")
        return layers

    def judging_context(self) -> int | Literal["own"]:
        """Return the tokens of the windows in which all models are judged; own: of those that each was trained with."""
        if self.context:
            return self.context
        configs = {name: self.layers(name, {}).build() for name in self.variants}
        for name, config in configs.items():
            if self._is_timed and is_open(config) and not is_given(config, "training.max_length"):
                raise UsageError(
                    f"variant {name!r} chooses its windows by its time, so it is not known which are the longest. Write"
                    ' context = "own" to judge each model in its own windows, or a number of tokens.'
                )
        return max(config.training.sequence_length for config in configs.values())

    @property
    def _is_timed(self) -> bool:
        return any(Budget.parse(budget).unit == "s" for budget in self.budgets)


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    variant: str
    corpus: str
    budget: Budget
    seed: int

    @property
    def name(self) -> str:
        """The name of its run directory."""
        return "--".join(map(slug, (self.variant, self.corpus, str(self.budget), f"seed {self.seed}")))


def read_table(path: Path) -> Table:
    """Read a table and check everything in it that can be checked before a run."""
    try:
        table = Table.model_validate(read_config_file(path))
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        known = f" A table has the keys {', '.join(Table.model_fields)}." if first["type"] == "extra_forbidden" else ""
        raise UsageError(f"{path}: {key + ': ' if key else ''}{message}.{known}") from None
    except UsageError as problem:
        raise problem if str(path) in str(problem) else UsageError(f"{path}: {problem}") from None
    for variant in table.variants:
        check_variant(table, variant, path)
    return table


def check_variant(table: Table, variant: str, path: Path) -> Config:
    """Build the configuration of a variant, so that a mistake in the last one does not show after hours."""
    try:
        layers = table.layers(variant, {})
        return layers.build()
    except UsageError as problem:
        raise UsageError(f"{path}: variant {variant!r}: {problem}") from None


def slug(name: str) -> str:
    """Return a name as a folder can be called.

    >>> slug("32 * 128, lr=0.006"), slug("2e13 FLOPs")
    ('32-128-lr-0.006', '2e13-FLOPs')
    """
    return re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-.") or "-"


def _split(text: str, where: str) -> list[tuple[str, Any]]:
    """Return arguments as pairs of key and value; a preset has the key `preset`."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise UsageError(f"{where}: {text!r}: {problem}.") from None
    pairs: list[tuple[str, Any]] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--preset" or word.startswith("--preset="):
            name = word.partition("=")[2] or next(waiting, "")
            if name not in PRESETS:
                raise UsageError(f"{where}: --preset {name}: no such preset. Presets: {', '.join(PRESETS)}")
            pairs.append(("preset", name))
            continue
        if not is_override(word):
            raise UsageError(f"{where}: {word!r}: a variant is made of key=value and --preset NAME.")
        key, value = parse_override(word)
        if key in RESERVED:
            raise UsageError(f"{where}: {key} is set by the laboratory, from the table's budgets, corpora and seeds.")
        pairs.append((key, value))
    return pairs
