"""tf.data as its performance guide has it: records → shuffle → repeat → batch → vectorised map → prefetch, AUTOTUNE."""

import os
from collections.abc import Iterator

from headrace.bench.peer import Corpus
from headrace.bench.peers.loaders.windows import all_windows

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf


def prepare(corpus: Corpus, sequence_length: int) -> None:
    """Write rows of sequence_length + 1 tokens as fixed-length records."""
    all_windows(corpus.tokens, sequence_length).tofile(f"{corpus.folder}/records.bin")


def batches(corpus: Corpus, batch_size: int, sequence_length: int, num_workers: int) -> Iterator[object]:
    record_bytes = 2 * (sequence_length + 1)
    num_records = os.path.getsize(f"{corpus.folder}/records.bin") // record_bytes
    dataset = (
        tf.data.FixedLengthRecordDataset(f"{corpus.folder}/records.bin", record_bytes)
        .shuffle(num_records, seed=0)
        .repeat()
        .batch(batch_size, drop_remainder=True)
        .map(lambda rows: tf.io.decode_raw(rows, tf.uint16), num_parallel_calls=num_workers or tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )
    return iter(dataset.as_numpy_iterator())
