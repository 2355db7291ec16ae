"""Pretrain: a corpus becomes a trained model, and a run directory that tells how."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from headrace.data.explain.description import describe
from headrace.distributed.group import join
from headrace.distributed.replicas import make_replica
from headrace.errors import UsageError
from headrace.files import without_nan
from headrace.generation.decoding import Sampling, continue_text
from headrace.machine.allocator import keep_freed_memory, release_freed_memory
from headrace.machine.contention import ProcessorTime
from headrace.machine.device import best_device
from headrace.machine.facts import cpu_seconds, environment, memory_bytes, peak_memory_bytes
from headrace.machine.measure import measure_memory_bandwidth
from headrace.machine.peak import measure_peak_flops
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.perf.memory import memory_parts
from headrace.run.agreement import check_batch_size, check_same_config, check_same_corpus, check_sharding
from headrace.run.config import Config, Layers
from headrace.run.corpus import complete_model, open_training, open_validation, prepare_corpus
from headrace.run.corpus_facts import corpus_facts
from headrace.run.directory import History, RunFolder, WatchedFolder
from headrace.run.machine import remembered_machine
from headrace.run.memory import check_memory, memory_limit
from headrace.run.presets import PRESETS
from headrace.run.remembered_scaling import remembered_scaling
from headrace.run.resume import SavedRun, check_resumable, checkpoint_to_resume, read_saved_run, resumed_execution
from headrace.run.summary import Run
from headrace.run.tensorboard import TensorBoard
from headrace.training.activations import activation_bytes_per_token
from headrace.training.autotune import choose_execution
from headrace.training.checkpoint import Checkpoints, check_disk_space, checkpoint_bytes
from headrace.training.evaluate import Evaluation, Evaluator
from headrace.training.execution import Execution
from headrace.training.loop import BatchStream, Loop, Position, StepInfo, StopWaiting, Tally, as_metrics
from headrace.training.optimizers.assignment import state_bytes
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.restore import load_optimizer, load_weights
from headrace.training.schedule import Limits
from headrace.training.step import TrainStep

Hook = Callable[[StepInfo], None]
DEFAULT_MINUTES = 10.0
SAMPLE_TOKENS = 120
LEAST_VALIDATION_TOKENS = 32  # a loss on fewer says nothing


def train(
    config: Config | dict[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    batches: BatchStream | None = None,
    **overrides: Any,
) -> Run:
    """Train a model; from a notebook as from the command line.

    `batches` are trained on instead of the loader's own (a Grain pipeline: `interop.grain.GrainBatches`); the data
    section of the configuration still says what the tokenizer and the validation text are.

    >>> run = train({"data": {"sources": ["corpus.txt"]}, "training": {"max_minutes": 5}})   # doctest: +SKIP
    >>> run = train(**{"training.max_steps": 100})                                            # doctest: +SKIP
    """
    if not isinstance(config, Config):
        layers = Layers()
        if not config and not overrides:
            layers.add(PRESETS["demo"](), "preset demo")
        layers.add(config or {}, "the call")
        layers.add(overrides, "the call")
        config = layers.build()
    with Pretraining(config, batches=batches) as pretraining:
        for info in pretraining.steps():
            for hook in hooks:
                hook(info)
        return pretraining.run


class Pretraining:
    """All parts of a run, wired. In a group each process has them, and rank 0 alone evaluates, writes and speaks."""

    def __init__(
        self,
        config: Config,
        should_stop: Callable[[], bool] = lambda: False,
        batches: BatchStream | None = None,
    ) -> None:
        self._given_batches = batches
        self.finished = ""
        """Why there is nothing to do, if there is not."""
        self.notices: list[str] = []
        """What a person should know before the first step."""
        self._scaling, self._machine = remembered_scaling(config), remembered_machine()  # before cores are shared out
        self.config = config.model_copy(deep=True)
        self._should_stop = should_stop
        keep_freed_memory(even_large=not self.config.training.memory_budget)
        if self.config.training.threads:
            torch.set_num_threads(self.config.training.threads)
        with ExitStack() as stack:
            self.group = join(self.config.run.timeout_seconds)
            stack.callback(self.group.close)
            self._agree()
            self.folder = RunFolder(self.config.run.out) if self.group.is_main else WatchedFolder(self.config.run.out)
            stack.enter_context(self.folder.lock())
            self._open(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Pretraining:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    # Setting up

    def _agree(self) -> None:
        """What all processes of a group must have in common before they begin."""
        group, run, training = self.group, self.config.run, self.config.training
        run.processes = group.world_size
        if group.world_size == 1:
            return
        check_same_config(self.config, group)
        run.out = group.from_main(str(RunFolder(run.out).path), "naming the run directory")
        if not training.threads:
            torch.set_num_threads(group.num_cores)

    def _open(self, stack: ExitStack) -> None:
        config, training, group = self.config, self.config.training, self.group
        self._checkpoints = Checkpoints(self.folder.path / "checkpoints")
        resume_from = checkpoint_to_resume(config.run.resume, self.folder, self._checkpoints, group)
        saved = read_saved_run(resume_from) if resume_from else None
        if saved is None:
            check_batch_size(config, group.world_size)
            self._begin_anew()
        check_sharding(config)
        if group.world_size > 1:
            prepare_corpus(config, group)  # with all cores of a machine
            group.keep_to_own_cores()
        self.loader = stack.enter_context(open_training(config, group.rank, group.world_size))
        check_same_corpus(self.loader.state(), group)
        self._batches: BatchStream = self._given_batches or self.loader
        self.tokenizer = self.loader.cache.tokenizer
        complete_model(config, self.tokenizer)
        if saved is not None:
            check_resumable(config, saved)
        limits = self._limits()
        self._max_steps = limits.steps
        position = saved.position if saved is not None else Position()
        self.counts = count(config.model, training.max_length)
        self.run = Run(self.folder.path, self.counts.num_parameters)
        self.history = self.folder.history(position.step) if saved is not None else History()
        self.run.recall(position, self.history)
        if limits.is_over(position.step, position.elapsed_s):
            self._end_at_once(position, limits)
            return
        check_memory(config, group)
        self.network = build(config.model, training.seed).to(best_device())
        check_disk_space(self.folder.path, 2 * checkpoint_bytes(self.network))
        runtime_bytes = memory_bytes() - 4 * self.counts.num_parameters
        if saved is not None and resume_from is not None:
            load_weights(resume_from, self.network)
            self._batches.restore(saved.loader)
            self.notices.append(f"goes on from step {position.step:,} ({resume_from})")
        self.execution = resumed_execution(saved, config, group) if saved else self._choose_execution()
        self.execution.write_into(training)
        self.execution.set_threads()  # the peak is measured with as many
        self.peak_flops, self._is_described = 0.0, False
        self._hooks: list[TensorBoard] = []
        facts = self._open_instruments(saved, runtime_bytes) if group.is_main else {}
        group.wait_for_all("waiting for rank 0 to begin")
        self._replica = make_replica(self.network, group, config.run.sharding)
        self.optimizer = Optimizer(self.network, training)
        if resume_from is not None:
            load_optimizer(resume_from, self.optimizer)
        # All of the checkpoint was read by now: what comes after it may go.
        self.folder.begin(config.model_dump(), facts, position.step)
        if group.is_main and config.run.tensorboard:
            self._hooks.append(stack.enter_context(TensorBoard(self.folder.path)))
        step = TrainStep(self._replica, self.optimizer, self.execution, training.gradient_clip)
        self.loop = Loop(
            training, limits, self._batches, step, position, self._evaluate, self._save, self._should_stop, group
        )

    def _begin_anew(self) -> None:
        """Keep the configuration from the first moment on: a run that is killed before its first checkpoint has it."""
        if self.config.run.resume and self.folder.holds_a_configuration:
            self.notices.append("no checkpoint yet: the run begins again from its configuration")
        self.folder.write_json("config.json", self.config.model_dump())

    def _end_at_once(self, position: Position, limits: Limits) -> None:
        """Leave a finished run as it is; a summary that it did not come to is written."""
        key = limits.key_of_end(self.config.training, position.elapsed_s)
        self.finished = f"{self.folder.path}: finished at step {position.step:,}; raise {key} to go on"
        summary = self.folder.read_json("summary.json")
        if summary is not None and summary.get("steps") == position.step:
            self.run.recall_summary(summary)
        else:
            self.folder.write_json("summary.json", self.run.as_json())

    def _open_instruments(self, saved: SavedRun | None, runtime_bytes: int) -> dict[str, Any]:
        """Make what only the process that writes and speaks needs; return what environment.json tells."""
        self._evaluator = self._make_evaluator()
        if saved is not None and saved.processes == self.group.world_size:
            self.peak_flops = saved.peak_flops
        else:
            self.peak_flops = self.group.world_size * self._measure_peak()
        facts = {**environment(), "peak_flops": self.peak_flops, "execution": asdict(self.execution)}
        facts |= self._instruments(runtime_bytes)
        release_freed_memory()  # measuring a peak takes large matrices
        return facts

    def _instruments(self, runtime_bytes: int) -> dict[str, Any]:
        """What a report needs besides the metrics."""
        training, machine = self.config.training, self._machine
        per_token = activation_bytes_per_token(self.network, self.execution)
        parts = memory_parts(
            self.config.model,
            self.counts,
            state_bytes(self.counts, training.optimizer),
            micro_batch_tokens=training.micro_batch_size * training.max_length,
            activation_bytes_per_token=per_token,
            head_chunk_bytes=self.execution.head_chunk_bytes,
            loader_bytes=self.loader.counters().bytes_held,
            runtime_bytes=runtime_bytes,
            num_shards=self._num_shards,
            precision=training.precision,
        )
        return {
            "activation_bytes_per_token": per_token,
            "memory_parts": parts.as_dict(),
            "memory_bandwidth": self._memory_bandwidth(),
            "machine": asdict(machine) if machine else None,
            "scaling": self._scaling,
        }

    def _measure_peak(self) -> float:
        """Measure what one process reaches; what was reached on this machine before counts too, when it is busy now."""
        execution, machine = self.execution, self._machine
        known = machine.measurements.peak_flops(execution.precision, execution.threads) if machine else None
        return max(measure_peak_flops(execution.dtype), known or 0.0)

    def _memory_bandwidth(self) -> float | None:
        """Of where the network lives; that of an accelerator is not measured."""
        if best_device().type != "cpu":
            return None
        return self._machine.measurements.memory_bandwidth if self._machine else measure_memory_bandwidth()

    def _make_evaluator(self) -> Evaluator | None:
        loader = open_validation(self.config, self.loader.cache)
        if loader is None:
            return None
        with loader:
            evaluator = Evaluator(loader, self.config.training.evaluation_tokens, self.execution)
        if evaluator.num_tokens >= LEAST_VALIDATION_TOKENS:
            return evaluator
        self.notices.append(
            f"no validation: {evaluator.num_tokens} tokens are too few, so the best checkpoint is the last one. Give"
            " more text, a larger data.validation_fraction, or data.validation_sources."
        )
        return None

    @property
    def is_validated(self) -> bool:
        """Whether there is text to evaluate on; known to the process that evaluates."""
        return self._evaluator is not None

    def _limits(self) -> Limits:
        training = self.config.training
        steps = [training.max_steps] if training.max_steps else []
        if training.num_epochs:
            per_epoch = self.loader.steps_per_epoch
            if per_epoch == 0:
                raise UsageError(
                    "the corpus is smaller than one batch: choose a smaller one, such as training.batch_size=1"
                )
            steps.append(max(1, round(training.num_epochs * per_epoch)))
        seconds = 60 * training.max_minutes or None
        if not steps and seconds is None:
            training.max_minutes = DEFAULT_MINUTES
            seconds = 60 * DEFAULT_MINUTES
        return Limits(min(steps) if steps else None, seconds)

    def _choose_execution(self) -> Execution:
        """By measurement, on the first batch, which then comes again; rank 0 chooses for all."""
        training = self.config.training
        if not self.group.is_main:
            return Execution(**self.group.from_main({}, "waiting for rank 0 to choose the micro-batch"))
        limit = memory_limit(self.config, self.group)
        batch = next(self.loader)
        self.loader.seek(0)
        reserve = Optimizer(self.network, training).bytes_to_come() // self._num_shards
        chosen = choose_execution(self.network, batch, training, limit, reserve, self.group.world_size)
        self.group.from_main(asdict(chosen), "telling the micro-batch")
        return chosen

    def corpus(self) -> dict[str, Any]:
        """Describe what this run trains on, as far as it is known by now."""
        return corpus_facts(self.loader.cache, self.config, self._max_steps)

    # Running

    def steps(self) -> Iterable[StepInfo]:
        """Train, keeping the run directory up to date; then complete `run`. None, if it is `finished` already."""
        if self.finished:
            return
        run, position = self.run, self.loop.position
        if self.group.world_size == 1:  # several processes can only stop together, at the end of a step
            self.loader.call_while_waiting(self._stop_waiting)
        tally = Tally(position.tokens, position.elapsed_s)
        if position.step == 0:
            with self._replica.whole() as network:
                run.first_sample = self._sample(network) if self.group.is_main else ""
            with self._going_on_without("samples.txt"):
                self.folder.add_sample(0, run.first_sample)
        cpu_began, began = cpu_seconds(), time.perf_counter()
        processor_began, looked_s = ProcessorTime.now(), began
        with self.folder.metrics() as metrics:
            for info in self.loop.steps():
                tally.add(info)
                run.update(info, tally, self.counts.training_flops_per_token, self.peak_flops)
                run.best_validation_loss = position.best_loss
                if info.is_last or time.perf_counter() - looked_s > 1.0:  # looking costs half a millisecond
                    looked_s = time.perf_counter()
                    run.processor_taken_percent = ProcessorTime.now().taken_percent_since(processor_began)
                if info.sample:
                    with self._going_on_without("samples.txt"):
                        self.folder.add_sample(info.step, info.sample)
                line = without_nan(as_metrics(info, self._gauges(info)))
                with self._going_on_without("metrics.jsonl"):
                    metrics.write(json.dumps(line) + "\n")
                for hook in self._hooks:
                    with self._going_on_without("tensorboard"):
                        hook(line)
                yield info
        wall = time.perf_counter() - began
        run.was_stopped = self.loop.was_stopped
        run.skipped_steps = position.bad_steps
        run.seconds = {**tally.seconds, "other": max(0.0, wall - sum(tally.seconds.values()))}
        run.peak_memory_bytes = peak_memory_bytes()
        run.cpu_cores = (cpu_seconds() - cpu_began) / max(wall, 1e-9)
        run.corpus = self.corpus()
        if self.group.is_main:
            self._describe_corpus()
        self.folder.write_json("summary.json", run.as_json())
        self.group.wait_for_all("waiting for rank 0 to finish")  # who leaves early would be taken for lost

    def _stop_waiting(self) -> None:
        if self._should_stop():
            raise StopWaiting

    @contextmanager
    def _going_on_without(self, name: str) -> Iterator[None]:
        """Train on when a record of the run cannot be written: a checkpoint is worth more than it. Said once."""
        try:
            yield
        except OSError as problem:
            warning = f"{self.folder.path / name}: cannot be written ({problem.strerror}). Training goes on without it."
            if warning not in self.run.warnings:
                self.run.warnings.append(warning)

    def _gauges(self, info: StepInfo) -> dict[str, Any]:
        """What the process and the loader show at this moment, for metrics.jsonl."""
        counters = self.loader.counters()
        of_all = {} if self.group.world_size == 1 else {"data_wait_mean_s": round(info.mean_data_wait_s, 6)}
        return {
            **of_all,
            "tokens_per_second": round(self.run.tokens_per_second, 1),
            "memory_bytes": memory_bytes(),
            "cpu_s": round(cpu_seconds(), 2),
            "loader_cpu_s": round(counters.worker_cpu_s, 4),
            "queue_depth": counters.queue_depth,
            "queue_limit": counters.queue_limit,
            "buffered_bytes": counters.bytes_held,
        }

    def _describe_corpus(self) -> None:
        """What it holds, and what becomes of every token in a pass; known once the whole of it is tokenised."""
        if self.loader.cache.is_complete and not self._is_described:
            self._is_described = True
            corpus = describe(self.loader.cache, self.config.training.max_length, self.config.data.packing)
            self.folder.write_json("corpus.json", corpus)
            ledgers = [asdict(ledger) for ledger in self.loader.ledger()]
            self.folder.write_json("ledger.json", ledgers)

    def _evaluate(self) -> tuple[Evaluation | None, str]:
        """By rank 0; the others give their pieces of the network, and wait."""
        evaluation = None
        with self._replica.whole() as network:
            if not self.group.is_main:
                return None, ""
            if self._evaluator is not None:
                evaluation = self._evaluator(network)
            return evaluation, self._sample(network)

    @property
    def _num_shards(self) -> int:
        """Processes that the weights, gradients and optimizer state are divided among."""
        return self.group.world_size if self.config.run.sharding == "fsdp" else 1

    def _sample(self, network: Network) -> str:
        training = self.config.training
        sampling = Sampling(max_tokens=SAMPLE_TOKENS, temperature=0.8, top_k=50, seed=training.seed)
        return continue_text(network, self.tokenizer, training.prompt, sampling)

    def _save(self, is_best: bool) -> None:
        """By rank 0, in the same files whatever the processes have of the network."""
        with self.group.exchanging("gathering the optimizer's state"):
            tensors = {name: tensor for name, tensor in self.optimizer.tensors() if self.group.is_main}
        with self._replica.whole() as network:
            if self.group.is_main:
                self._write_checkpoint(network, tensors, is_best)

    def _write_checkpoint(self, network: Network, optimizer: dict[str, Tensor], is_best: bool) -> None:
        state = {
            "position": asdict(self.loop.position),
            "loader": self._batches.state(),
            "execution": asdict(self.execution),
            "config": self.config.model_dump(),
            "peak_flops": self.peak_flops,
            "environment": environment(),
            "processes": self.group.world_size,
        }
        is_best = is_best or not self.is_validated  # without validation, the newest is the best there is
        self._checkpoints.save(self.loop.position.step, network, optimizer, self.tokenizer, state, is_best)
        self._describe_corpus()
