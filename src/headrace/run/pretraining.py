"""Pretraining: a corpus becomes a trained model, and a run directory that says how."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from headrace.activity import Activity, ignore
from headrace.data.batch import Batch
from headrace.data.explain.description import describe
from headrace.distributed.group import join
from headrace.distributed.replicas import make_replica
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.device import best_device
from headrace.machine.facts import environment, memory_bytes
from headrace.models.counts import count
from headrace.models.network import build
from headrace.run.agreement import check_batch_size, check_same_config, check_same_corpus, check_sharding
from headrace.run.config import Config
from headrace.run.corpus import complete_model, open_evaluator, open_training, prepare_corpus
from headrace.run.corpus_facts import corpus_facts
from headrace.run.directory import History, RunFolder, WatchedFolder, read_record
from headrace.run.environment import describe_environment, known_rates, measure_rates
from headrace.run.execution.choice import ExecutionChoice, begin_choice, resume_choice
from headrace.run.execution.log import EXECUTIONS, ExecutionLog
from headrace.run.execution.threads import RunThreads, find_most_threads
from headrace.run.machine import remembered_machine
from headrace.run.memory import check_memory, num_shards
from headrace.run.records import CheckpointState, Environment, Run
from headrace.run.remembered_scaling import remembered_scaling
from headrace.run.resume import check_resumable, checkpoint_to_resume, read_checkpoint_state, resumed_execution
from headrace.run.session.evaluation import FIRST_TEXT_S, RunEvaluation
from headrace.run.session.recording import Recorder
from headrace.run.session.saving import RunSaving
from headrace.run.summary import Tally, recall
from headrace.run.trackers.tensorboard import TensorBoard
from headrace.stages import Stage
from headrace.training.activations import activation_bytes_per_token
from headrace.training.autotune import measure_on
from headrace.training.checkpoint import Checkpoints, check_disk_space, checkpoint_bytes
from headrace.training.execution import Execution
from headrace.training.loop import BatchStream, Loop, StepInfo, StopWaiting
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.restore import load_optimizer, load_weights
from headrace.training.schedule import Limits, Position
from headrace.training.step import TrainStep


class Pretraining:
    """The parts of a run, wired. Each process of a group has them; only rank 0 evaluates, writes and displays."""

    def __init__(
        self,
        config: Config,
        should_stop: Callable[[], bool] = lambda: False,
        batches: BatchStream | None = None,
        activity: Activity = ignore,
    ) -> None:
        self._given_batches = batches
        self.activity = activity
        """What is called with what begins; whoever shows the steps may put another in its place."""
        self.finished = ""
        """Why there is nothing left to do; empty where there is."""
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
        """Check and settle what all processes of a group must have in common before they begin."""
        group, run, training = self.group, self.config.run, self.config.training
        run.processes = group.world_size
        if group.world_size == 1:
            return
        check_same_config(self.config, group)
        run.out = group.from_main(str(RunFolder(run.out).path), "naming the run directory")
        if not training.threads:
            torch.set_num_threads(group.num_cores)

    def _open(self, stack: ExitStack) -> None:
        config, group = self.config, self.group
        self._checkpoints = Checkpoints(self.folder.path / "checkpoints")
        resume_from = checkpoint_to_resume(config.run.resume, self.folder, self._checkpoints, group)
        saved = read_checkpoint_state(resume_from) if resume_from else None
        if saved is None:
            check_batch_size(config, group.world_size)
            self._begin_anew()
        check_sharding(config)
        self._open_corpus(stack)
        if saved is not None:
            check_resumable(config, saved)
        limits = Limits.from_config(config.training, self._steps_per_epoch())
        self._max_steps = limits.steps
        position = saved.position if saved is not None else Position()
        self.counts = count(config.model, config.training.sequence_length)
        self.run = Run(folder=self.folder.path, parameters=self.counts.num_parameters)
        self.history = self.folder.history(position.step) if saved is not None else History()
        recall(self.run, position, self.history)
        if limits.is_over(position.step, position.elapsed_s, position.reserve_s):
            self._end_at_once(position, limits)
            return
        check_memory(config, group)
        self._open_network(saved, resume_from)
        self._open_loop(stack, limits, position, resume_from)

    def _steps_per_epoch(self) -> int:
        """Return the steps of a pass over the corpus where a limit needs them: counting tokenises all of it."""
        return self.loader.steps_per_epoch if self.config.training.num_epochs else 0

    def _open_corpus(self, stack: ExitStack) -> None:
        """Open the training text and its tokenizer, and complete the model's shape by them."""
        config, group = self.config, self.group
        if group.world_size > 1:
            prepare_corpus(config, group, self.activity)  # with all cores of a machine
            group.keep_to_own_cores()
        self.loader = stack.enter_context(open_training(config, group.rank, group.world_size, self.activity))
        check_same_corpus(self.loader.state(), group)
        self._batches: BatchStream = self._given_batches or self.loader
        self.tokenizer = self.loader.cache.tokenizer
        complete_model(config, self.tokenizer)

    def _open_network(self, saved: CheckpointState | None, resume_from: Path | None) -> None:
        """Build or load the network, decide how to compute its steps, and open what only rank 0 needs."""
        config, group = self.config, self.group
        self.activity("building the network")
        self.network = build(config.model, config.training.seed).to(best_device())
        check_disk_space(self.folder.path, 2 * checkpoint_bytes(self.network))
        self._runtime_bytes = memory_bytes() - 4 * self.counts.num_parameters
        if saved is not None and resume_from is not None:
            load_weights(resume_from, self.network)
            self._batches.restore(saved.loader)
            self.notices.append(f"goes on from step {saved.position.step:,} ({resume_from})")
        else:
            self.activity("tokenising the first batch")
            self._first_batch()
        self.optimizer = Optimizer(self.network, config.training)
        self._log = ExecutionLog.read(self.folder.path) if saved is not None else ExecutionLog()
        most_threads = find_most_threads(config, saved) if group.world_size == 1 else 0
        self.choice = self._begin_choice() if saved is None else self._resume_choice(saved)
        self._threads = RunThreads(self.choice, self._log, most_threads)
        self.notices += [self.choice.notice] if self.choice.notice else []
        self.execution.set_threads()
        if self.choice.is_final:
            self.execution.write_into(config.training)
        self.peak_flops, self._is_described, self._is_measured = 0.0, False, False
        self._activation_bytes: float | None = None
        self._evaluator = None
        if not group.is_main:
            return
        if group.world_size > 1:  # counted now: later, the network may be in pieces
            self._activation_bytes = self._count_activations()
        if saved is not None and saved.processes == group.world_size:
            self.peak_flops = saved.peak_flops
        else:
            known = known_rates(self.execution, self._machine) if self.choice.is_final else None
            self.peak_flops = group.world_size * known.peak_flops if known else 0.0
        self.activity("reading the validation text")
        self._evaluator, notice = open_evaluator(config, self.loader.cache, self.execution)
        self.notices += [notice] if notice else []

    def _open_loop(self, stack: ExitStack, limits: Limits, position: Position, resume_from: Path | None) -> None:
        """Share the network out, load the optimizer's state, and wire the loop."""
        config, training, group = self.config, self.config.training, self.group
        group.wait_for_all("waiting for rank 0 to begin")
        self._replica = make_replica(self.network, group, config.run.sharding)
        self.optimizer = Optimizer(self.network, training)  # sharding replaces the parameters
        if resume_from is not None:
            load_optimizer(resume_from, self.optimizer)
        # All of the checkpoint was read by now: what comes after it may go.
        begun = Environment(**environment(), execution=asdict(self.execution)) if group.is_main else Environment()
        self.folder.begin(config, begun, position.step)
        self._hooks: list[TensorBoard] = []
        if group.is_main and config.run.tensorboard:
            self._hooks.append(stack.enter_context(TensorBoard(self.folder.path)))
        if self._evaluator is not None:
            stack.callback(self._evaluator.close)
        self._evaluation = RunEvaluation(self._replica, self._evaluator, self.tokenizer, training, self._begin)
        self._saving = RunSaving(
            self._checkpoints,
            self._replica,
            self.optimizer,
            self.tokenizer,
            self._state,
            training,
            self.is_validated,
            self._begin,
        )
        stack.callback(self._saving.close)  # waits for a save under way
        step = TrainStep(self._replica, self.optimizer, self.choice.choosing or self.execution, training.gradient_clip)
        self.loop = Loop(
            training,
            limits,
            self._batches,
            step,
            position,
            self._evaluation,
            self._saving,
            self._should_stop,
            group,
            checkpoint_bytes(self.network),
        )

    def _begin_anew(self) -> None:
        """Keep the configuration from the first moment on: a run that is killed before its first checkpoint has it."""
        if self.config.run.resume and self.folder.holds_a_configuration:
            self.notices.append("no checkpoint yet: the run begins again from its configuration")
        self.folder.write_config(self.config)

    def _end_at_once(self, position: Position, limits: Limits) -> None:
        """Leave a finished run as it is; write its summary if it was killed before it did."""
        key = limits.key_of_end(self.config.training, position.elapsed_s, position.reserve_s)
        self.finished = f"{self.folder.path}: finished at step {position.step:,}; raise {key} to go on"
        summary = read_record(self.folder.path / "summary.json", Run)
        if summary is not None and summary.steps == position.step:
            self.run = summary.model_copy(update={"folder": self.folder.path})
        else:
            self.folder.write_record("summary.json", self.run)

    @property
    def is_validated(self) -> bool:
        """Return whether there is text to evaluate on; known to the process that evaluates."""
        return self._evaluator is not None

    def corpus(self) -> dict[str, Any]:
        """Describe what this run trains on, as far as it is known by now."""
        return corpus_facts(self.loader.cache, self.config, self._max_steps)

    # How steps are computed

    @property
    def execution(self) -> Execution:
        """How steps are computed: the best way that is known so far."""
        return self.choice.execution

    def _begin_choice(self) -> ExecutionChoice:
        """Decide how to compute the steps of a new run, or begin to choose while it trains; rank 0 decides for all."""
        if not self.group.is_main:
            told: dict[str, Any] = self.group.from_main({}, "waiting for rank 0 to choose how to compute steps")
            return ExecutionChoice(Execution(**told))
        choice = begin_choice(self.config, self.group, self._bytes_to_come, self._measure_on_first_batch)
        self.group.from_main(asdict(choice.execution), "telling how to compute steps")
        return choice

    def _resume_choice(self, saved: CheckpointState) -> ExecutionChoice:
        """Return the execution of a checkpoint, or go on choosing if it was saved before that was done."""
        if saved.is_execution_final or self.group.world_size > 1:
            return ExecutionChoice(resumed_execution(saved, self.config, self.group))
        return resume_choice(self.config, saved.position.step, self._log, self._bytes_to_come)

    def _bytes_to_come(self) -> int:
        return self.optimizer.bytes_to_come() // num_shards(self.config)

    def _measure_on_first_batch(self, execution: Execution) -> float:
        """Measure an execution on the first batch."""
        self.activity(f"choosing how to compute steps: {execution.describe()}")
        return measure_on(self.network, self._first_batch())(execution)

    def _first_batch(self) -> Batch:
        """Wait for the first batch and return it; it comes again in the first step."""
        batch = next(self.loader)
        self.loader.seek(0)
        return batch

    def _settle(self) -> None:
        """Make the execution final: what was chosen, or at the end of a run the best that is known."""
        self.choice.settle()
        self.execution.write_into(self.config.training)
        self.folder.write_config(self.config)
        if self._evaluator is not None:
            self._evaluator.use(self.execution)

    def _follow(self, info: StepInfo) -> None:
        """Write down how a step was computed, and settle the execution when it is chosen.

        Then measure, once, what the report and the display compare with.
        """
        if not self.choice.is_final:
            self._log_step(info)
        elif self._threads.follow(info):
            self._write_log()
        self.run.warnings += [self._threads.notice] if self._threads.notice else []
        if self.choice.pace is not None:
            warning = self.choice.pace.add(info)
            self.run.warnings += [warning] if warning else []
        if self.group.is_main and not self._is_measured and (self.choice.is_final or info.is_last):
            self._is_measured = True
            self._measure_environment()

    def _log_step(self, info: StepInfo) -> None:
        """Keep how a step was computed while choosing, before the next one is taken."""
        self._log.steps[info.step] = self.choice.take_pieces()
        if self.choice.is_ripe:
            self._log.final = self.execution
        if self.choice.is_ripe or info.is_last:
            self._settle()
        self._write_log()

    def _write_log(self) -> None:
        self.folder.write_json(EXECUTIONS, self._log.model_dump(mode="json"))

    def _measure_environment(self) -> None:
        """Complete environment.json by what takes a moment to find out, and no step needs."""
        self.activity("measuring the peak")
        rates = known_rates(self.execution, self._machine) or measure_rates(self.execution)
        self.peak_flops = self.peak_flops or self.group.world_size * rates.peak_flops
        held = self.loader.counters().bytes_held
        described = describe_environment(
            self.config,
            self.execution,
            self._activation_bytes or self._count_activations(),
            replace(rates, peak_flops=self.peak_flops),
            held,
            self._runtime_bytes,
            self._machine,
            self._scaling,
        )
        self.folder.write_record("environment.json", described)

    def _count_activations(self) -> float:
        return activation_bytes_per_token(self.network, self.execution, self.config.training.sequence_length)

    def _begin(self, doing: str) -> None:
        """Pass on what begins to whoever shows it now."""
        self.activity(doing)

    # Running

    def steps(self) -> Iterable[StepInfo]:
        """Train, keeping the run directory up to date; then complete `run`. No steps, if it is `finished` already."""
        if self.finished:
            return
        run, position = self.run, self.loop.position
        recorder = Recorder(self.folder, run, self.loader, self._hooks, self.group.world_size)
        if self.group.world_size == 1:  # several processes can only stop together, at the end of a step
            self.loader.call_while_waiting(self._stop_waiting)
        if position.step == 0:
            self.activity("writing a sample before training")
            run.first_sample = self._evaluation.first_text(inf if self.config.training.evaluate_every else FIRST_TEXT_S)
            recorder.add_text(0, run.first_sample)
        tally = Tally(run, self.counts.training_flops_per_token)
        self.activity(f"computing step {position.step + 1:,}")
        with self.folder.metrics() as metrics:
            for info in self.loop.steps():
                self._follow(info)
                tally.peak_flops = self.peak_flops
                tally.add(info, position)
                recorder.add(info, metrics)
                if info.seconds[Stage.SAVING] and self.group.is_main:
                    self._describe_corpus()
                yield info
        tally.finish()
        run.was_stopped = self.loop.was_stopped
        run.corpus = self.corpus()
        if self.group.is_main:
            self._describe_corpus()
        self.folder.write_record("summary.json", run)
        self.group.wait_for_all("waiting for rank 0 to finish")  # who leaves early would be taken for lost

    def _stop_waiting(self) -> None:
        if self._should_stop():
            raise StopWaiting

    def _describe_corpus(self) -> None:
        """Write corpus.json and ledger.json, once, when the whole corpus is tokenised."""
        if self.loader.cache.is_complete and not self._is_described:
            self._is_described = True
            corpus = describe(self.loader.cache, self.config.training.sequence_length, self.config.data.packing)
            self.folder.write_json("corpus.json", corpus)
            ledgers = [asdict(ledger) for ledger in self.loader.ledger()]
            self.folder.write_json("ledger.json", ledgers)

    def _state(self) -> CheckpointState:
        """Return what resuming needs to know beside the tensors."""
        return CheckpointState(
            position=self.loop.position,
            loader=self._batches.state(),
            execution=self.execution,
            is_execution_final=self.choice.is_final,
            most_threads=self._threads.most,
            config=self.config,
            peak_flops=self.peak_flops,
            environment=Environment(**environment()),
            processes=self.group.world_size,
        )
