"""The files of a run directory as typed records: every field that is written, and that a reader may find.

The loop, the display, TensorBoard, reports, `generate`, `--resume` and the tests all use these. Fields that an older
version did not write have a default, names that it wrote differently are read, and fields of a newer one are ignored.
docs/run-directory.md lists the fields with the sentences that stand under them here.
"""

from __future__ import annotations

from headrace.run.records.checkpoint import CheckpointState, SavedModel, upgraded_config
from headrace.run.records.corpus import Chunking, CorpusRecord, MixtureRecord, Vocabulary
from headrace.run.records.environment import Environment
from headrace.run.records.overfitting import Overfitting
from headrace.run.records.record import Figure, Record, StageSeconds
from headrace.run.records.start import StartRecord
from headrace.run.records.step import StepRecord
from headrace.run.records.summary import Run
from headrace.run.records.tuning import FindingRecord, TuningRecord

__all__ = [
    "CheckpointState",
    "Chunking",
    "CorpusRecord",
    "Environment",
    "Figure",
    "FindingRecord",
    "MixtureRecord",
    "Overfitting",
    "Record",
    "Run",
    "SavedModel",
    "StageSeconds",
    "StartRecord",
    "StepRecord",
    "TuningRecord",
    "Vocabulary",
    "upgraded_config",
]
