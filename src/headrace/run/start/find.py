"""A model where one is expected: a run, a checkpoint in one, a folder that transformers saved, or a name of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headrace.data.tokens.extending import canonical
from headrace.data.tokens.tokenizer_json import make_backend, read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json
from headrace.errors import CheckpointError
from headrace.files import pointed_to
from headrace.interop.pretrained.files import HUB_NAME, FolderFiles, HubFiles
from headrace.interop.pretrained.model import Pretrained
from headrace.run.directory import read_json
from headrace.run.records import SavedModel
from headrace.run.resume import read_saved_model
from headrace.training.checkpoint import Checkpoints
from headrace.training.restore import STATE

TOKENIZER = "tokenizer.json"
OWN_FOLDER = "runs"
"""Where runs are by default: a name that begins with it is never one of the hub."""


@dataclass(frozen=True)
class FoundModel:
    """A model that was named, with its shape; its weights are read when they are asked for."""

    given: str
    """What the user named it by."""
    kind: str
    """run, folder or hub."""
    model: Pretrained
    checkpoint: Path | None = None
    """The checkpoint of a run, every file of which was checked."""
    saved: SavedModel | None = None
    """What the checkpoint of a run says of itself."""

    def tokenizer(self) -> Tokenizer | None:
        """Read the tokenizer of the model, as a checkpoint of ours would hold it; None if it has none."""
        path = self.model.files.find(TOKENIZER)
        if path is None:
            return None
        return canonical(from_json(self.given, read_tokenizer_file(path), self.model.files.where(TOKENIZER)))

    def read_tokenizer_text(self) -> str:
        """Return the tokenizer.json as it is."""
        path = self.model.files.find(TOKENIZER)
        return "" if path is None else read_tokenizer_file(path)


def find_model(given: str | Path) -> FoundModel:
    """Find a model by what a user names it: RUN, FOLDER, or OWNER/NAME on the hub."""
    name = given.as_posix() if isinstance(given, Path) else given
    path = Path(given).expanduser()
    if path.exists() and _is_foreign(path):
        return FoundModel(name, "folder", Pretrained(FolderFiles(path)))
    if not path.exists() and is_hub_name(name):
        return FoundModel(name, "hub", Pretrained(HubFiles(name)))
    checkpoint = find_checkpoint(path)
    saved = read_saved_model(checkpoint)
    return FoundModel(name, "run", Pretrained(FolderFiles(checkpoint), saved.config.model), checkpoint, saved)


def check_vocabulary(found: FoundModel, tokenizer_json: str, where: str = "") -> set[int]:
    """Return the ids of a tokenizer.json; one with more tokens than the model belongs to another model."""
    known = {int(index) for index in make_backend(tokenizer_json).get_vocab(with_added_tokens=True).values()}
    rows = found.model.config.vocab_size
    if max(known) >= rows:
        raise CheckpointError(
            f"{where or found.model.files.where(TOKENIZER)}: has ids up to {max(known):,}, and the model {found.given}"
            f" has {rows:,} tokens: the tokenizer belongs to another model. Give data.tokenizer the tokenizer.json that"
            " the model was trained with."
        )
    return known


def is_hub_name(name: str) -> bool:
    """Check whether a name that is no path here can be one of the hub: its first part is no folder of the user's."""
    owner = name.partition("/")[0]
    is_own = owner == OWN_FOLDER or owner.startswith(".") or Path(owner).exists()
    return bool(HUB_NAME.fullmatch(name)) and not is_own


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint at a path, or the best (else the last) checkpoint of the run at it."""
    if (path / STATE).exists():
        return path
    folder = path / "checkpoints"
    for name in ("best", "last"):
        if pointed_to(folder / name) is not None and (found := Checkpoints(folder).find(name)):
            return found
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such run. A model of the hub is named OWNER/NAME; make a run with: headrace train --out {path}"
        )
    raise CheckpointError(f"{path}: no checkpoint here yet. Wait until the run has saved one.")


def run_of(checkpoint: Path) -> Path:
    """Return the run directory of a checkpoint; the checkpoint itself where it lies by itself."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint


def name_of(folder: Path) -> str:
    """Return the name of a checkpoint's run, or of a folder, as a file or a model can be called."""
    return file_name(run_of(folder.resolve()).name)


def file_name(name: str) -> str:
    """Return a name without what a file name should not have."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-") or "model"


def _is_foreign(path: Path) -> bool:
    """Check whether a folder holds a model that headrace did not train: no run directory, and no checkpoint."""
    if not path.is_dir() or (path / STATE).exists() or (path / "checkpoints").exists():
        return False
    values = read_json(path / "config.json")
    if isinstance(values, dict) and "training" in values:  # the configuration of a run that has not saved yet
        return False
    return values is not None or any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
