"""A process that predicts one run, so that what it leaves in memory does not count in the next prediction."""

from __future__ import annotations

import sys
from typing import Any

from headrace.instruments.prediction import predict_run
from headrace.machine.children import Child, answer_questions
from headrace.run.config import Config
from headrace.run.start.keys import given_sections
from headrace.run.start.settle import settled


def predict_apart(config: Config) -> dict[str, Any]:
    """Predict a run in a process of its own; return what `plan --json` prints."""
    with Child([sys.executable, "-m", "headrace.instruments.prediction_worker"]) as child:
        plan: dict[str, Any] = child.ask(given_sections(settled(config)))
    return plan


if __name__ == "__main__":
    answer_questions(lambda question: predict_run(Config.model_validate(question)).as_json(), count=1)
