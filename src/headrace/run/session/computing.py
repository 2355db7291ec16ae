"""How a run computes its steps: chosen while it trains, written down for a resume, compared with the measured peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from headrace.activity import Activity
from headrace.data.batch import Batch
from headrace.data.loader import Loader
from headrace.distributed.group import Group
from headrace.machine.allocator import release_freed_memory
from headrace.machine.facts import memory_bytes, peak_memory_bytes
from headrace.models.counts import FLOAT_BYTES
from headrace.models.network import Network
from headrace.run.config import Config
from headrace.run.directory import RunFolder
from headrace.run.environment import MEASURED_BYTES, describe_environment, known_rates, measure_rates
from headrace.run.execution.choice import ExecutionChoice, begin_choice, resume_choice
from headrace.run.execution.log import EXECUTIONS, ExecutionLog
from headrace.run.execution.rates import Rates
from headrace.run.execution.threads import RunThreads, find_most_threads
from headrace.run.machine import Machine
from headrace.run.records import CheckpointState
from headrace.run.remembered_scaling import Scaling
from headrace.run.resume import describe_engine_change, resumed_execution
from headrace.training.autotune import measure_on
from headrace.training.choosing import TrainingChoice
from headrace.training.execution import Execution
from headrace.training.loop import StepInfo
from headrace.training.ways.activations import activation_bytes_per_token
from headrace.training.ways.memory import Demand


class RunComputing:
    """The way in which a run computes its steps: remembered, resumed, or chosen by measurement in the first of them."""

    def __init__(
        self,
        config: Config,
        network: Network,
        loader: Loader,
        group: Group,
        folder: RunFolder,
        machine: Machine | None,
        scaling: Scaling | None,
        activity: Activity,
    ) -> None:
        """`machine`, `scaling`: what was measured on this machine before. The configuration gets what is chosen."""
        self._config, self._network, self._loader, self._group = config, network, loader, group
        self._folder, self._machine, self._scaling, self._activity = folder, machine, scaling, activity
        weights = sum(parameter.numel() for parameter in network.parameters())
        self._runtime_bytes = memory_bytes() - FLOAT_BYTES * weights
        self.peak_flops = 0.0
        """Measured peak of all processes in FLOP/s; 0 until it is known."""
        self._is_measured = False
        self._has_exceeded = False
        self.make_room: Callable[[int], bool] = lambda num_bytes: True
        """What gives memory back that is kept for speed, and returns whether there is room for so many bytes then."""
        self._activation_bytes: float | None = None

    def begin(self, saved: CheckpointState | None, bytes_to_come: Callable[[], int]) -> None:
        """Decide how to compute steps, or begin to choose; `bytes_to_come`: of gradients and state not there yet.

        `saved` is the checkpoint that a run resumes from; its weights and its place in the corpus are loaded by now.
        """
        group, self._bytes_to_come = self._group, bytes_to_come
        self._log = ExecutionLog.read(self._folder.path) if saved is not None else ExecutionLog()
        most_threads = find_most_threads(self._config, saved, self._log) if group.world_size == 1 else 0
        self._choice = self._begin_choice(bytes_to_come) if saved is None else self._resume_choice(saved, bytes_to_come)
        self._threads = RunThreads(self._choice, self._log, most_threads, saved.position.step if saved else 0)
        self.execution.set_threads()
        if self._choice.is_final:
            self.execution.write_into(self._config.training)
        if not group.is_main:
            return
        if group.world_size > 1:  # counted now: later, the network may be in pieces
            self._activation_bytes = self._count_activations()
        if saved is not None and saved.processes == group.world_size:
            self.peak_flops = saved.peak_flops
        elif self._choice.is_final:
            known = known_rates(self.execution, self._machine)
            self.peak_flops = group.world_size * known.peak_flops if known else 0.0

    def check_memory(self) -> None:
        """Refuse a memory limit that the first step would break; a group has done so before it measured.

        What a process takes beside steps is there by now, so that the choice begins with what fits beside it.
        """
        limit, choosing, training = self._choice.memory_limit, self._choice.choosing, self._config.training
        if limit is None or self._group.world_size > 1:
            return
        if choosing is not None and not self._choice.is_final:
            demand, is_chosen = choosing.demand(), False
            choosing.begin_again()
        else:  # it was chosen, and has been measured
            release_freed_memory()
            held, to_come = memory_bytes(), self._bytes_to_come()
            demand, is_chosen = Demand.of(self._config.model, training, self.execution, held, to_come), True
        if not self._config.run.force:
            demand.check(limit, training, is_chosen)

    @property
    def memory_limit(self) -> int | None:
        """Most memory that steps may take; None: no limit."""
        return self._choice.memory_limit

    @property
    def execution(self) -> Execution:
        """How steps are computed: the best way that is known so far."""
        return self._choice.execution

    @property
    def for_steps(self) -> Execution | TrainingChoice:
        """What computes the steps: the execution, or the choice that compares several while they are taken."""
        return self._choice.choosing or self.execution

    @property
    def is_final(self) -> bool:
        """Whether later steps are all computed in one way."""
        return self._choice.is_final

    @property
    def most_threads(self) -> int:
        """The threads on a machine that nobody else uses; 0 where their number is given."""
        return self._threads.most

    @property
    def notice(self) -> str:
        """What the user should know about it before the first step."""
        return self._choice.notice

    def follow(self, info: StepInfo) -> list[str]:
        """Write down how a step was computed, settle the choice when it is made, and return warnings for the user.

        Once it is settled, measure what the report and the display compare with.
        """
        if not self._choice.is_final:
            self._log_step(info)
        elif self._threads.follow(info):
            self._write_log()
        warnings = [
            self._notice_of_memory(),
            self._threads.notice,
            self._choice.pace.add(info) if self._choice.pace is not None else None,
        ]
        if self._group.is_main and not self._is_measured and (self._choice.is_final or info.is_last):
            self._is_measured = True
            self._measure_environment()
        return [warning for warning in warnings if warning]

    def _notice_of_memory(self) -> str:
        """Return a warning, once, when the process has had more memory than its budget."""
        budget = self._config.training.memory_budget
        if not budget or self._has_exceeded or peak_memory_bytes() <= budget:
            return ""
        self._has_exceeded = True
        return (
            f"the process has had {peak_memory_bytes() / 1e6:.0f}MB of memory, more than training.memory_budget"
            f" ({budget / 1e6:.0f}MB)"
        )

    def first_batch(self) -> Batch:
        """Wait for the first batch and return it; it comes again in the first step."""
        batch = next(self._loader)
        self._loader.seek(0)
        return batch

    def _begin_choice(self, bytes_to_come: Callable[[], int]) -> ExecutionChoice:
        """Decide how to compute the steps of a new run, or begin to choose while it trains; rank 0 decides for all."""
        if not self._group.is_main:
            told: dict[str, Any] = self._group.from_main({}, "waiting for rank 0 to choose how to compute steps")
            return ExecutionChoice(Execution(**told), memory_limit=self._config.training.memory_budget)
        choice = begin_choice(self._config, self._group, bytes_to_come, self._measuring_on_first_batch())
        self._group.from_main(asdict(choice.execution), "sending how to compute steps")
        return choice

    def _resume_choice(self, saved: CheckpointState, bytes_to_come: Callable[[], int]) -> ExecutionChoice:
        """Return the execution of a checkpoint, or go on choosing if it was saved before that was done."""
        if saved.is_execution_final or self._group.world_size > 1:
            execution = resumed_execution(saved, self._config, self._group)
            notice = describe_engine_change(saved.execution, execution, self._config)
            return ExecutionChoice(execution, notice=notice, memory_limit=self._config.training.memory_budget)
        return resume_choice(self._config, saved.position.step, self._log, bytes_to_come)

    def _measuring_on_first_batch(self) -> Callable[[Execution], float]:
        """Return a function that measures ways on the first batch, which it waits for when it is needed."""
        measuring: list[Callable[[Execution], float]] = []

        def measure(execution: Execution) -> float:
            self._activity(f"choosing how to compute steps: {execution.describe()}")
            if not measuring:
                training = self._config.training
                measuring.append(measure_on(self._network, self.first_batch(), training, training.memory_budget))
            return measuring[0](execution)

        return measure

    def _log_step(self, info: StepInfo) -> None:
        """Keep how a step was computed while choosing, before the next one is taken."""
        self._log.steps[info.step] = self._choice.take_pieces()
        if self._choice.is_ripe:
            self._log.final = self.execution
        if self._choice.is_ripe or info.is_last:
            self._settle()
        self._write_log()

    def _settle(self) -> None:
        """Make the execution final: what was chosen, or at the end of a run the best that is known."""
        is_chosen = self._choice.is_ripe
        self._choice.settle()
        self.execution.set_threads()  # the last rows may have been computed with another number
        if is_chosen:  # else a run that is resumed goes on choosing
            self.execution.write_into(self._config.training)
            self._folder.write_config(self._config)

    def _write_log(self) -> None:
        self._folder.write_json(EXECUTIONS, self._log.model_dump(mode="json"))

    def _measure_environment(self) -> None:
        """Complete environment.json by what takes a moment to find out, and no step needs."""
        self._activity("measuring the peak")
        rates = known_rates(self.execution, self._machine)
        if rates is None:
            rates = measure_rates(self.execution) if self.make_room(MEASURED_BYTES) else Rates(0.0, None)
        self.peak_flops = self.peak_flops or self._group.world_size * rates.peak_flops
        described = describe_environment(
            self._config,
            self.execution,
            self._activation_bytes or self._count_activations(),
            replace(rates, peak_flops=self.peak_flops),
            self._loader.counters().bytes_held,
            self._runtime_bytes,
            self._machine,
            self._scaling,
        )
        self._folder.write_record("environment.json", described)

    def _count_activations(self) -> float:
        return activation_bytes_per_token(self._network, self.execution, self._config.training.sequence_length)
