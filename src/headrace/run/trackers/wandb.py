"""Weights & Biases: online where the user is logged in, else files in the run directory for `wandb sync`."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from headrace.interop.extras import require
from headrace.run.trackers.tracker import PROJECT, TrackedRun, Tracker


class Wandb(Tracker):
    """A run of Weights & Biases, which obeys its own variables: WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and others."""

    def __init__(self, folder: Path) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        wandb = self._wandb
        settings = wandb.Settings(silent=True, console="off", disable_code=True, x_disable_stats=True)
        # Without a key wandb would ask for one, and wait for an answer.
        mode = None if "WANDB_MODE" in os.environ or wandb.login(prompt=False) else "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.name, id=run.identity, resume="allow",
            dir=str(run.folder), config=run.config, mode=mode, settings=settings,
        )  # fmt: skip

    def step(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def sample(self, step: int, text: str) -> None:
        self._run.log({"sample": self._wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step=step)

    def summary(self, values: dict[str, float]) -> None:
        self._run.summary.update(values)

    def end(self) -> None:
        self._run.finish()


TRACKER = Wandb
