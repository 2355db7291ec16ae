"""The documentation of configuration keys, taken from their definitions: type, default and meaning."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from headrace.errors import UsageError
from headrace.run.config import ALIASES, SECTIONS, all_keys, nearest_hint, whole_key
from headrace.run.synonyms import ACCEPTED, ANSWERS, normal
from headrace.sizes import Size

_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "names and values",
    tuple: "a list, such as en,de",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Key:
    """The documentation of one configuration key."""

    name: str
    type: str
    default: str
    meaning: str


def is_key(name: str) -> bool:
    """Check whether a name is a configuration key, an alias of one, or a key without its section."""
    name = whole_key(name)
    return name in ALIASES or name in all_keys()


def is_meant_as_key(text: str) -> bool:
    """Check whether an argument of `headrace config` is a key, or was meant as one: a section's, and no file's name.

    >>> is_meant_as_key("training.batch_size"), is_meant_as_key("training.batchsize"), is_meant_as_key("corpus.txt")
    (True, True, False)
    """
    is_of_section = text.partition(".")[0] in SECTIONS and "=" not in text and "." in text
    return is_key(text) or (is_of_section and not Path(text).exists())


def key_of_option(option: str) -> str:
    """Say what to write instead of an option that does not exist; empty if nothing is like it.

    >>> key_of_option("--learning_rate"), key_of_option("--skip-nothing")
    (' Write training.learning_rate=VALUE instead.', '')
    """
    name = normal(option)
    if name in ANSWERS:
        return f" {ANSWERS[name]}."
    key = whole_key(ACCEPTED.get(name, name))
    if key in all_keys():
        return f" Write {key}=VALUE instead."
    several = [known for known in all_keys() if known.rpartition(".")[2] == name]
    return f" Write {'=VALUE or '.join(several)}=VALUE instead." if several else ""


def describe_key(name: str) -> Key:
    """Return the documentation of a key.

    >>> describe_key("data.packing").type
    'stream or document'
    """
    if not is_key(name):
        raise UsageError(f"{name}: unknown key.{nearest_hint(name)}")
    name = whole_key(name)
    section, _, key = ALIASES.get(name, name).partition(".")
    field = SECTIONS[section].model_fields[key]
    default = field.get_default(call_default_factory=True)
    meaning = " ".join((field.description or "").split())
    return Key(f"{section}.{key}", _type(field), "none" if default is None else json.dumps(default), meaning)


def _type(field: FieldInfo) -> str:
    if field.metadata and field.metadata[0] in get_args(Size):
        return "a size, such as 256MiB"
    return _shown(field.annotation, field.metadata)


def _shown(annotation: Any, metadata: list[Any]) -> str:
    """Return a type in words, with the bounds of numbers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = arguments[1].metadata if isinstance(arguments[1], FieldInfo) else list(arguments[1:])
        return _shown(arguments[0], inner)
    if origin in (Union, UnionType):
        return " or ".join(_shown(part, metadata) for part in arguments if part is not type(None))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    limits = [(word, getattr(item, name, None)) for item in metadata for name, word in _BOUNDS.items()]
    bounds = [f"{word} {limit:,.15g}" for word, limit in limits if limit is not None]
    bounds += [f"matching {item.pattern}" for item in metadata if getattr(item, "pattern", None)]
    return ", ".join([_NAMES.get(origin or annotation, "a value"), *bounds])
