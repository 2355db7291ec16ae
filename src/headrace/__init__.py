"""headrace pretrains small language models on the machine you have."""

from headrace.data.batch import Batch
from headrace.data.cache.cache import Cache
from headrace.data.corpus.sources import Source, standard_library
from headrace.data.loader import Loader
from headrace.data.prepare import prepare
from headrace.errors import HeadraceError


def __getattr__(name: str) -> object:
    """Load `train` and `Run` when they are first used: they bring torch, and the data engine starts without it."""
    if name in ("Run", "train"):
        from headrace.jobs import train as job

        return getattr(job, name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")


__all__ = ["Batch", "Cache", "HeadraceError", "Loader", "Run", "Source", "prepare", "standard_library", "train"]
__version__ = "0.1.0"
