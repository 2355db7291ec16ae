"""A trial: a configuration computes steps in a process of its own, whenever it is asked to, and tells what they cost.

A process each, so that threads, allocator, compiled code and peak memory are its own, and one that runs out of memory
takes nobody with it. `python -m headrace.instruments.trial` reads a configuration and then one line per measurement; it
ends with its standard input, so it does not outlive who started it by more than one measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.errors import HeadraceError, TrainingError
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.device import best_device
from headrace.machine.facts import peak_memory_bytes
from headrace.models.network import build
from headrace.run.config import Config
from headrace.run.corpus import open_training
from headrace.run.memory import memory_limit
from headrace.training.autotune import choose_execution
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep

LEAST_TOKENS = 1024  # computed at a time; enough for products to run at full rate
LEAST_SECONDS = 0.3  # of a measurement; several short steps make one
PEAK_FACTOR = 0.01  # of the learning rate: the weights should stay what they are


@dataclass(frozen=True)
class Cost:
    """Of a whole update, per token of it."""

    seconds_per_token: float
    peak_bytes: int


class Trial:
    """A configuration in a process of its own.

    >>> with Trial(config) as trial:           # doctest: +SKIP
    ...     trial.measure().seconds_per_token
    """

    def __init__(self, config: Config, is_chosen: bool = False) -> None:
        """`is_chosen`: let it choose, as training does, what the configuration leaves open."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the trial)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.instruments.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            chosen = self._ask({"config": config.model_dump(), "is_chosen": is_chosen})
        except BaseException:
            self.close()
            raise
        self.execution = Execution(**chosen)

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Cost:
        return Cost(**self._ask({}))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with suppress(BrokenPipeError):  # what a dead trial was not told any more
                stream.close()

    def _ask(self, question: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise TrainingError(self._last_words())
        return dict(json.loads(answer))

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        if code < 0:
            return f"the trial was killed by signal {-code}; 9 is what the system does when memory runs out"
        return lines[-1] if lines else f"the trial ended with exit code {code}"


class _Bench:
    """What runs in the trial's process."""

    def __init__(self, config: Config, is_chosen: bool) -> None:
        training = config.training
        keep_freed_memory(even_large=not training.memory_budget)
        if training.threads:
            torch.set_num_threads(training.threads)
        self._config = config
        self._loader = open_training(config)
        network = build(config.model, training.seed).to(best_device())
        optimizer = Optimizer(network, training)
        if is_chosen:
            limit = memory_limit(config)
            self.execution = choose_execution(network, self._next(), training, limit, optimizer.bytes_to_come())
        else:
            self.execution = Execution.from_config(training)
        self._step = TrainStep(Replica(network), optimizer, self.execution, training.gradient_clip)
        size = self.execution.micro_batch_size
        per_pass = max(1, LEAST_TOKENS // (size * training.max_length))
        self._num_rows = min(training.batch_size, per_pass * size)

    def measure(self) -> Cost:
        """Passes over some of the rows stand for all of them; data and update are those of a whole step."""
        training = self._config.training
        began, spent, num_steps = time.perf_counter(), 0.0, 0
        while num_steps == 0 or time.perf_counter() - began < LEAST_SECONDS:
            asked = time.perf_counter()
            batch = self._next()
            waited = time.perf_counter() - asked
            seconds = self._step(batch.rows(slice(0, self._num_rows)), PEAK_FACTOR).seconds
            passes = (seconds.forward + seconds.backward) * training.batch_size / self._num_rows
            spent += waited + passes + seconds.optimizer
            num_steps += 1
        return Cost(spent / num_steps / (training.batch_size * training.max_length), peak_memory_bytes())

    def _next(self) -> Batch:
        """The next batch, in the words of a smaller vocabulary where that is tried."""
        batch, size = next(self._loader), self._config.model.vocab_size
        if batch.inputs.max() < size and batch.targets.max() < size:
            return batch
        return replace(batch, inputs=batch.inputs % np.uint32(size), targets=batch.targets % np.uint32(size))


def main() -> None:
    bench: _Bench | None = None
    for line in sys.stdin:
        question = json.loads(line)
        if bench is None:
            bench = _Bench(Config.model_validate(question["config"]), question["is_chosen"])
            bench.measure()  # pays for fresh memory and for compiling
            answer: Execution | Cost = bench.execution
        else:
            answer = bench.measure()
        print(json.dumps(vars(answer)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except HeadraceError as problem:
        sys.exit(str(problem))
