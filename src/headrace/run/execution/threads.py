"""The threads of a run: given, or as many as are fastest beside what other programs use of the processor."""

from __future__ import annotations

import torch

from headrace.run.config import Config
from headrace.run.execution.choice import ExecutionChoice
from headrace.run.execution.log import ExecutionLog
from headrace.run.execution.thread_policy import ThreadControl, ThreadPolicy
from headrace.run.records import CheckpointState
from headrace.stages import Stage
from headrace.training.loop import StepInfo


def find_most_threads(config: Config, saved: CheckpointState | None, log: ExecutionLog) -> int:
    """Return the threads of a run on a machine that nobody else uses; 0 where their number is given.

    A run writes what it chose into its configuration. So where it is resumed from `saved`, a number is only given if
    the run never had it.
    """
    given = config.training.threads
    if saved is None:
        return 0 if given else torch.get_num_threads()
    own = {0, saved.config.training.threads, saved.execution.threads, *log.threads.values()}
    own |= {log.final.threads} if log.final is not None else set()
    return saved.most_threads if given in own else 0


class RunThreads:
    """Changes the threads of a run while it trains, once its execution is final; until then, that choice owns them."""

    def __init__(self, choice: ExecutionChoice, log: ExecutionLog, most: int, step: int) -> None:
        """`most`: threads on a machine that nobody else uses; 0 or 1 leaves nothing to decide. `step`: the newest."""
        self.most = most
        self._choice, self._log = choice, log
        self._control: ThreadControl | None = None
        self.notice: str | None = None
        """What a person should know since the last step."""
        if step + 1 in log.threads:  # changed after the checkpoint was saved
            choice.use_threads(log.threads[step + 1])

    def follow(self, info: StepInfo) -> bool:
        """Give the next step its number of threads; return whether the log has a change to be written before it."""
        self.notice = None
        if self.most < 2 or not self._choice.is_final:
            return False
        threads = self._choice.execution.threads
        if self._control is None:
            policy = ThreadPolicy(max(self.most, threads), threads)
            self._control = ThreadControl(policy, self._log.threads_after(info.step))
        passes_s = sum(info.seconds[stage] for stage in (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER))
        wanted = self._control.next(info.step, passes_s)
        self.notice = self._control.take_notice()
        if wanted == threads:
            return False
        self._choice.use_threads(wanted)
        self._log.threads[info.step + 1] = wanted
        return True
