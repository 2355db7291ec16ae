"""How a run computes its steps: as it was remembered, or as it is chosen by measurement, while it trains if it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.distributed.group import Group
from headrace.run.config import Config
from headrace.run.execution.log import ExecutionLog
from headrace.run.execution.pace import ChosenExecution, PaceCheck, remembered_execution
from headrace.run.execution.store import Remembered
from headrace.run.memory import memory_limit
from headrace.run.resume import with_possible_engine, with_wanted_engine
from headrace.training.autotune import Search
from headrace.training.choosing import Piece, TrainingChoice
from headrace.training.execution import Execution


class ExecutionChoice:
    """The execution of a run: final, or still being chosen while it trains."""

    def __init__(
        self,
        execution: Execution,
        choosing: TrainingChoice | None = None,
        place: Remembered[ChosenExecution] | None = None,
        pace: PaceCheck | None = None,
        notice: str = "",
        memory_limit: int | None = None,
    ) -> None:
        """`place`: where to remember what is chosen. `pace`: what notices that a remembered choice holds no more."""
        self._execution, self._place = execution, place
        self.memory_limit = memory_limit
        """Most memory that steps may take; None: no limit."""
        self.choosing = choosing
        self.pace = pace
        self.notice = notice
        """What a person should know about it."""
        self.is_final = choosing is None
        self._threads = 0

    @property
    def execution(self) -> Execution:
        """The best way that is known so far."""
        best = self._execution if self.choosing is None else self.choosing.best
        return replace(best, threads=self._threads) if self._threads else best

    @property
    def is_ripe(self) -> bool:
        """Whether all measurements are made, and the choice can be made final."""
        return self.choosing is not None and self.choosing.is_settled

    def use_threads(self, threads: int) -> None:
        """Compute later steps with another number of threads; what is remembered for other runs stays as it is."""
        self._threads = threads
        self.execution.set_threads()

    def take_pieces(self) -> list[Piece]:
        """Return, once, the rows of the newest step and how they were computed; none where nothing was being chosen."""
        if self.choosing is None:
            return []
        pieces, self.choosing.pieces = self.choosing.pieces, []
        return pieces

    def settle(self) -> None:
        """Make the choice final, and remember it if it was measured to its end and in peace."""
        if self.choosing is None or self.is_final:
            return
        self.choosing.settle()
        self.is_final = True
        if self._place is not None and self.choosing.is_complete and self.choosing.seconds_per_sequence:
            self._place.write(ChosenExecution.today(self.choosing.best, self.choosing.seconds_per_sequence))


def begin_choice(
    config: Config, group: Group, reserve: Callable[[], int], measure: Callable[[Execution], float]
) -> ExecutionChoice:
    """Begin to choose the execution of a new run, in rank 0.

    `reserve` is that of `Search`. `measure` is used in a group only: there, rank 0 measures alone before training, for
    every process would have to change its way at the same micro-batch.
    """
    limit = memory_limit(config, group)
    search = Search(config.model, config.training, limit, reserve, group.world_size, sharding=config.run.sharding)
    place = remembered_execution(config, search)
    known = None if config.run.measure_again else place.read()
    if known is not None and (limit is None or search.demand(known.execution).total <= limit):
        pace = PaceCheck(place, known, config.training.batch_size // group.world_size)
        notice = f"how to compute steps: remembered from {known.chosen_on}; --measure-again chooses again"
        return ExecutionChoice(known.execution, pace=pace, notice=notice, memory_limit=limit)
    choosing = TrainingChoice(search)
    if group.world_size > 1:
        if limit is not None and not config.run.force:
            search.demand().check(limit, config.training)
        choosing.measure_all(measure)
    return _begun(search, choosing, place, limit)


def resume_choice(config: Config, step: int, log: ExecutionLog, reserve: Callable[[], int]) -> ExecutionChoice:
    """Go on choosing where a run was resumed before its execution was final, in a process alone.

    Steps that were computed before, after the checkpoint, are computed in the same ways as then.
    """
    limit = memory_limit(config)
    search = Search(config.model, config.training, limit, reserve)
    repeated = [
        [replace(piece, execution=with_possible_engine(piece.execution, config)) for piece in pieces]
        for pieces in log.after(step)
    ]
    final = None if log.final is None else with_wanted_engine(log.final, config)
    choosing = TrainingChoice(search, repeated, final)
    return _begun(search, choosing, remembered_execution(config, search), limit)


def _begun(
    search: Search, choosing: TrainingChoice, place: Remembered[ChosenExecution], limit: int | None
) -> ExecutionChoice:
    """Return a choice that goes on while training, or is final already where nothing is left to measure."""
    choice = ExecutionChoice(search.best, choosing, place, memory_limit=limit)
    if choice.is_ripe:
        choice.settle()
    return choice
