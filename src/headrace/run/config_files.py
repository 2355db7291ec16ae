"""Configuration as text: files and overrides become values, whatever somebody put into them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import UsageError
from headrace.run.config import ALIASES, SECTIONS, all_keys, is_text, nearest_hint, whole_key

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
MAX_DEPTH = 16
# What parsers raise for text that is not what they read; YAML's also for tags that do not fit their value (!!int abc).
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_TEXT, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"


def read_config_file(path: Path) -> dict[str, Any]:
    """Read YAML, TOML, or JSON with comments."""
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": _parse_json}
    text = _read_text(path)
    try:
        value = parsers.get(path.suffix, parse_yaml)(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply for a configuration.") from None
    except _UNREADABLE as problem:
        kind = path.suffix[1:].upper() or "YAML"
        raise UsageError(f"{path}: not valid {kind}: {' '.join(str(problem).split())[:300]}") from None
    _check_extent(path, value)
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a configuration has sections ({', '.join(SECTIONS)}), not a {type(value).__name__}.")
    return value


def is_override(argument: str) -> bool:
    """Return whether an argument is `key=value` rather than a path with an equals sign in it: year=2024/*.txt."""
    if "=" not in argument or os.path.exists(argument):
        return False
    is_known = whole_key(argument.partition("=")[0]) in all_keys()
    return is_known or bool(re.match(r"\w+\.\w+=", argument)) or not re.search(r"[/*?\[]", argument)


def parse_override(text: str) -> tuple[str, Any]:
    """Read `key=value`: as it stands where the key takes text (quotes around all of it go), anything else as YAML.

    A key that only one section has may stand without its section.

    >>> parse_override("training.batch_size=32"), parse_override("prompt=1984")
    (('training.batch_size', 32), ('training.prompt', '1984'))
    """
    key, _, value = text.partition("=")
    key = whole_key(key)
    if "." not in key:
        raise UsageError(f"{text}: write overrides as section.key=value.{nearest_hint(key)}")
    takes_text = is_text(ALIASES.get(key, key))
    if not value or (takes_text and value[0] + value[-1] not in ("''", '""')):
        return key, value
    try:
        parsed = parse_yaml(value, key)
    except _UNREADABLE:
        return key, value  # validation says what is wrong with it
    if takes_text and not isinstance(parsed, str):
        return key, value
    _check_extent(key, parsed)
    return key, parsed


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as people expect it: 1e-3 is a number, a date is text, and nothing is multiplied by merging."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not supported", key.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def parse_yaml(text: str, key: str = "") -> Any:
    """Read YAML. `key` is the dotted key that the value is for; empty: the text is a whole configuration."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_text(node, key, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _keep_text(node: yaml.Node, key: str, seen: set[tuple[int, str]]) -> None:
    """Let values of keys that take text be text: `prompt: 1984` is no number."""
    if (id(node), key) in seen:  # an alias
        return
    seen.add((id(node), key))
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            _keep_text(value, f"{key}.{name.value}" if key else str(name.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _keep_text(item, f"{key}[]", seen)
    elif is_text(key) and node.tag != _NULL:
        node.tag = _TEXT


def _parse_json(text: str) -> Any:
    return json.loads(strip_comments(text))


def strip_comments(text: str) -> str:
    """Remove // and /* */ comments outside of strings, and commas before a closing bracket.

    >>> strip_comments('{"a": "http://x", // why\\n "b": 1,}')
    '{"a": "http://x", \\n "b": 1}'
    """
    # What is opened and never closed goes on to the end: looking for its end from every later place takes forever.
    string = r'("(?:\\.|[^"\\])*(?:"|\\?\Z))'
    pattern = re.compile(string + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
    text = pattern.sub(lambda found: found.group(1) or "", text)
    return re.sub(string + r"|,(?=\s*[}\]])", lambda found: found.group(1) or "", text, flags=re.DOTALL)


def _read_text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise UsageError(f"{path}: cannot be read ({problem.strerror}).") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB: not a configuration.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise UsageError(f"{path}: not UTF-8 at byte {problem.start:,}. Save it as UTF-8.") from None


def _check_extent(where: Path | str, value: Any) -> None:
    """Refuse what has more values than any configuration, such as aliases of aliases, before anybody walks over it."""
    waiting, num_values = [(value, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        num_values += 1
        if num_values > MAX_VALUES:
            raise UsageError(f"{where}: has more than {MAX_VALUES:,} values: not a configuration.")
        if depth > MAX_DEPTH:
            raise UsageError(f"{where}: nested too deeply for a configuration.")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(item, depth + 1) for item in inner]
