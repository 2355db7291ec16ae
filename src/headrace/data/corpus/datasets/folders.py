"""Folders that `save_to_disk` of Hugging Face datasets wrote: which Arrow files they list, and which splits they hold.

FOLDER/state.json            a dataset: the names of its Arrow files, in order
FOLDER/dataset_dict.json     several: the names of the splits, each a folder of a dataset
"""

from __future__ import annotations

import json
import os
from typing import Any

from headrace.data.corpus.datasets.objects import choose_split
from headrace.errors import CorpusError

STATE = "state.json"
SPLITS = "dataset_dict.json"
DESCRIPTIONS = frozenset([STATE, SPLITS, "dataset_info.json"])
"""Files beside the Arrow files, which are no text."""
VALIDATION_SPLITS = ("validation", "valid", "val", "dev")
_MOST_BYTES = 16 << 20


def saved_files(folder: str) -> list[str] | None:
    """Return the Arrow files of a saved dataset, in order: of several splits, of the one that is trained on.

    None: the folder is no saved dataset. A file that is listed but gone is an error.
    """
    splits = saved_splits(folder)
    if splits:
        folder = os.path.join(folder, choose_split(splits, folder, os.path.join(folder, "{}")))
    files = _listed(os.path.join(folder, STATE))
    if files is None:
        if splits:
            raise CorpusError(f"{folder}: the split has no {STATE}. Save the dataset again, or name another split.")
        return None
    paths = [os.path.join(folder, name) for name in files]
    for path in paths:
        if not os.path.isfile(path):
            raise CorpusError(f"{path}: the dataset lists this file, but it is not there. Save the dataset again.")
    return paths


def saved_splits(folder: str) -> list[str]:
    """Return the splits of a saved DatasetDict; none: the folder is something else."""
    found = _read(os.path.join(folder, SPLITS))
    splits = found.get("splits") if isinstance(found, dict) else None
    if not isinstance(splits, list):
        return []
    return [name for name in splits if isinstance(name, str) and name == os.path.basename(name)]


def validation_split(folder: str) -> str:
    """Return the folder of the split that is kept for validation, if a saved DatasetDict has one; else "".

    An only split is trained on, whatever its name is.
    """
    splits = saved_splits(folder)
    if len(splits) < 2:
        return ""
    names = [name for name in VALIDATION_SPLITS if name in splits]
    return os.path.join(folder, names[0]) if names else ""


def _listed(path: str) -> list[str] | None:
    """Return the names of the Arrow files that a state lists; names that lead elsewhere are refused."""
    found = _read(path)
    files = found.get("_data_files") if isinstance(found, dict) else None
    if not isinstance(files, list) or not files:
        return None
    names = [facts.get("filename") if isinstance(facts, dict) else None for facts in files]
    for name in names:
        if not isinstance(name, str) or name != os.path.basename(name):
            raise CorpusError(
                f"{path}: lists {name!r:.80}, which is not a file of this folder. Save the dataset again."
            )
    return [name for name in names if isinstance(name, str)]


def _read(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
