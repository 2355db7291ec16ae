"""The networks, vocabularies and batches that are worth considering for a training time and a corpus.

The numbers here are what runs of one to thirty minutes showed (docs/recipe.md, docs/LOG.md).
"""

from __future__ import annotations

import math

VOCABULARIES = (512, 1024, 2048, 4096, 8192, 16_000, 32_000)
LEAST_SEEN = 400  # times that a run should see a token of its vocabulary, on average
LEAST_USES = 60  # a token of the vocabulary should occur this often in the corpus, on average
WIDTHS = (96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
LAYERS_PER_64 = (0.75, 1.0, 1.5)  # of the width
LEAST_LAYERS = 4  # 96 x 3 was no better than 96 x 4, even in one minute
MOST_BLOCKS_PER_TOKEN = 12.0  # weights in the blocks, for each token of the corpus
# Batches grow with the square root of the tokens trained on: larger batches give less noisy gradients.
BATCH_TOKENS, BATCH_TOKENS_AT = 2048, 3e6
LEARNING_RATE, LEARNING_RATE_WIDTH, LEARNING_RATE_TOKENS = 0.006, 256, 6e6  # wider networks, longer runs: less
SHORTEST_LENGTH, LONGEST_LENGTH = 256, 1024  # tokens of a sequence
LEAST_SEQUENCES = 256  # of a text: fewer and longer ones would leave the order of a small text little to shuffle
LEAST_LONG_MINUTES = 3.0  # time from which sequences are longer than the shortest
SHORTEST_WINDOWS, SHORT_WINDOWS = 128, 256  # of the shortest sequences in the first half of a run, and of longer ones
LEAST_BATCH_TOKENS, MOST_BATCH_TOKENS = 1024, 65_536


def shapes() -> list[tuple[int, int]]:
    """Return width and number of layers of networks from 0.5 to about 330 million parameters."""
    return [
        (width, layers)
        for width in WIDTHS
        for layers in sorted({max(LEAST_LAYERS, round(width / 64 * each)) for each in LAYERS_PER_64})
    ]


def batch_size_for(tokens: float, sequence_length: int) -> int:
    """Return the sequences per update for a run over this many tokens.

    >>> batch_size_for(3e6, 128), batch_size_for(1e5, 128), batch_size_for(5e7, 256)
    (16, 8, 32)
    """
    wanted = BATCH_TOKENS * math.sqrt(tokens / BATCH_TOKENS_AT)
    batch_tokens = 1 << round(math.log2(min(max(wanted, LEAST_BATCH_TOKENS), MOST_BATCH_TOKENS)))
    return max(1, batch_tokens // sequence_length)


def is_too_large(block_parameters: float, unique_tokens: float) -> bool:
    """Return whether a network could do little more with a text than learn it by heart.

    >>> is_too_large(786_432, 66_000), is_too_large(7_000_000, 66_000)
    (False, True)
    """
    return block_parameters > MOST_BLOCKS_PER_TOKEN * unique_tokens


def is_vocabulary_too_large(vocab_size: int, tokens: float) -> bool:
    """Return whether a run sees the tokens of its vocabulary too rarely to learn them.

    >>> is_vocabulary_too_large(8192, 2e6), is_vocabulary_too_large(8192, 6e6)
    (True, False)
    """
    return tokens < LEAST_SEEN * vocab_size


def learning_rate_for(width: int, tokens: float) -> float:
    """Return the learning rate for a network and a run over this many tokens, at the batches of `batch_size_for`.

    In a long run, a high rate stands still for as long as it is not lowered.

    >>> learning_rate_for(128, 3e6), learning_rate_for(512, 3e6), learning_rate_for(128, 2e7)
    (0.006, 0.003, 0.004)
    """
    by_width = min(1.0, LEARNING_RATE_WIDTH / width)
    by_tokens = min(1.0, math.cbrt(LEARNING_RATE_TOKENS / max(tokens, 1.0)))
    return round(LEARNING_RATE * by_width * by_tokens, 4)


def sampled_tokens_for(vocab_size: int) -> int:
    """Return how many tokens of a vocabulary updates compare beside those of their batch; 0: all are compared.

    >>> sampled_tokens_for(1024), sampled_tokens_for(4096), sampled_tokens_for(16_000)
    (0, 512, 1024)
    """
    if vocab_size < 2048:  # a batch has most of its tokens
        return 0
    return 512 if vocab_size <= 8192 else 1024


def related_tokens_for(tokenizer: str) -> float:
    """Return how much tokens learn from related ones; characters and bytes are used often enough to learn alone.

    >>> related_tokens_for("bpe:4096"), related_tokens_for("char")
    (0.5, 0.0)
    """
    return 0.0 if tokenizer in ("byte", "char") else 0.5


def sequence_length_for(minutes: float, unique_tokens: float, context: int = 0) -> int:
    """Return the sequence length for a training time and the tokens of a text.

    Far context is worth most where there is time to learn to use it, and text enough to shuffle. `context`: the most
    tokens that the network takes at once; 0: any number.

    >>> sequence_length_for(1, 1e7), sequence_length_for(5, 1e7), sequence_length_for(5, 150_000)
    (256, 1024, 512)
    >>> sequence_length_for(5, 1e7, context=700), sequence_length_for(5, 1e7, context=128)
    (512, 128)
    """
    length = LONGEST_LENGTH if minutes >= LEAST_LONG_MINUTES else SHORTEST_LENGTH
    most = min(unique_tokens / LEAST_SEQUENCES, context or LONGEST_LENGTH)
    while length > SHORTEST_LENGTH and length > most:
        length //= 2
    return min(length, context or length)


def spread_batch(sequence_length: int, batch_size: int, num_sequences: int) -> tuple[int, int]:
    """Return a sequence length and a batch of as many tokens, in at least this many sequences if they can be so short.

    >>> spread_batch(1024, 2, num_sequences=2), spread_batch(1024, 2, num_sequences=8)
    ((1024, 2), (256, 8))
    """
    while batch_size < num_sequences and sequence_length > SHORTEST_LENGTH:
        sequence_length, batch_size = sequence_length // 2, 2 * batch_size
    return sequence_length, batch_size


def short_windows_for(sequence_length: int) -> int:
    """Return the windows into which sequences are cut in the first half of a run; 0: they stay whole.

    >>> [short_windows_for(length) for length in (1024, 512, 256, 128, 250)]
    [256, 256, 128, 0, 0]
    """
    window = max(SHORTEST_WINDOWS, min(SHORT_WINDOWS, sequence_length // 2))
    return window if sequence_length > window and sequence_length % window == 0 else 0


def vocabularies_for(corpus_bytes: float) -> list[int]:
    """Return the vocabulary sizes whose tokens each occur often enough in a corpus, at about three bytes per token.

    >>> vocabularies_for(1_100_000), vocabularies_for(1000)
    ([512, 1024, 2048, 4096], [512])
    """
    return [size for size in VOCABULARIES if corpus_bytes / 3 >= LEAST_USES * size] or [VOCABULARIES[0]]


def expected_bytes_per_token(vocab_size: int) -> float:
    """Estimate the bytes per token of English text, for a corpus that has not been tokenised yet.

    >>> [round(expected_bytes_per_token(size), 1) for size in (512, 4096, 32_000)]
    [2.0, 3.2, 4.4]
    """
    return max(1.0, 0.4 * math.log2(vocab_size) - 1.6)


def usual_bytes_per_token(tokenizer: str, vocab_size: int) -> float:
    """Estimate the bytes per token of a tokenizer.

    >>> usual_bytes_per_token("byte", 257), round(usual_bytes_per_token("bpe:4096", 4096), 1)
    (1.0, 3.2)
    """
    return 1.0 if tokenizer in ("byte", "char") else expected_bytes_per_token(vocab_size)
