"""Push: a trained model and its card to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import UsageError
from headrace.interop.hub import push_files
from headrace.interop.model_card import CardFacts, model_card
from headrace.run.directory import read_record
from headrace.run.records import Run
from headrace.run.resume import read_checkpoint_state
from headrace.run.start.find import find_checkpoint, name_of, run_of

MODEL_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
"""Files of a checkpoint that a user of the model needs; the optimizer's state stays at home."""


def push(run: Path, repo: str, licence: str, private: bool = False) -> str:
    """Upload the model of a run or a checkpoint with a card; return the address of the repository."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise UsageError(
            "push: give the licence of the model, as the hub spells it: --license mit, apache-2.0, cc-by-4.0, other, …"
            " headrace does not guess it: it is yours to choose, within what the licence of your text allows."
        )
    checkpoint = find_checkpoint(run)
    card = model_card(_facts(checkpoint, repo, licence))
    files: dict[str, bytes | Path] = {name: checkpoint / name for name in MODEL_FILES if (checkpoint / name).exists()}
    return push_files(repo, {"README.md": card.encode(), **files}, private, "Upload a model trained with headrace")


def _facts(checkpoint: Path, repo: str, licence: str) -> CardFacts:
    state = read_checkpoint_state(checkpoint)
    summary = read_record(run_of(checkpoint) / "summary.json", Run)
    is_of_this_step = summary is not None and summary.steps == state.position.step
    values = summary.as_json() if summary is not None else {}
    if not is_of_this_step:  # the run went on: its last losses are not those of this checkpoint
        values = {key: values[key] for key in ("corpus", "parameters", "tokens_per_second") if key in values}
    config, environment = state.config.model_dump(), state.environment.model_dump()
    position = state.position
    start = state.continues_from
    return CardFacts(
        name_of(checkpoint), repo, licence, config, position.step, position.tokens, values, environment,
        base_model=start.name.partition("@")[0] if start else "", is_base_public=bool(start and start.kind == "hub"),
    )  # fmt: skip
