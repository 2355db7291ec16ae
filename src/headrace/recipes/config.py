"""A whole configuration: sections, presets, files and overrides, and where every value came from."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.data.config import DataConfig
from headrace.errors import UsageError
from headrace.models.config import ModelConfig
from headrace.training.config import TrainingConfig


class RunConfig(BaseModel):
    """Where results go, and in how many processes."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    out: str = ""
    """The run directory; empty: runs/ and the time."""
    resume: bool | Annotated[str, Field(pattern=r"^(auto|last|best|step-\d{8,})$")] = False
    """true: continue from the last checkpoint, an error without a run. auto: continue if the run directory has a
    checkpoint, else begin. best or step-00000100: continue from that checkpoint; later steps are done again."""
    force: bool = False
    """Start even where the memory that is free is predicted not to be enough."""
    processes: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Processes on this machine that train together; auto: as many as are measured to be fastest, each with its share
    of the cores. torchrun's number, under torchrun. For the command line: from Python, start by torchrun."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every process has the whole model. fsdp: each has its piece of the model and of the optimizer's state."""
    timeout_seconds: float = Field(default=300, gt=0)
    """How long a process waits for the others before it gives up."""
    tensorboard: bool = False
    """Write TensorBoard event files too (needs the extra `tensorboard`)."""


class Config(BaseModel):
    """Everything that a run depends on."""

    model_config = ConfigDict(extra="forbid")

    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    run: RunConfig = Field(default_factory=RunConfig)


# Names that people know from elsewhere.
ALIASES = {
    f"training.{name}": f"data.{name}" for name in ("prefetch_batches", "num_workers", "shuffle", "queue_capacity")
}
SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "data": DataConfig,
    "run": RunConfig,
}


@dataclass
class Layers:
    """Values by dotted key, the later layers over the earlier, each with where it was set."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add(self, values: dict[str, Any], origin: str) -> None:
        """A mapping of sections (nested) or of dotted keys."""
        for key, value in _flatten(values, origin).items():
            name = ALIASES.get(key, key)
            self.values[name] = value
            self.origins[name] = origin if name == key else f"{origin}, as {key}"

    def build(self) -> Config:
        """Validate everything at once; the first problem is an error that names key, value, place and nearest key."""
        nested: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            section, _, name = key.partition(".")
            nested.setdefault(section, {})[name] = value
        try:
            return Config.model_validate(nested)
        except ValidationError as problem:
            raise UsageError(self._complaint(problem)) from None

    def _complaint(self, problem: ValidationError) -> str:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        origin = self.origins.get(key, "")
        where = f" ({origin})" if origin else ""
        if first["type"] == "extra_forbidden":
            return f"{key}: unknown key{where}.{_nearest(key)}"
        message = first["msg"].removeprefix("Value error, ")
        if key in self.values:
            return f"{key}: {self.values[key]!r}{where}: {message}"
        places = [f"{name} was set by {o}" for name, o in self.origins.items() if name.startswith(f"{key}.")]
        return f"{key}: {message}" + (f" ({'; '.join(places[:4])})" if places else "")


def _flatten(values: dict[str, Any], origin: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if "." in key:
            flat[key] = value
        elif key not in SECTIONS:
            raise UsageError(f"{key}: unknown section ({origin}). Sections are {', '.join(SECTIONS)}.{_nearest(key)}")
        elif not isinstance(value, dict):
            raise UsageError(f"{key}: a section holds keys, not {value!r} ({origin})")
        else:
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
    return flat


def all_keys() -> list[str]:
    return [f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.model_fields]


def _nearest(key: str) -> str:
    keys = [*all_keys(), *ALIASES]
    last = key.rpartition(".")[2]
    elsewhere = [name for name in keys if name.rpartition(".")[2] == last]
    near = elsewhere or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    if not near:
        near = [
            name
            for name in keys
            if name.rpartition(".")[2] in difflib.get_close_matches(last, [k.rpartition(".")[2] for k in keys], 1)
        ]
    return f" Did you mean {near[0]}?" if near else ""


def read_config_file(path: Path) -> dict[str, Any]:
    """YAML, TOML, or JSON with comments."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            value = tomllib.loads(text)
        elif path.suffix == ".json":
            value = json.loads(strip_comments(text))
        else:
            value = yaml.safe_load(text)
    except OSError as problem:
        raise UsageError(f"{path}: cannot be read ({problem.strerror}).") from None
    except (yaml.YAMLError, json.JSONDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"{path}: not valid {path.suffix[1:].upper()}: {' '.join(str(problem).split())}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a configuration has sections ({', '.join(SECTIONS)}), not a {type(value).__name__}.")
    return value


def strip_comments(text: str) -> str:
    """Remove // and /* */ comments outside of strings, and commas before a closing bracket.

    >>> strip_comments('{"a": "http://x", // why\\n "b": 1,}')
    '{"a": "http://x", \\n "b": 1}'
    """
    pattern = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
    text = pattern.sub(lambda found: found.group(1) or "", text)
    return re.sub(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', lambda found: found.group(1) or "", text)


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` with the value as YAML reads it.

    >>> parse_override("training.batch_size=32")
    ('training.batch_size', 32)
    """
    key, _, value = text.partition("=")
    if "." not in key:
        raise UsageError(f"{text}: write overrides as section.key=value.{_nearest(key)}")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    if isinstance(parsed, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", parsed):
        parsed = float(parsed)  # YAML takes 1e-3 for a string
    return key, parsed if parsed is not None else ""
