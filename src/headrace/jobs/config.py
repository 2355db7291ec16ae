"""Config: the resolved configuration, and where each value came from."""

from __future__ import annotations

from typing import Any

from headrace.run.config import Layers


def resolve(layers: Layers) -> dict[str, tuple[Any, str]]:
    """Return the value of every key and its origin.

    >>> layers = Layers()
    >>> layers.add({"training.seed": 3}, "the call")
    >>> resolve(layers)["training.seed"], resolve(layers)["training.max_steps"]
    ((3, 'the call'), (0, 'default'))
    """
    return {
        f"{section}.{key}": (value, layers.origins.get(f"{section}.{key}", "default"))
        for section, values in layers.build().model_dump().items()
        for key, value in values.items()
    }
