"""Short runs: a candidate trained for seconds or a minute, to measure how fast it is and how much it learns."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from headrace.data.cache.byte_counts import bytes_per_id
from headrace.perf.loss_law import Exposure
from headrace.run.config import Config
from headrace.run.pretraining import Pretraining
from headrace.stages import PAUSES
from headrace.training.pauses import MOST_TOKENS
from headrace.training.ways.alternatives import default_micro_batch

UNEVEN_STEPS = 3  # the first steps pay for fresh memory, and are not counted
KERNEL_KEYS = ("precision", "matmul", "attention", "engine")


@dataclass(frozen=True)
class ShortRun:
    """A candidate, and what training it for a short time has shown."""

    config: Config
    exposure: Exposure
    seconds_per_token: float
    evaluation_s: float
    bits_per_byte: float
    precision: str
    matmul: str
    attention: str
    engine: str = "torch"
    """How its steps were computed, in the words of the config."""
    taken_percent: float | None = None
    """Share of the processor time it wanted that other programs had; None: unknown."""

    def as_json(self) -> dict[str, Any]:
        model, training = self.config.model, self.config.training
        return {
            "d_model": model.d_model,
            "num_layers": model.num_layers,
            "tokenizer": self.config.data.tokenizer,
            "batch_size": training.batch_size,
            "parameters": self.exposure.parameters,
            "tokens": self.exposure.tokens,
            "tokens_per_second": 1 / self.seconds_per_token,
            "bits_per_byte": self.bits_per_byte,
        }


def train_briefly(
    candidate: Config,
    seconds: float,
    train_bytes: float,
    before: ShortRun | None = None,
    evaluation_tokens: int = MOST_TOKENS,
) -> ShortRun:
    """Train a candidate for this many seconds, from the warm-up to the end of its schedule.

    Steps are computed as in the short run `before`, if there is one: measuring which way is fastest takes a while, too.
    `evaluation_tokens`: those that it is evaluated on, where the configuration leaves them open.
    """
    config = candidate.model_copy(deep=True)
    training = config.training
    training.max_minutes, training.max_steps, training.num_epochs = seconds / 60, 0, 0
    training.evaluate_every = training.save_every = 1 << 30  # only at the end
    if training.evaluation_tokens == "auto":  # candidates are compared on the same text, however fast they are
        training.evaluation_tokens = evaluation_tokens
    training.micro_batch_size = training.micro_batch_size or default_micro_batch(
        training.batch_size, training.sequence_length
    )
    if before is not None:
        for name in KERNEL_KEYS:
            setattr(training, name, getattr(before, name))
    config.model.vocab_size = 0  # the tokenizer decides
    with tempfile.TemporaryDirectory() as folder:
        config.run.out = f"{folder}/run"
        with Pretraining(config) as pretraining:
            steps = list(pretraining.steps())
            seen = next(pretraining.loader).targets.astype(np.int64)
            bytes_per_token = float(bytes_per_id(pretraining.loader.cache)[seen].mean())
    run, counts = pretraining.run, pretraining.counts
    working = [info.update_s for info in steps]
    loss = run.validation_bits_per_byte
    if loss is None:  # nothing is kept for validation
        loss = (run.smoothed_loss or 0.0) / math.log(2) / bytes_per_token
    resolved = pretraining.config.training
    vocab_size = pretraining.config.model.vocab_size
    exposure = Exposure(
        counts.num_parameters,
        counts.block_weights,
        vocab_size,
        run.tokens,
        train_bytes / bytes_per_token,
        bytes_per_token,
    )
    step_s = median(working[UNEVEN_STEPS:] or working)
    evaluation_s = sum(run.seconds[stage] for stage in PAUSES)
    seconds_per_token = step_s / training.batch_size / training.sequence_length
    return ShortRun(
        candidate,
        exposure,
        seconds_per_token,
        evaluation_s,
        loss,
        **{name: getattr(resolved, name) for name in KERNEL_KEYS},
        taken_percent=run.processor_taken_percent,
    )
