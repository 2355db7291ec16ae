"""The text that a configuration names: prepared once for all processes, and opened for training and validation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from headrace.activity import Activity, ignore
from headrace.data.cache.cache import Cache
from headrace.data.cache.manifest import MANIFEST, PARTIAL
from headrace.data.cache.open import VALIDATION, default_cache_dir, sample_documents
from headrace.data.config import DataConfig
from headrace.data.corpus.datasets.folders import validation_split
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import Source, as_sources, standard_library
from headrace.data.loader import Loader
from headrace.data.mixing import source_weights
from headrace.data.order.plans import Weights
from headrace.data.prepare import open_cache, prepare, prepare_share
from headrace.data.tokens.tokenizers import DEFAULT_TOKENIZER, Tokenizer, load_tokenizer
from headrace.distributed.group import Group
from headrace.errors import UsageError
from headrace.models.architecture import find_architecture
from headrace.run.config import Config
from headrace.training.evaluate import Evaluator
from headrace.training.execution import Execution
from headrace.training.pauses import MOST_TOKENS

SELECTING = ("deduplicate", "min_document_bytes", "max_document_bytes", "languages")
"""Keys that say which documents of a text become tokens."""
LEAST_VALIDATION_TOKENS = 32  # the loss on fewer tokens is meaningless


def given_cache(config: Config) -> Cache | None:
    """Return the finished token cache that the configuration names as its text; None if it names text.

    Its tokenizer and its way of reading special tokens become those of the configuration.
    """
    sources, data = config.data.sources, config.data
    caches = [source for source in sources if isinstance(source, str) and Cache.is_cache(Path(source).expanduser())]
    if not caches:
        return None
    if len(sources) > 1:
        raise UsageError(f"{caches[0]}: a token cache, which is trained on alone. Name only it, or only text.")
    cache = Cache.open(Path(caches[0]).expanduser())
    tokenizer = cache.tokenizer
    if data.tokenizer not in ("", tokenizer.spec):
        raise UsageError(
            f"{caches[0]}: this cache was built with the tokenizer {tokenizer.spec!r}, not {data.tokenizer!r}. Leave"
            " data.tokenizer out, or name the text instead of its cache."
        )
    selecting = [name for name in SELECTING if getattr(data, name) != DataConfig.model_fields[name].default]
    if selecting:
        raise UsageError(
            f"data.{selecting[0]}: the documents of {caches[0]} were selected when this cache was built. Leave"
            f" data.{selecting[0]} out, or name the text instead of its cache."
        )
    data.tokenizer, data.special_tokens_in_text = tokenizer.spec, tokenizer.special_tokens_in_text
    return cache


def refuse_to_train_into_text(config: Config, out: Path) -> None:
    """Raise an error if a new run would be written into a folder that is itself its text: it could not be read again,
    because folders with a run are not text."""
    named = [*config.data.sources, *config.data.validation_sources]
    sources = as_sources(named) if named else []
    paths = [os.path.expanduser(path) for source in sources for path in source.paths]
    for path in paths:
        if os.path.isdir(path) and os.path.realpath(path) == os.path.realpath(out):
            raise UsageError(f"--out {out}: this folder holds the text. Choose another, such as --out runs/{out.name}")


def training_sources(config: Config) -> list[Source]:
    """Return the sources to train on: those of a cache as it was built, or text with the options of `data`."""
    cache = given_cache(config)
    if cache is not None:
        return cache.sources
    adopt_validation_split(config)
    return config.data.apply_options(as_sources(list(config.data.sources) or standard_library()))


def adopt_validation_split(config: Config) -> None:
    """Validate on the validation split of a saved Hugging Face dataset, unless the user chose something else.

    The configuration then names that split as its `validation_sources`.
    """
    data = config.data
    if data.validation_sources or "validation_fraction" in data.model_fields_set or not data.sources:
        return
    splits = _own_splits(config)
    if all(splits):
        data.validation_sources = list(splits)


def _own_splits(config: Config) -> list[str]:
    """Return the validation split of each source; "" where a source is no saved dataset with one."""
    sources = config.data.sources
    return [validation_split(os.path.expanduser(source)) if isinstance(source, str) else "" for source in sources]


def mixture_weights(config: Config, sources: list[Source]) -> Weights | None:
    """Return the weights of the training sources, with schedules that count steps; None if all text is one corpus."""
    training = config.training
    return source_weights(sources, config.data.weights or None, training.max_steps or None, training.tokens_per_update)


def tokenizer_spec(config: Config) -> str:
    """Return the tokenizer: the given one, else BPE of the vocabulary size, else the default. Its key is set to it.

    Where `model.init` is given, the model's own tokenizer is used instead (`run/start/settle.py`).
    """
    data, size = config.data, config.model.vocab_size
    data.tokenizer = data.tokenizer or (f"bpe:{size}" if size else DEFAULT_TOKENIZER)
    return data.tokenizer


def tokenizer_of_first(config: Config, num_sources: int) -> Tokenizer:
    """Return the tokenizer of the first sources alone: of their cache, or made again as it was made then.

    A run keeps it when sources are added: one that is learned from all of them would be another.
    """
    sources, spec, data = training_sources(config)[:num_sources], tokenizer_spec(config), config.data
    special = data.special_tokens_in_text
    path = Path(data.cache_dir) if data.cache_dir else default_cache_dir(sources, spec, special, data.selection())
    if Cache.is_cache(path):
        tokenizer = Cache.load(path, MANIFEST if (path / MANIFEST).exists() else PARTIAL).tokenizer
        if (tokenizer.spec, tokenizer.special_tokens_in_text) == (spec, special):
            return tokenizer
    return load_tokenizer(spec, lambda: sample_documents(sources, divide_corpus(sources)), special)


def prepare_training(config: Config, activity: Activity = ignore, tokenizer: Tokenizer | None = None) -> Cache:
    """Return the finished cache of the training text; it is tokenised now if that is not done yet.

    `tokenizer`: the one to keep to, of a model or of a resumed run; None: as the configuration says.
    """
    return given_cache(config) or prepare(
        training_sources(config),
        tokenizer or tokenizer_spec(config),
        config.data.cache_dir or None,
        special_tokens_in_text=config.data.special_tokens_in_text,
        deduplicate=config.data.deduplicate,
        near_threshold=config.data.near_threshold,
        activity=activity,
    )


def expected_vocabulary(spec: str) -> int:
    """Estimate the size of a vocabulary before its tokenizer is learned or loaded.

    >>> expected_vocabulary("bpe:16000"), expected_vocabulary("byte")
    (16000, 257)
    """
    found = re.fullmatch(r"bpe:(\d+)", spec)
    if found:
        return int(found.group(1))
    return 257 if spec in ("byte", "char") else 32_000


def prepare_corpus(config: Config, group: Group, activity: Activity = ignore, kept: Tokenizer | None = None) -> None:
    """Tokenise the whole corpus, before several processes train on it; `kept` is the tokenizer to keep to, if any.

    All machines tokenise their shares at the same time; then rank 0 completes the cache, and then every other machine
    does. The last step finds everything done where machines share the cache folder; a machine with a folder of its own
    tokenises the rest of the corpus there.
    """
    if given_cache(config) is not None:
        return
    sources, tokenizer = training_sources(config), kept or tokenizer_spec(config)
    folder = config.data.cache_dir or None
    special, selection = config.data.special_tokens_in_text, config.data.selection()
    if group.num_machines > 1:
        if group.is_main:
            open_cache(sources, tokenizer, folder, special, selection=selection)
        group.wait_for_all("waiting for rank 0 to open the cache")
        if group.is_local_main:
            prepare_share(sources, tokenizer, folder, group.machine, group.num_machines, special, selection)
        group.wait_for_all("waiting for each machine to prepare its share of the corpus")
    if group.is_main:
        prepare_training(config, activity, kept)
    group.wait_for_all("waiting for rank 0 to prepare the corpus")
    if group.is_local_main and not group.is_main:
        prepare_training(config, tokenizer=kept)
    group.wait_for_all("waiting for each machine to prepare the corpus")


def open_training(
    config: Config,
    rank: int = 0,
    world_size: int = 1,
    activity: Activity = ignore,
    tokenizer: Tokenizer | None = None,
) -> Loader:
    """Open a loader of the training text, which gives this rank its rows of every batch.

    `tokenizer`: the one to keep to, of a model or of a resumed run; None: as the configuration says.
    """
    return Loader(
        given_cache(config) or training_sources(config),
        rank=rank,
        world_size=world_size,
        tokenizer=tokenizer or tokenizer_spec(config),
        activity=activity,
        **training_options(config),
    )


def training_options(config: Config) -> dict[str, Any]:
    """Return the arguments of a loader that say which batches a run is trained on."""
    split = "train" if _is_split(config) else "all"
    return {**training_mixture(config), "split": split, **_common(config)}


def training_mixture(config: Config) -> dict[str, Any]:
    """Return the arguments of a loader of the training text that say how its sources are mixed."""
    return {
        "weights": mixture_weights(config, training_sources(config)),
        "earlier_weights": [(mixture.until, mixture.weights) for mixture in config.data.earlier_mixtures],
    }


def open_validation(config: Config, training_cache: Cache) -> Loader | None:
    """Open a loader of the validation text, to draw a sample from; None if the configuration asks for no validation."""
    data = config.data
    if not data.validation_fraction and not data.validation_sources:
        return None
    common = _common(config) | {"prefetch_batches": 0, "queue_capacity": None, "shuffle": True}
    if data.cache_dir:  # a cache folder holds one corpus, and this one holds the training text
        common["cache_dir"] = Path(data.cache_dir) / VALIDATION
    if _is_split(config):
        mixed = training_mixture(config)
        return Loader(training_cache, split="validation", tokenizer=training_cache.tokenizer, **mixed, **common)
    sources = data.apply_options(as_sources(list(data.validation_sources)))
    return Loader(
        sources,
        tokenizer=training_cache.tokenizer,
        **common,
    )


def open_evaluator(config: Config, training_cache: Cache, execution: Execution) -> tuple[Evaluator | None, str]:
    """Return the evaluator of a run, or None; and a notice for the user if there is too little validation text."""
    loader = open_validation(config, training_cache)
    if loader is None:
        return None, ""
    evaluator = Evaluator(loader, execution, has_memory=not config.training.memory_budget)
    wanted = config.training.evaluation_tokens
    num_tokens = evaluator.count(MOST_TOKENS if wanted == "auto" else wanted)
    if num_tokens >= LEAST_VALIDATION_TOKENS:
        splits = config.data.validation_sources
        own = ", ".join(map(str, splits)) if splits and splits == _own_splits(config) else ""
        return evaluator, f"validating on {own}, the dataset's own split" if own else ""
    evaluator.close()
    return None, (
        f"no validation: {num_tokens} tokens are too few, so the best checkpoint is the last one. Give"
        " more text, a larger data.validation_fraction, or data.validation_sources."
    )


def _is_split(config: Config) -> bool:
    """Check whether training and validation are parts of one corpus."""
    return config.data.validation_fraction > 0 and not config.data.validation_sources


def _common(config: Config) -> dict[str, Any]:
    """Return the arguments that the loaders of training and validation share."""
    data, training = config.data, config.training
    return {
        "batch_size": training.batch_size,
        "sequence_length": training.sequence_length,
        "seed": training.seed,
        "validation_fraction": data.validation_fraction if _is_split(config) else 0.0,
        "cache_dir": data.cache_dir or None,
        **data.loader_options(),
    }


def complete_model(config: Config, tokenizer: Tokenizer) -> None:
    """Set the vocabulary size and the context where they are open; refuse ones that are too small for the data."""
    model = config.model
    if model.vocab_size and model.vocab_size < tokenizer.vocab_size:
        raise UsageError(
            f"model.vocab_size {model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} tokens. Use"
            f" model.vocab_size={tokenizer.vocab_size} or more, or 0 for exactly the tokenizer's number."
        )
    model.vocab_size = model.vocab_size or tokenizer.vocab_size
    model.context = model.context or config.training.sequence_length
    if config.training.sequence_length > model.context:
        is_fixed = bool(model.init) and find_architecture(model.arch).is_context_fixed
        larger = "" if is_fixed else f"model.context={config.training.sequence_length} or "
        raise UsageError(
            f"training.max_length {config.training.sequence_length} is above the model's context {model.context}. Use"
            f" {larger}training.max_length={model.context}."
        )
