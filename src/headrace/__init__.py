"""headrace pretrains small language models on the machine you have."""

from headrace.data.batch import Batch
from headrace.data.cache import Cache
from headrace.data.loader import Loader
from headrace.data.sources import Source, standard_library
from headrace.errors import HeadraceError
from headrace.recipes.prepare import prepare

__all__ = ["Batch", "Cache", "HeadraceError", "Loader", "Source", "prepare", "standard_library"]
__version__ = "0.1.0"
