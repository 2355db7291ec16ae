"""MLflow: the server that MLFLOW_TRACKING_URI names, else a database in the run directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headrace.interop.extras import require
from headrace.run.trackers.tracker import PROJECT, TrackedRun, Tracker

MOST_PARAMETERS = 100
"""Parameters that one request may hold."""
_IDENTITY_TAG = "headrace.run"


class MLflow(Tracker):
    """A run of MLflow, by its client, which leaves the active run of the program alone."""

    def __init__(self, folder: Path) -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        self._entities: Any = require("mlflow.entities", "mlflow")
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._client: Any = self._mlflow.MlflowClient(address)
        self._run_id = ""

    def begin(self, run: TrackedRun) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        place = (run.folder.resolve() / "mlflow").as_uri() if "MLFLOW_TRACKING_URI" not in os.environ else None
        experiment = found.experiment_id if found else self._client.create_experiment(name, artifact_location=place)
        before = self._client.search_runs([experiment], f"tags.`{_IDENTITY_TAG}` = '{run.identity}'")
        if before:
            self._run_id = before[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return
        opened = self._client.create_run(experiment, run_name=run.name, tags={_IDENTITY_TAG: run.identity})
        self._run_id = opened.info.run_id
        parameters = [self._entities.Param(key, value) for key, value in _flat(run.config).items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=parameters[start : start + MOST_PARAMETERS])

    def step(self, step: int, values: dict[str, float]) -> None:
        now_ms = time.time_ns() // 1_000_000
        metrics = [self._entities.Metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def sample(self, step: int, text: str) -> None:
        self._client.log_text(self._run_id, text, f"samples/step-{step:08}.txt")

    def summary(self, values: dict[str, float]) -> None:
        self.step(0, {f"summary.{name}": value for name, value in values.items()})

    def end(self) -> None:
        self._client.set_terminated(self._run_id)


def _flat(config: dict[str, Any]) -> dict[str, str]:
    """Return a configuration by dotted key, as text that is short enough for MLflow."""
    values: dict[str, str] = {}
    for section, keys in config.items():
        values |= {f"{section}.{name}": str(value)[:500] for name, value in keys.items()}
    return values


TRACKER = MLflow
