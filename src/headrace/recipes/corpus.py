"""The text of a run: prepared once for all processes, and read by loaders for training and for validation."""

from __future__ import annotations

from headrace.data.loader import Loader
from headrace.data.sizes import parse_bytes
from headrace.data.sources import as_sources, standard_library
from headrace.machine.group import Group
from headrace.recipes.config import Config
from headrace.recipes.prepare import plan, prepare, prepare_share


def tokenizer_spec(config: Config) -> str:
    """The tokenizer of the run, written into the configuration if it was left open."""
    data = config.data
    data.tokenizer = data.tokenizer or f"bpe:{config.model.vocab_size or 4096}"
    return data.tokenizer


def prepare_corpus(config: Config, group: Group) -> None:
    """One process for all of its machine: a share each, then rank 0 seals the whole, then whoever has another folder.

    Machines may share the folder, and find done what others did, or have their own, and do the rest themselves.
    """
    sources = as_sources(list(config.data.sources) or standard_library())
    tokenizer, folder = tokenizer_spec(config), config.data.cache_dir or None
    if group.num_machines > 1:
        if group.is_main:
            plan(sources, tokenizer, folder)
        group.wait_for_all("waiting for rank 0 to plan the corpus")
        if group.is_local_main:
            prepare_share(sources, tokenizer, folder, group.machine, group.num_machines)
        group.wait_for_all("waiting for each machine to prepare its share of the corpus")
    if group.is_main:
        prepare(sources, tokenizer, folder)
    group.wait_for_all("waiting for rank 0 to prepare the corpus")
    if group.is_local_main and not group.is_main:
        prepare(sources, tokenizer, folder)
    group.wait_for_all("waiting for each machine to prepare the corpus")


def training_loader(config: Config, group: Group) -> Loader:
    """This process's rows of every batch."""
    data, training = config.data, config.training
    is_split = _is_split(config)
    return Loader(
        as_sources(list(data.sources) or standard_library()),
        batch_size=training.batch_size,
        sequence_length=training.max_length,
        seed=training.seed,
        rank=group.rank,
        world_size=group.world_size,
        num_workers=data.num_workers,
        prefetch_batches=data.prefetch_batches,
        queue_capacity=data.queue_capacity,
        max_sequences_in_memory=data.max_sequences_in_memory,
        memory_budget=_memory_budget(config),
        shuffle=data.shuffle,
        packing=data.packing,
        split="train" if is_split else "all",
        validation_fraction=data.validation_fraction if is_split else 0.0,
        tokenizer=tokenizer_spec(config),
        cache_dir=data.cache_dir or None,
    )


def validation_loader(config: Config, trained: Loader) -> Loader | None:
    """The same rows every time, in order; None if there are none."""
    data, training = config.data, config.training
    if not data.validation_fraction and not data.validation_sources:
        return None
    is_split = _is_split(config)
    return Loader(
        trained.cache if is_split else as_sources(list(data.validation_sources)),
        batch_size=training.batch_size,
        sequence_length=training.max_length,
        seed=training.seed,
        num_workers=data.num_workers,
        prefetch_batches=0,
        max_sequences_in_memory=data.max_sequences_in_memory,
        memory_budget=_memory_budget(config),
        shuffle=False,
        packing=data.packing,
        split="validation" if is_split else "all",
        validation_fraction=data.validation_fraction if is_split else 0.0,
        tokenizer=trained.cache.tokenizer,
        cache_dir=data.cache_dir or None,
    )


def _is_split(config: Config) -> bool:
    """Whether validation rows are taken from the training sources."""
    return config.data.validation_fraction > 0 and not config.data.validation_sources


def _memory_budget(config: Config) -> int | None:
    text = config.data.memory_budget
    return parse_bytes("data.memory_budget", text) if text else None
