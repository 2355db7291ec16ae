"""Train: a configuration in, a run directory and its summary out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.distributed.launch import is_joined
from headrace.instruments.processes import best_processes
from headrace.run.agreement import check_batch_size
from headrace.run.config import Config, Layers
from headrace.run.presets import FIRST_RUN
from headrace.run.pretraining import Pretraining
from headrace.run.records import Run
from headrace.run.start.budget import is_open
from headrace.training.loop import StepInfo
from headrace.training.showing.windows import BatchStream

Hook = Callable[[StepInfo], None]


def train(
    config: Config | dict[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    batches: BatchStream | None = None,
    **overrides: Any,
) -> Run:
    """Train a model from Python, as `headrace train` does from the command line; `hooks` are called after every step.

    `batches` is a stream of batches to use instead of the loader's, such as `interop.grain.GrainBatches`; the tokenizer
    and the validation text still come from the `data` section of the configuration. Give their length as
    training.max_length, because the model is evaluated in windows of that many tokens.

    >>> run = train({"data": {"sources": ["corpus.txt"]}, "training": {"max_minutes": 5}})   # doctest: +SKIP
    >>> run = train(**{"training.max_steps": 100})                                            # doctest: +SKIP
    """
    if not isinstance(config, Config):
        layers = Layers()
        if not config and not overrides:
            layers.add(FIRST_RUN, "no text is named")
        layers.add(config or {}, "the call")
        layers.add(overrides, "the call")
        config = layers.build()
    with Pretraining(config, batches=batches) as pretraining:
        return run_to_the_end(pretraining, hooks)


def run_to_the_end(pretraining: Pretraining, hooks: Iterable[Hook] = ()) -> Run:
    """Take all steps of a run, calling the hooks after each, and return its summary."""
    hooks = list(hooks)
    for info in pretraining.steps():
        for hook in hooks:
            hook(info)
    return pretraining.run


def processes_to_start(config: Config, is_resumed: bool, warn: Callable[[str], None]) -> int:
    """Return the number of processes that a command has to start; 1 to train in this process."""
    if is_joined():  # a launcher has started all processes already, and this is one of them
        return 1
    processes = config.run.processes
    number = best_processes(config, warn) if processes == "auto" else processes
    if not is_resumed and not is_open(
        config
    ):  # a resumed run takes smaller micro-batches; an open batch is chosen to fit
        check_batch_size(config, number)
    return number
