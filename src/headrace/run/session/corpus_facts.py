"""Facts about the corpus of a run, as far as they are known at any moment: nothing here waits for tokenising."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.data.cache.cache import Cache
from headrace.data.selection.reasons import dropped_counts, without_dropped
from headrace.run.config import Config

# Text that is seen more often teaches hardly anything new (Muennighoff et al. 2023); with dropout it does no harm for
# longer (docs/recipe.md).
MANY_EPOCHS, MANY_EPOCHS_WITH_DROPOUT = 16, 60
SMALL_CORPUS_TOKENS = 100_000


def corpus_facts(cache: Cache, config: Config, max_steps: int | None) -> dict[str, Any]:
    """Describe a corpus while it is being tokenised: counts so far, and estimates from them for the whole.

    `tokens` and `epoch_tokens`, those of one training pass, are None before anything is tokenised; `epochs` also where
    the run has no limit in steps.
    """
    noticed: Counter[str] = Counter()
    done_bytes = documents = tokens = 0
    for index, segment in enumerate(cache.segments):
        if cache.has(index):
            entry = cache.entry(index)
            done_bytes += segment.nbytes
            documents += entry.num_documents
            tokens += entry.num_tokens
            noticed += entry.noticed
    total_bytes = cache.num_bytes
    expected = round(tokens * total_bytes / done_bytes) if done_bytes else None
    training = config.training
    epoch_tokens = expected * config.data.training_share if expected else None
    epochs = None
    if epoch_tokens and max_steps:
        epochs = round(max_steps * training.tokens_per_update / epoch_tokens, 3)
    return {
        "files": sum(segment.num_files for segment in cache.segments if segment.ordinal == 0),
        "bytes": total_bytes,
        "tokenised_bytes": done_bytes,
        "documents": documents if cache.is_complete else None,
        "tokens": expected,
        "is_complete": cache.is_complete,
        "tokenizer": cache.tokenizer.spec,
        "vocab_size": cache.tokenizer.vocab_size,
        "epoch_tokens": epoch_tokens,
        "epochs": epochs,
        "duplicates": cache.duplicates,
        "dropped": dropped_counts(noticed),
        "noticed": dict(without_dropped(noticed)),
        "skipped": dict(cache.skipped),
        "warning": _warning(expected, epochs, MANY_EPOCHS_WITH_DROPOUT if training.dropout else MANY_EPOCHS),
    }


def _warning(tokens: int | None, epochs: float | None, most_epochs: float) -> str:
    if epochs is not None and epochs > most_epochs:
        return (
            f"the limit is {epochs:,.0f} passes over {tokens:,} tokens: the model will know them by heart."
            " Use more text, or fewer steps"
        )
    if tokens is not None and tokens < SMALL_CORPUS_TOKENS:
        return f"{tokens:,} tokens are very little text: the model will repeat it rather than learn its language"
    return ""
