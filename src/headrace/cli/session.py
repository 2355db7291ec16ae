"""One training session of `headrace train`: processes started, steps shown, signals obeyed, the result printed."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack, nullcontext

import typer

from headrace.cli import display
from headrace.cli.progress import TrainingDisplay
from headrace.cli.result import show_result
from headrace.distributed.launch import is_joined, launch
from headrace.errors import EXIT_STOPPED
from headrace.jobs.train import processes_to_start, run_to_the_end
from headrace.machine.signals import end_on_second_interrupt, on_stop_signals
from headrace.run.config import Config
from headrace.run.pretraining import Pretraining
from headrace.run.records import Run


def run_training(config: Config, is_resumed: bool, as_json: bool) -> int:
    """Train as the configuration says, in this process or in several; return the exit code."""
    is_measured = config.run.processes == "auto" and not is_joined()
    with display.spinner("Measuring whether threads or processes are faster") if is_measured else nullcontext():
        num_processes = processes_to_start(config, is_resumed, warn=display.show_warning)
    if num_processes > 1:
        return launch(num_processes, sys.argv[1:])
    stop = _StopRequest()
    with ExitStack() as stack:
        with display.activities() as activity:
            pretraining = stack.enter_context(Pretraining(config, stop.is_set, activity=activity))
        stop.listen()  # only now, since before this there is nothing to save
        is_main = pretraining.group.is_main
        if pretraining.finished and is_main:
            display.err.print(pretraining.finished, markup=False)
        is_shown = is_main and not pretraining.finished
        with TrainingDisplay(pretraining) if is_shown else nullcontext() as shown:
            stop.shown = shown
            run = run_to_the_end(pretraining, [shown.update] if shown else [])
    if is_main:
        _show(run, pretraining.config, as_json)
    return EXIT_STOPPED if run.was_stopped else 0


def _show(run: Run, config: Config, as_json: bool) -> None:
    """Print the result of a run, and how to go on with one that was stopped, which a terminal's result says itself."""
    show_result(run, config)
    if as_json:
        typer.echo(json.dumps(run.as_json()))
    if run.was_stopped:
        again = f". Continue with: headrace train --resume {shlex.quote(str(run.folder))}"
        display.err.print(f"stopped and saved{'' if display.out.is_terminal else again}", markup=False)


class _StopRequest:
    """A request by signal to finish the step and save; a second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self._is_set = False
        self.shown: TrainingDisplay | None = None
        """What shows that the run is stopping."""

    def listen(self) -> None:
        on_stop_signals(self._set)

    def is_set(self) -> bool:
        return self._is_set

    def _set(self) -> None:
        self._is_set = True
        if self.shown is not None:
            self.shown.stop()
        end_on_second_interrupt()
