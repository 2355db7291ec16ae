"""A whole configuration: sections, presets, files and overrides, and where every value came from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from headrace.data.config import DataConfig
from headrace.data.corpus.sources import Source
from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.quick import LIMITS, quick_limits
from headrace.run.synonyms import ACCEPTED, ANSWERS, answered_value, normal, usual_value
from headrace.training.config import TrainingConfig

TrackerName = Literal["tensorboard", "trackio", "wandb", "mlflow"]
"""The trackers that there are: each is a file of this name in run/trackers/."""


def _as_list(value: Any) -> Any:
    """Return one name as a list of one."""
    return [value] if isinstance(value, str) else value


class RunConfig(BaseModel):
    """Where the results of a run go, and the processes that compute it."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    out: str = ""
    """The run directory; empty: one below runs/ named by the time."""
    resume: bool | Annotated[str, Field(pattern=r"^(auto|last|best|step-\d{8,})$")] = False
    """true: continue from the last checkpoint, an error without a run. auto: continue if the run directory has a
    checkpoint, else begin. best or step-00000100: continue from that checkpoint; later steps are done again."""
    force: bool = False
    """Start even if the free memory is predicted to be too little."""
    processes: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = 1
    """Processes on this machine that train together; auto: as many as are measured to be fastest, each with its share
    of the cores. Under torchrun, its number of processes; from Python, start several processes by torchrun."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every process has the whole model. fsdp: each has its piece of the model and of the optimizer's state."""
    timeout_seconds: float = Field(default=300, gt=0, le=10_000_000)
    """Seconds that a process waits for the others before it gives up."""
    measure_again: bool = False
    """Choose again how to compute steps, and measure again how fast this machine trains, though both are known."""
    tensorboard: bool = False
    """Write TensorBoard event files too: the same as run.trackers=[tensorboard]."""
    trackers: Annotated[list[TrackerName], BeforeValidator(_as_list)] = Field(default_factory=list)
    """Experiment trackers that are told of every step: tensorboard, trackio, wandb, mlflow. Each needs the extra of its
    name; one that fails or hangs ends with a warning, and training goes on."""


class Config(BaseModel):
    """The whole configuration of a run."""

    model_config = ConfigDict(extra="forbid")

    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    run: RunConfig = Field(default_factory=RunConfig)


class _DataOnly(BaseModel):
    """The `data` section of a configuration by itself."""

    data: DataConfig = Field(default_factory=DataConfig)


SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "data": DataConfig,
    "run": RunConfig,
}
ALIASES = {
    f"training.{name}": f"data.{name}" for name in ("prefetch_batches", "num_workers", "shuffle", "queue_capacity")
} | {f"{section}.{word}": key for section in SECTIONS for word, key in ACCEPTED.items()}
"""Keys that are accepted for others: people know them from elsewhere."""


@dataclass
class Layers:
    """Layers of values by dotted key, later ones over earlier ones, each value with its origin."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, values: dict[str, Any], origin: str) -> None:
        """Add a layer: a mapping of sections to keys, or of dotted keys."""
        for key, value in _flatten(values, origin).items():
            name = ALIASES.get(key, key)
            if name not in all_keys():
                raise UsageError(f"{key}: unknown key ({origin}).{nearest_hint(key)}")
            self.values[name] = usual_value(name, value)
            self.origins[name] = origin if name == key else f"{origin}, as {key}"

    def build(self) -> Config:
        """Validate everything at once; the first problem is an error that names key, value, place and nearest key."""
        try:
            config = Config.model_validate(self._sections())
        except ValidationError as problem:
            raise UsageError(self._complaint(problem)) from None
        self._check_windows(config)
        usual = {name: getattr(config.training, name) for name in LIMITS}
        for name, value in quick_limits(usual).items():
            if value != usual[name]:  # only what is set counts as given
                setattr(config.training, name, value)
        return config

    def _check_windows(self, config: Config) -> None:
        """Refuse short windows that do not divide a sequence; what is tried or chosen later leaves such ones whole."""
        length, window = config.training.max_length, config.training.short_windows
        if 0 < window < length and length % window:
            where = self.origins.get("training.short_windows", "")
            raise UsageError(
                f"training.short_windows: {window:,} ({where}): it should divide training.max_length, which is"
                f" {length:,}"
            )

    def build_data(self) -> DataConfig:
        """Validate the `data` section alone: a whole configuration has a model, whose architecture imports torch."""
        try:
            return _DataOnly.model_validate(self._sections()).data
        except ValidationError as problem:
            raise UsageError(self._complaint(problem)) from None

    def _sections(self) -> dict[str, dict[str, Any]]:
        """Return the values of each section by name."""
        nested: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            section, _, name = key.partition(".")
            if self._gives_way(key):
                continue
            nested.setdefault(section, {})[name] = value
        return nested

    def _gives_way(self, key: str) -> bool:
        """Check whether a value of a preset is about the network or its tokenizer, which model.init brings along."""
        is_brought = key.startswith("model.") or key == "data.tokenizer"
        return is_brought and self.origins.get(key, "").startswith("preset ") and bool(self.values.get("model.init"))

    def _complaint(self, problem: ValidationError) -> str:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        origin = self.origins.get(key, "")
        where = f" ({origin[:200]})" if origin else ""
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "it should be")
        message = message.partition(", unable to parse")[0].replace("valid integer", "whole number")
        if key in self.values:
            answer = answered_value(key, self.values[key])
            return f"{key}: {_shown(self.values[key])}{where}: {answer or message}"
        places = [f"{name} was set by {o}" for name, o in self.origins.items() if name.startswith(f"{key}.")]
        return f"{key}: {message}" + (f" ({'; '.join(places[:4])})" if places else "")


def _flatten(values: dict[str, Any], origin: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in ((str(key), value) for key, value in values.items()):
        if "." in key:
            flat[key] = value
        elif key not in SECTIONS:
            hint = _section_hint(key, value)
            raise UsageError(f"{key[:80]}: unknown section ({origin}). Sections are {', '.join(SECTIONS)}.{hint}")
        elif not isinstance(value, dict):
            raise UsageError(f"{key}: a section holds keys, not {_shown(value)} ({origin})")
        else:
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
    return flat


def all_keys() -> list[str]:
    return [f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.model_fields]


def is_text(key: str) -> bool:
    """Return whether a key takes text as it is written; `[]` stands for the items of a list.

    >>> is_text("training.prompt"), is_text("data.sources[].path"), is_text("training.seed")
    (True, True, False)
    """
    return key in _TEXT_KEYS


def _text_keys() -> set[str]:
    keys = {
        f"{section}.{name}"
        for section, kind in SECTIONS.items()
        for name, field in kind.model_fields.items()
        if field.annotation in (str, str | None)
    } | {
        f"{section}.{name}[]"
        for section, kind in SECTIONS.items()
        for name, field in kind.model_fields.items()
        if field.annotation == list[str]
    }
    for sources in ("data.sources", "data.validation_sources"):
        named = [name for name, field in Source.model_fields.items() if field.annotation is str]
        keys |= {f"{sources}[]", *(f"{sources}[].{name}" for name in (*named, "path", "path[]"))}
    return keys


_TEXT_KEYS = _text_keys()


def whole_key(name: str) -> str:
    """Return the key that a name without a section stands for; the name itself if none or several do.

    >>> whole_key("batch_size"), whole_key("lr"), whole_key("memory_budget")
    ('training.batch_size', 'training.learning_rate', 'memory_budget')
    """
    found = [key for key in all_keys() if key.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    return name if found else ACCEPTED.get(name, name)


def nearest_hint(key: str) -> str:
    """Suggest what a key was meant to be: one of that name in any section, a synonym, else the nearest as a whole."""
    known = [*all_keys(), *ALIASES]
    last = normal(key)
    if last in ANSWERS:
        return f" {ANSWERS[last]}."
    candidates = [name for name in all_keys() if name.rpartition(".")[2] == last]
    if not candidates and last in ACCEPTED:
        return f" Did you mean {ACCEPTED[last]}?"
    if not candidates and "." not in key:
        candidates = difflib.get_close_matches(key, SECTIONS, 1) or [name for name in SECTIONS if key.startswith(name)]
    if not candidates:
        candidates = [name for name in known if difflib.get_close_matches(last, [name.rpartition(".")[2]], 1, 0.75)]
    near = difflib.get_close_matches(key, candidates or known, 1, cutoff=0.0 if candidates else 0.7)
    return f" Did you mean {ALIASES.get(near[0], near[0])}?" if near else ""


def _section_hint(key: str, value: Any) -> str:
    """Suggest a section by its name, or by the keys that stand in it."""
    hint = nearest_hint(key)
    if hint or not isinstance(value, dict):
        return hint
    section, kind = max(SECTIONS.items(), key=lambda item: len(item[1].model_fields.keys() & value.keys()))
    return f" Did you mean {section}?" if kind.model_fields.keys() & value.keys() else ""


def _shown(value: Any) -> str:
    """Show a value in a message, however large it is."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}…"
