"""Config: the resolved configuration, where each value came from, and what stands for the values that are left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.data.cache.open import default_cache_dir
from headrace.data.corpus.sources import standard_library
from headrace.errors import CorpusError
from headrace.run.config import Config, Layers
from headrace.run.corpus import expected_vocabulary, given_cache, tokenizer_spec, training_sources
from headrace.run.start.budget import CHOOSABLE
from headrace.run.start.keys import get_value, is_given
from headrace.run.start.regime import REGIME_KEYS
from headrace.run.start.settle import settle_model
from headrace.training.schedule import DEFAULT_MINUTES

MEASURED = "measured when the run begins"
BY_REGIME = "by how often the text comes round"
CHOSEN_LATER = "chosen for the time limit when the run begins"


@dataclass(frozen=True)
class Setting:
    """One key of a resolved configuration."""

    value: Any
    origin: str
    """Which layer it came from: a preset, a file, the command line, or "default"."""
    used: Any
    """What a run really uses: the value itself, or what stands for a value that is left open."""


def resolve(layers: Layers) -> dict[str, Setting]:
    """Return every key with its value, its origin, and what is really used for it.

    >>> layers = Layers()
    >>> layers.add({"training.seed": 3, "data.sources": ["a.txt"]}, "the call")
    >>> resolve(layers)["training.seed"]
    Setting(value=3, origin='the call', used=3)
    >>> resolve(layers)["model.num_heads"]
    Setting(value=0, origin='default', used=2)
    """
    config = layers.build()
    used = settle(config)
    return {
        key: Setting(value, layers.origins.get(key, "default"), used.get(key, value))
        for section, values in config.model_dump().items()
        for key, value in ((f"{section}.{name}", value) for name, value in values.items())
    }


def settle(config: Config) -> dict[str, Any]:
    """Return what a run uses for each value that is left open, as far as it is known before the run."""
    given, config = config, config.model_copy(deep=True)
    try:
        beginning, is_chosen = settle_model(config), True
    except CorpusError:  # text that is not there leaves the choice open, and is no error before a run
        beginning, is_chosen = None, False
    model, training, data = config.model, config.training, config.data
    cache = given_cache(config)
    spec = tokenizer_spec(config)
    vocabulary = cache.tokenizer.vocab_size if cache else expected_vocabulary(spec) if spec.startswith("bpe:") else None
    sources = training_sources(config)
    tokenizer, special = beginning.tokenizer if beginning else spec, data.special_tokens_in_text
    place = cache.path if cache else default_cache_dir(sources, tokenizer, special, data.selection())
    used: dict[str, Any] = {
        **({f"model.{key}": value for key, value in model.shape().items()} if beginning else {}),
        **{key: get_value(config, key) if is_chosen else CHOSEN_LATER for key in CHOOSABLE if not is_given(given, key)},
        "model.num_heads": model.heads,
        "model.d_ff": model.feed_forward,
        "model.vocab_size": model.vocab_size or vocabulary or "as many as the tokenizer has",
        "model.context": model.context or training.max_length,
        "training.micro_batch_size": training.micro_batch_size or MEASURED,
        **{
            key: BY_REGIME
            for key in (*REGIME_KEYS, "training.num_epochs")
            if not is_given(given, key) and not model.init
        },
        "training.threads": training.threads or "one per core",
        "training.evaluate_every": training.evaluate_every or "chosen by what evaluating costs",
        "training.save_every": training.save_every or "one a minute",
        "data.tokenizer": spec,
        "data.special_tokens_in_text": data.special_tokens_in_text,
        "data.sources": data.sources or [standard_library().path],
        "data.cache_dir": data.cache_dir or str(place),
        "data.prefetch_batches": data.depth,
        "run.out": config.run.out or "runs/ and the time",
    }
    for name in ("precision", "matmul", "attention"):
        if getattr(training, name) == "auto":
            used[f"training.{name}"] = MEASURED
    if not (training.num_epochs or training.max_steps or training.max_minutes):
        used["training.max_minutes"] = DEFAULT_MINUTES
    return used
