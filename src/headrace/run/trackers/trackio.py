"""Trackio: a local database that `trackio show` draws, or a Space of Hugging Face if TRACKIO_SPACE_ID names one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from headrace.interop.extras import require
from headrace.run.trackers.tracker import PROJECT, TrackedRun, Tracker


class Trackio(Tracker):
    """A run of Trackio. Its place is as Trackio's own variables say: TRACKIO_DIR, TRACKIO_PROJECT, TRACKIO_SPACE_ID."""

    def __init__(self, folder: Path) -> None:
        self._trackio: Any = require("trackio", "trackio")
        self._run: Any = None
        for module in (self._trackio, sys.modules["trackio.utils"], sys.modules["trackio.run"]):
            module.__dict__["print"] = _say_nothing  # stdout belongs to the result of the command

    def begin(self, run: TrackedRun) -> None:
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        # Without GPU and CPU figures of its own, which would need a further thread.
        self._run = self._trackio.init(
            project, f"{run.name}-{run.identity[:4]}", config=run.config, resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def step(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step)

    def sample(self, step: int, text: str) -> None:
        self._run.log({"sample": self._trackio.Markdown(f"```\n{text}\n```")}, step)

    def summary(self, values: dict[str, float]) -> None:
        self._run.log({f"summary/{name}": value for name, value in values.items()})

    def end(self) -> None:
        self._run.finish()


def _say_nothing(*_: object, **__: object) -> None:
    """Take the place of `print`."""


TRACKER = Trackio
