"""headrace pretrains small language models on the machine you have."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.data.batch import Batch
    from headrace.data.cache.cache import Cache
    from headrace.data.corpus.sources import Source, standard_library
    from headrace.data.loader import Loader
    from headrace.data.prepare import prepare
    from headrace.errors import HeadraceError
    from headrace.jobs.generate import generate
    from headrace.jobs.train import train
    from headrace.run.records import Run

_HOMES = {
    "Batch": "headrace.data.batch",
    "Cache": "headrace.data.cache.cache",
    "HeadraceError": "headrace.errors",
    "Loader": "headrace.data.loader",
    "Run": "headrace.run.records",
    "Source": "headrace.data.corpus.sources",
    "generate": "headrace.jobs.generate",
    "prepare": "headrace.data.prepare",
    "standard_library": "headrace.data.corpus.sources",
    "train": "headrace.jobs.train",
}
"""The module of each public name. It is imported when the name is first used: `headrace --help` needs none of them, and
the data engine does without torch."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


__all__ = [
    "Batch",
    "Cache",
    "HeadraceError",
    "Loader",
    "Run",
    "Source",
    "generate",
    "prepare",
    "standard_library",
    "train",
]
__version__ = "0.1.0"
