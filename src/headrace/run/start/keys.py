"""Values of a configuration by dotted key, such as training.seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.run.config import SECTIONS, Config


def given_keys(config: Config) -> set[str]:
    """Return the keys whose values were given, also where they are the defaults, or set since.

    >>> config = Config.model_validate({"training": {"seed": 0}})
    >>> set_value(config, "model.d_model", 96)
    >>> sorted(given_keys(config))
    ['model.d_model', 'training.seed']
    """
    return {f"{section}.{name}" for section in SECTIONS for name in getattr(config, section).model_fields_set}


def given_sections(config: Config) -> dict[str, dict[str, Any]]:
    """Return what was given or set, by section and name: read again, it leaves open what this configuration does.

    >>> given_sections(Config.model_validate({"training": {"dropout": 0}}))
    {'training': {'dropout': 0.0}}
    """
    parts = {section: getattr(config, section) for section in SECTIONS}
    given = {section: part.model_dump(include=part.model_fields_set) for section, part in parts.items()}
    return {section: values for section, values in given.items() if values}


def is_given(config: Config, key: str) -> bool:
    """Return whether a value was given, or set since; if not, it is the default."""
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def get_value(config: Config, key: str) -> Any:
    """Return the value of a key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def set_value(config: Config, key: str, value: Any) -> None:
    """Set the value of a key."""
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, value)


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a copy of a configuration with these values."""
    changed = config.model_copy(deep=True)
    for key, value in values.items():
        set_value(changed, key, value)
    return changed
