"""The number of threads follows what others use of the processor. Clocks and readings are made up: nothing is timed."""

from __future__ import annotations

from itertools import pairwise

from headrace.machine.contention import ProcessorTime
from headrace.run.execution.thread_policy import FIRST_PAUSE, PATIENCE_S, WINDOW_S, ThreadControl, ThreadPolicy, Window

PATIENCE = int(PATIENCE_S / WINDOW_S)
QUIET = Window(step_s=1.0, taken_percent=0.0, idle_cores=0.0)


def busy(step_s: float) -> Window:
    return Window(step_s, taken_percent=50.0, idle_cores=0.0)


def room(step_s: float) -> Window:
    return Window(step_s, taken_percent=0.0, idle_cores=1.0)


def lowered() -> ThreadPolicy:
    """Return a policy of two threads that others have made go down to one, with steps of 2 seconds."""
    policy = ThreadPolicy(most=2)
    for _ in range(PATIENCE):
        policy.next(busy(8.0))
    policy.next(Window(2.0, 0.0, 0.0))
    assert (policy.threads, policy.is_trial) == (1, False)
    return policy


def test_a_quiet_machine_changes_nothing() -> None:
    policy = ThreadPolicy(most=2)
    assert {policy.next(QUIET) for _ in range(1000)} == {2}


def test_where_contention_is_unknown_nothing_changes() -> None:
    policy = ThreadPolicy(most=2)
    assert {policy.next(Window(1.0, None, 0.0)) for _ in range(100)} == {2}


def test_a_program_that_passes_by_changes_nothing() -> None:
    policy = ThreadPolicy(most=2)
    windows = ([busy(4.0)] * (PATIENCE - 1) + [QUIET]) * 20
    assert {policy.next(window) for window in windows} == {2}


def test_fewer_threads_stay_where_they_are_faster_and_two_runs_with_a_core_each_stay_so() -> None:
    policy = lowered()
    assert {policy.next(Window(2.0, 0.0, 0.1)) for _ in range(1000)} == {1}


def test_all_threads_come_back_when_there_is_room() -> None:
    policy = lowered()
    assert [policy.next(room(2.0)) for _ in range(PATIENCE)][-2:] == [1, 2]
    assert policy.next(Window(1.1, 0.0, 0.0)) == 2
    assert not policy.is_trial


def test_more_threads_that_are_no_faster_are_given_up() -> None:
    policy = lowered()
    for _ in range(PATIENCE):
        policy.next(room(2.0))
    assert policy.next(Window(1.9, 0.0, 0.0)) == 1


def test_trials_in_vain_become_rare() -> None:
    policy = ThreadPolicy(most=2)
    tried = [number for number in range(20 * FIRST_PAUSE) if policy.next(busy(4.0)) == 1]
    assert len(tried) == 5  # after 60, 120, 240 and 480 windows
    assert all(later - earlier > FIRST_PAUSE for earlier, later in pairwise(tried))


def test_long_windows_are_judged_sooner_but_never_one_alone() -> None:
    policy = ThreadPolicy(most=2)
    assert [policy.next(Window(8.0, 50.0, 0.0, wall_s=24.0)) for _ in range(2)] == [2, 1]


def test_many_threads_are_halved_as_long_as_that_is_faster() -> None:
    policy = ThreadPolicy(most=8)
    times = {8: 8.0, 4: 4.0, 2: 2.0, 1: 3.0}
    for _ in range(4 * PATIENCE):
        policy.next(busy(times[policy.threads]))
    assert policy.threads == 2


class Machine:
    """A made-up machine of two cores: what others take of it is set, and time passes by steps."""

    def __init__(self) -> None:
        self.now_s = self.own_s = self.delayed_s = self.idle_s = 0.0
        self.others = 0.0

    def read(self) -> ProcessorTime:
        busy_s = 2 * self.now_s - self.idle_s
        return ProcessorTime(self.own_s, self.delayed_s, busy_s, 0.0, self.idle_s)

    def clock(self) -> float:
        return self.now_s

    def compute(self, threads: int) -> float:
        """Compute a step: with others, two threads take four times as long as one."""
        step_s = 1.0 / threads if not self.others else 4.0 if threads == 2 else 1.0
        self.now_s += step_s
        self.own_s += step_s * min(threads, 2 - self.others)
        self.delayed_s += step_s * max(0.0, threads - (2 - self.others))
        self.idle_s += step_s * max(0.0, 2 - self.others - threads)
        return step_s


def follow(control: ThreadControl, machine: Machine, threads: int, steps: range) -> tuple[int, list[str]]:
    notices = []
    for step in steps:
        threads = control.next(step, machine.compute(threads))
        notices += [control.take_notice()]
    return threads, [notice for notice in notices if notice]


def test_a_run_lowers_its_threads_says_so_once_and_goes_back() -> None:
    machine = Machine()
    control = ThreadControl(ThreadPolicy(most=2), read=machine.read, clock=machine.clock)
    threads, notices = follow(control, machine, 2, range(1, 100))
    assert (threads, notices) == (2, [])
    machine.others = 1.0
    threads, notices = follow(control, machine, threads, range(100, 200))
    assert threads == 1
    assert notices == ["other programs use the processor: computing with 1 thread instead of 2"]
    machine.others = 0.0
    threads, notices = follow(control, machine, threads, range(200, 300))
    assert (threads, notices) == (2, [])
    machine.others = 1.0
    assert follow(control, machine, threads, range(300, 400)) == (1, [])


def test_a_trial_in_vain_is_told_too() -> None:
    machine = Machine()
    machine.others = 1.0
    control = ThreadControl(ThreadPolicy(most=2), read=machine.read, clock=machine.clock)
    notices = []
    for step in range(1, 200):
        control.next(step, machine.compute(2))  # whatever the threads
        notices += [control.take_notice()]
    assert [notice for notice in notices if notice] == [
        "other programs use the processor: computing with 2 threads as before, because 1 measured no faster"
    ]


def test_steps_of_an_earlier_session_are_repeated_with_its_threads() -> None:
    machine = Machine()
    machine.others = 1.0
    control = ThreadControl(ThreadPolicy(most=2), {5: 1, 8: 2, 1000: 1}, machine.read, machine.clock)
    assert [control.next(step, 1.0) for step in range(3, 10)] == [2, 1, 1, 1, 2, 2, 2]
    assert {control.next(step, machine.compute(2)) for step in range(10, 999)} == {2}
    assert control.next(999, 1.0) == 1
