"""Pretraining: the parts of a run, from opening its corpus to writing its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.activity import Activity, ignore
from headrace.data.tokens.relations import shared_parts
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.group import join
from headrace.distributed.replicas import make_replica
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.energy import EnergyMeter
from headrace.machine.facts import ProcessTimes, environment
from headrace.models.counts import count
from headrace.run.agreement import agree, check_batch_size, check_same_corpus, check_sharding
from headrace.run.config import Config
from headrace.run.corpus import complete_model, open_evaluator, open_training, prepare_corpus, refuse_to_train_into_text
from headrace.run.directory import History, RunFolder, WatchedFolder, read_record
from headrace.run.machine import remembered_machine
from headrace.run.memory import check_memory, num_shards
from headrace.run.records import CheckpointState, Environment, Run
from headrace.run.remembered_scaling import remembered_scaling
from headrace.run.resume import check_resumable, checkpoint_to_resume, read_checkpoint_state
from headrace.run.session.calibration import Calibration
from headrace.run.session.computing import RunComputing
from headrace.run.session.corpus_facts import corpus_facts
from headrace.run.session.corpus_files import CorpusFiles
from headrace.run.session.evaluation import FIRST_TEXT_S, RunEvaluation
from headrace.run.session.mixture import adopt_mixture
from headrace.run.session.overfitting import OverfittingWatch
from headrace.run.session.recording import Recorder
from headrace.run.session.saving import RunSaving
from headrace.run.start.keys import is_given
from headrace.run.start.origin import find_origin
from headrace.run.start.regime import RECIPE_KEYS, settle_recipe
from headrace.run.summary import Tally, recall
from headrace.run.trackers.beside import open_trackers
from headrace.stages import Stage
from headrace.training.checkpoint import Checkpoints, check_disk_space, checkpoint_bytes
from headrace.training.loop import Loop, StepInfo, StopWaiting
from headrace.training.optimizers.average import WeightAverage, average_bytes
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.restore import load_optimizer, load_training_weights
from headrace.training.schedule import Limits, Position
from headrace.training.showing.vocabulary import open_sampler
from headrace.training.showing.windows import BatchStream, DealtWindows
from headrace.training.step import TrainStep


class Pretraining:
    """One training run in this process. In a group, every process has one; only rank 0 evaluates and writes."""

    def __init__(
        self,
        config: Config,
        should_stop: Callable[[], bool] = lambda: False,
        batches: BatchStream | None = None,
        activity: Activity = ignore,
    ) -> None:
        self._began = ProcessTimes.now()
        self._given_batches = batches
        self.activity = activity
        """What is called with what begins; whoever shows the steps may put another in its place."""
        self.finished = ""
        """A sentence that says why the run has nothing left to do; empty if there are steps to take."""
        self.notices: list[str] = []
        """Notices to show the user before the first step."""
        self._machine = remembered_machine()  # before this process is pinned to cores
        self.config = config.model_copy(deep=True)
        self._should_stop = should_stop
        keep_freed_memory(even_large=not self.config.training.memory_budget)
        if self.config.training.threads:
            torch.set_num_threads(self.config.training.threads)
        with ExitStack() as stack:
            self.group = join(self.config.run.timeout_seconds)
            stack.callback(self.group.close)
            agree(self.config, self.group)
            self.folder = RunFolder(self.config.run.out) if self.group.is_main else WatchedFolder(self.config.run.out)
            if self.group.is_main and not self.folder.holds_a_configuration:
                refuse_to_train_into_text(self.config, self.folder.path)
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

    def _open(self, stack: ExitStack) -> None:
        config, group = self.config, self.group
        self._checkpoints = Checkpoints(self.folder.path / "checkpoints")
        resume_from = checkpoint_to_resume(config.run.resume, self.folder, self._checkpoints, group)
        saved = read_checkpoint_state(resume_from) if resume_from else None
        self._origin = find_origin(config, group, saved, resume_from, self.activity)
        adopted = adopt_mixture(config, self.folder.path, saved, self._origin.tokenizer)
        self.notices += [*self._origin.notices, *adopted.notices]
        self._scaling = remembered_scaling(config)
        if saved is None:
            check_batch_size(config, group.world_size)
            self._begin_anew()
        check_sharding(config)
        self._open_corpus(stack, adopted.tokenizer)
        if saved is not None:
            check_resumable(config, saved)
        limits = Limits.from_config(config.training, self._steps_per_epoch())
        self.max_steps = limits.steps
        """Steps at which the run ends; None where only time limits it."""
        if saved is not None or self._given_batches is None:  # of the text behind given batches, nothing is known
            before = saved.config if saved else None
            self.notices += settle_recipe(config, before, limits, self.corpus(), group, self._has_passes)
        limits = Limits.from_config(config.training, self._steps_per_epoch())  # text that comes round too often ends it
        self.max_steps = limits.steps
        position = saved.position if saved is not None else Position()
        training = config.training
        self.counts = count(config.model, training.mean_window, training.num_logits(config.model.vocab_size))
        self.run = Run(
            folder=self.folder.path, parameters=self.counts.num_parameters, continues_from=self._origin.record
        )
        self.history = self.folder.history(position.step) if saved is not None else History()
        recall(self.run, position, self.history)
        if limits.is_over(position.step, position.elapsed_s, position.reserve_s):
            self.run.calibrated_by = saved.calibrated_by if saved is not None else 1.0
            self._end_at_once(position, limits)
            return
        check_memory(config, group)
        self._open_network(saved, resume_from)
        self._open_loop(stack, limits, position, resume_from)

    def _steps_per_epoch(self) -> int:
        """Return the steps of a pass over the corpus where a limit needs them: counting tokenises all of it."""
        return self.loader.steps_per_epoch if self.config.training.num_epochs else 0

    def _has_passes(self) -> bool:
        """Return whether passes over the corpus can be counted: the sources of a mixture have passes of their own, and
        a text that is smaller than one batch has none."""
        return not self.loader.is_mixture and self.loader.steps_per_epoch > 0

    def _open_corpus(self, stack: ExitStack, kept: Tokenizer | None) -> None:
        """Open the training text and its tokenizer, and set the vocabulary size and the context by them.

        `kept`: the tokenizer to keep to; None: the one that the configuration names.
        """
        config, group = self.config, self.group
        if group.world_size > 1:
            # Before processes are pinned: tokenising uses all cores.
            prepare_corpus(config, group, self.activity, kept)
            group.keep_to_own_cores()
        self.loader = stack.enter_context(open_training(config, group.rank, group.world_size, self.activity, kept))
        check_same_corpus(self.loader.state(), group)
        self._batches = DealtWindows(self._given_batches or self.loader)
        self.tokenizer = self.loader.cache.tokenizer
        complete_model(config, self.tokenizer)

    def _open_network(self, saved: CheckpointState | None, resume_from: Path | None) -> None:
        """Build or load the network, decide how to compute its steps, and open what only rank 0 needs."""
        config, group = self.config, self.group
        self.activity("building the network")
        self.network = self._origin.build_network(config)
        check_disk_space(
            self.folder.path, 2 * checkpoint_bytes(self.network, config.training.sets_trained_weights_apart)
        )
        self.computing = RunComputing(
            config, self.network, self.loader, group, self.folder, self._machine, self._scaling, self._begin
        )
        self._saved_average: list[Tensor] | None = None
        if saved is not None and resume_from is not None:
            self._saved_average = load_training_weights(
                resume_from, self.network, bool(config.training.average and saved.config.training.average)
            )
            self._batches.restore(saved.loader)
            self.notices.append(f"resuming from step {saved.position.step:,} ({resume_from})")
        else:
            self.activity("tokenising the first batch")
            self.computing.first_batch()
        self._shared_parts = shared_parts(self.tokenizer.json) if config.training.related_tokens else None
        self.optimizer = Optimizer(self.network, config.training, self._shared_parts)
        self.computing.begin(saved, self._bytes_to_come)
        self.notices += [self.computing.notice] if self.computing.notice else []
        self._evaluator = None
        if not group.is_main:
            return
        self.activity("reading the validation text")
        self._evaluator, notice = open_evaluator(config, self.loader.cache, self.computing.execution)
        self.notices += [notice] if notice else []

    def _bytes_to_come(self) -> int:
        """Return the bytes of gradients, optimizer state and average that this process does not have yet."""
        share = 0.0 if self._saved_average is not None else self.config.training.average
        missing = self.optimizer.gradient_bytes_to_come() + self.optimizer.bytes_to_come()
        return (missing + average_bytes(self.counts.num_parameters, share)) // num_shards(self.config)

    def _open_average(self, step: int) -> WeightAverage | None:
        """Begin an average of the weights, or go on with the saved one, if the configuration asks for one."""
        saved, self._saved_average = self._saved_average, None
        share = self.config.training.average
        return WeightAverage(self.network, share, step, saved) if share else None

    def _open_loop(self, stack: ExitStack, limits: Limits, position: Position, resume_from: Path | None) -> None:
        """Make the network a replica of the group, load the optimizer's state, and build the loop."""
        config, training, group = self.config, self.config.training, self.group
        group.wait_for_all("waiting for rank 0 to begin")
        self._replica = make_replica(self.network, group, config.run.sharding)
        self._replica.memory_limit = self.computing.memory_limit
        self.computing.make_room = self._replica.make_room
        self.optimizer = Optimizer(self.network, training, self._shared_parts)  # sharding replaces the parameters
        if resume_from is not None:
            load_optimizer(resume_from, self.optimizer)
        average = self._open_average(position.step)
        averaged = average.weights if average else None
        # The whole checkpoint has been read, so records of later steps may be removed.
        begun = (
            Environment(**environment(), execution=asdict(self.computing.execution)) if group.is_main else Environment()
        )
        self.folder.begin(config, begun, position.step)
        self._trackers = open_trackers(config, self.folder.path, position.step) if group.is_main else []
        for tracker in self._trackers:
            stack.callback(tracker.close)
        if self._evaluator is not None:
            stack.callback(self._evaluator.close)
        self._calibration = Calibration(self._replica.network)
        self._evaluation = RunEvaluation(
            self._replica, self._evaluator, self.tokenizer, training, self._calibration, self._begin, averaged
        )
        if training.calibrate and group.is_main and not self._evaluation.can_calibrate:
            self.notices.append("the model will not be calibrated: there is too little validation text")
        self._saving = RunSaving(
            self._checkpoints,
            self._replica,
            self.optimizer,
            self.tokenizer,
            self._state,
            training,
            self.is_validated,
            self._calibration,
            self._begin,
            averaged,
        )
        stack.callback(self._saving.close)  # waits for a save under way
        step = TrainStep(self._replica, self.optimizer, self.computing.for_steps, training.gradient_clip, average)
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
            checkpoint_bytes(self.network, training.sets_trained_weights_apart),
            sampler=open_sampler(training, config.model.vocab_size, self.loader),
        )

    def _begin_anew(self) -> None:
        """Write the configuration at once: a run that is killed before its first checkpoint begins again from it.

        The recipe is left open, as it is decided later, when the text is open.
        """
        if self.config.run.resume and self.folder.holds_a_configuration:
            self.notices.append("no checkpoint yet: the run begins again from its configuration")
        self.folder.write_config(self.config, [key for key in RECIPE_KEYS if not is_given(self.config, key)])

    def _end_at_once(self, position: Position, limits: Limits) -> None:
        """Leave a finished run as it is; write its summary if it was killed before it did."""
        key = limits.key_of_end(self.config.training, position.elapsed_s, position.reserve_s)
        self.finished = f"{self.folder.path}: finished at step {position.step:,}; raise {key} to go on"
        summary = read_record(self.folder.path / "summary.json", Run)
        if summary is not None and summary.steps == position.step:
            self.run = summary.model_copy(update={"folder": self.folder.path, "was_stopped": False})  # not this time
        else:
            self.folder.write_record("summary.json", self.run)

    @property
    def is_validated(self) -> bool:
        """Return whether there is text to evaluate on; known to the process that evaluates."""
        return self._evaluator is not None

    def corpus(self) -> dict[str, Any]:
        """Describe what this run trains on, as far as it is known by now."""
        return corpus_facts(self.loader.cache, self.config, self.max_steps)

    def _begin(self, doing: str) -> None:
        """Pass on what begins to whoever shows it now."""
        self.activity(doing)

    # Running

    def steps(self) -> Iterable[StepInfo]:
        """Train, yielding every step and keeping the run directory up to date; yield nothing if `finished`."""
        if self.finished:
            return
        run, position = self.run, self.loop.position
        recorder = Recorder(self.folder, run, self.loader, self._trackers, self.group.world_size)
        corpus_files = CorpusFiles(self.folder, self.loader, self.config)
        if self.group.world_size == 1:  # several processes can only stop together, at the end of a step
            self.loader.call_while_waiting(self._stop_waiting)
        run.prompts = self._evaluation.prompts
        if position.step == 0:
            self.activity("writing a sample before training")
            run.first_sample = self._evaluation.first_text(inf if self.config.training.evaluate_every else FIRST_TEXT_S)
            recorder.add_text(0, run.first_sample)
            if self._origin.record is not None:  # so that what training makes of it can be compared with it
                self._origin.record.validation_loss = self._evaluation.first_loss()
        self.computing.check_memory()
        meter = EnergyMeter() if self.group.is_main and self.group.num_machines == 1 else None
        tally = Tally(run, self.counts.training_flops_per_token, self.history.losses, self._began, meter)
        watch = OverfittingWatch(self.config, self.history.evaluations, lambda: self.corpus()["epoch_tokens"])
        self.activity(f"computing step {position.step + 1:,}")
        with self.folder.metrics() as metrics:
            for info in self.loop.steps():
                self._follow(info)
                tally.peak_flops = self.computing.peak_flops
                tally.add(info, position)
                run.warnings += watch.follow(info, run)
                recorder.add(info, metrics)
                if info.seconds[Stage.SAVING] and self.group.is_main:
                    corpus_files.write_when_known()
                yield info
        tally.finish()
        run.was_stopped = self.loop.was_stopped
        run.calibrated_by = self._calibration.factor
        run.corpus = self.corpus()
        if self._given_batches is None and self.loader.is_mixture:
            run.rows_by_source = self.loader.rows_by_source(run.steps)
        if self.group.is_main:
            corpus_files.write_when_known()
        recorder.finish()
        self.folder.write_record("summary.json", run)
        # A process that leaves early would be taken for a lost one.
        self.group.wait_for_all("waiting for rank 0 to finish")

    def _follow(self, info: StepInfo) -> None:
        """Settle how steps are computed when that is chosen; evaluations are computed in the same way."""
        was_final = self.computing.is_final
        self.run.warnings += self.computing.follow(info)
        if self.computing.is_final and not was_final and self._evaluator is not None:
            self._evaluator.use(self.computing.execution)
            if self.group.world_size == 1:  # processes of a group would have to measure together
                self.loop.measure_evaluation_again()

    def _stop_waiting(self) -> None:
        if self._should_stop():
            raise StopWaiting

    def _state(self) -> CheckpointState:
        """Return what resuming needs to know beside the tensors."""
        return CheckpointState(
            position=self.loop.position,
            loader=self._batches.state(),
            execution=self.computing.execution,
            is_execution_final=self.computing.is_final,
            most_threads=self.computing.most_threads,
            config=self.config,
            peak_flops=self.computing.peak_flops,
            environment=Environment(**environment()),
            processes=self.group.world_size,
            continues_from=self._origin.record,
            calibrated_by=self._calibration.factor,
        )
