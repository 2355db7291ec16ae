"""Trials: a configuration computes steps in a process of its own, whenever it is asked to, and says what they cost.

Each trial is a process, so that threads, allocator, compiled code and peak memory are its own, and one that runs out of
memory takes nobody with it. Two trials that are asked in turns are compared fairly (perf/paired.py).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.distributed.group import ALONE
from headrace.distributed.replicas import Replica
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.children import Child, answer_questions
from headrace.machine.device import best_device
from headrace.machine.facts import peak_memory_bytes
from headrace.models.network import build
from headrace.run.config import Config
from headrace.run.corpus import open_training
from headrace.run.memory import memory_limit
from headrace.run.start.settle import settle_model
from headrace.training.autotune import choose_execution
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.optimizers.related import usual_parts
from headrace.training.showing.presentation import Presentation
from headrace.training.showing.vocabulary import open_flat_sampler, open_sampler
from headrace.training.step import TrainStep

LEAST_TOKENS = 1024  # computed at a time; enough for products to run at full rate
LEAST_SECONDS = 0.3  # short steps are repeated until a measurement takes this long
PEAK_FACTOR = 0.01  # factor of the learning rate: small, so that the weights hardly change


@dataclass(frozen=True)
class Cost:
    """The cost of an update, per token."""

    seconds_per_token: float
    peak_bytes: int


class Trial:
    """A configuration in a process of its own.

    >>> with Trial(config) as trial:           # doctest: +SKIP
    ...     trial.measure().seconds_per_token
    """

    def __init__(self, config: Config, is_chosen: bool = False) -> None:
        """`is_chosen`: let the trial choose what the configuration leaves open, as training does."""
        self._child = Child([sys.executable, "-m", "headrace.instruments.trial"])
        try:
            chosen = self._child.ask({"config": config.model_dump(), "is_chosen": is_chosen})
        except BaseException:
            self.close()
            raise
        self.execution = Execution(**chosen)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Cost:
        """Compute a few steps and return what one costs."""
        return Cost(**self._child.ask({}))

    def close(self) -> None:
        self._child.end()


class _Bench:
    """The configuration at work, in the trial's process."""

    def __init__(self, config: Config, is_chosen: bool) -> None:
        training = config.training
        keep_freed_memory(even_large=not training.memory_budget)
        if training.threads:
            torch.set_num_threads(training.threads)
        self._config = config
        beginning = settle_model(config)
        self._loader = open_training(config, tokenizer=beginning.tokenizer if beginning else None)
        network = build(config.model, training.seed).to(best_device())
        optimizer = Optimizer(network, training, usual_parts(training, config.model.vocab_size))
        if is_chosen:
            limit = memory_limit(config)
            self.execution = choose_execution(network, self._next(), training, limit, optimizer.bytes_to_come())
        else:
            self.execution = Execution.from_config(training)
        self._step = TrainStep(Replica(network), optimizer, self.execution, training.gradient_clip)
        self._num_steps = 0
        num_known, wanted = self._loader.cache.tokenizer.vocab_size, config.model.vocab_size
        if num_known <= wanted:
            self._sampler = open_sampler(training, wanted, self._loader)
        else:  # ids are folded where a smaller vocabulary is tried, and how frequent they are then is not known
            self._sampler = open_flat_sampler(training, wanted)
        size = self.execution.micro_batch_size
        per_pass = max(1, LEAST_TOKENS // (size * training.sequence_length))
        self._num_rows = min(training.batch_size, per_pass * size)

    def measure(self) -> Cost:
        """Measure a step: passes over some rows, scaled to all of them, and data wait and update of a whole step."""
        training = self._config.training
        began, spent, num_steps = time.perf_counter(), 0.0, 0
        while num_steps == 0 or time.perf_counter() - began < LEAST_SECONDS:
            asked = time.perf_counter()
            batch = self._next()
            waited = time.perf_counter() - asked
            rows = batch.rows(slice(0, self._num_rows))
            presentation = Presentation.at(training, 0, self._num_steps, ALONE, batch, self._sampler)
            seconds = self._step(rows, PEAK_FACTOR, presentation).seconds
            self._num_steps += 1
            passes = (seconds.forward + seconds.backward) * training.batch_size / self._num_rows
            spent += waited + passes + seconds.optimizer
            num_steps += 1
        return Cost(spent / num_steps / training.tokens_per_update, peak_memory_bytes())

    def _next(self) -> Batch:
        """Return the next batch, its ids folded into the vocabulary where a smaller one is tried."""
        batch, size = next(self._loader), self._config.model.vocab_size
        if batch.inputs.max() < size and batch.targets.max() < size:
            return batch
        return replace(batch, inputs=batch.inputs % np.uint32(size), targets=batch.targets % np.uint32(size))


def main() -> None:
    bench: _Bench | None = None

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        nonlocal bench
        if bench is not None:
            return vars(bench.measure())
        bench = _Bench(Config.model_validate(question["config"]), question["is_chosen"])
        bench.measure()  # pays for fresh memory and for compiling
        return vars(bench.execution)

    answer_questions(answer)


if __name__ == "__main__":
    main()
