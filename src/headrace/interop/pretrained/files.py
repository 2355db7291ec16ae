"""The files of a model: in a folder, or in a repository of the Hugging Face hub, each of which comes when asked for.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are used as all tools of the hub use them.
"""

from __future__ import annotations

import logging
import re
import sys
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.data.tokens.tokenizers import knock
from headrace.errors import HeadraceError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
"""OWNER/NAME, or OWNER/NAME@REVISION for a branch, a tag or a commit."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "consolidated.00.pth")


class ModelFiles(ABC):
    """The files of one model, found by name."""

    name: str
    """The model as the user named it."""
    kind: str
    """folder or hub."""
    revision: str = ""
    """Commit of a repository of the hub; empty for a folder."""

    @abstractmethod
    def find(self, file: str) -> Path | None:
        """Return a file on this disk; None if the model has no such file."""

    def has(self, file: str) -> bool:
        """Check whether the model has a file, without downloading it."""
        return self.find(file) is not None

    def where(self, file: str) -> str:
        """Name a file in a message."""
        return f"{self.name}/{file}"


class FolderFiles(ModelFiles):
    """The files of a folder."""

    kind = "folder"

    def __init__(self, folder: Path) -> None:
        self.name, self._folder = str(folder), folder

    def find(self, file: str) -> Path | None:
        path = self._folder / file
        return path if path.is_file() else None


class HubFiles(ModelFiles):
    """The files of a repository of the hub, all of one commit; downloaded into the hub's own cache."""

    kind = "hub"

    def __init__(self, name: str) -> None:
        self.name = name
        self._repo, _, revision = name.partition("@")
        self._is_online = _can_be_reached()
        self.revision = revision
        config = self.find("config.json")
        if config is not None and config.parent.parent.name == "snapshots":
            self.revision = config.parent.name  # the others come from the same commit, whatever is pushed meanwhile

    def find(self, file: str) -> Path | None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        session: Any = import_module("huggingface_hub").get_session()
        errors: Any = import_module(type(session).__module__.partition(".")[0])
        try:
            return Path(
                hf_hub_download(self._repo, file, revision=self.revision or None, local_files_only=not self._is_online)
            )
        except LocalEntryNotFoundError as problem:
            if self._is_online:
                raise self._failed(file, problem) from None
            if file != "config.json":  # nobody can say whether there is one
                return None
            raise self._failed(file, problem) from None
        except EntryNotFoundError:
            return None
        except (errors.HTTPError, OSError, ValueError, RuntimeError) as problem:
            raise self._failed(file, problem) from None

    def has(self, file: str) -> bool:
        from huggingface_hub import HfApi, constants

        try:
            api = HfApi(endpoint=constants.ENDPOINT)
            return self._is_online and api.file_exists(self._repo, file, revision=self.revision or None)
        except Exception:  # whatever its client raises: this only chooses between two messages
            return False

    def _failed(self, file: str, problem: Exception) -> HeadraceError:
        from huggingface_hub import constants

        return HeadraceError(f"{self.name}: {file} not downloaded: {_reason(problem, constants.ENDPOINT)}.")


def _can_be_reached() -> bool:
    """Return whether the hub can be asked; fail at once where it cannot, and say nothing but our own messages."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        disable_progress_bars()
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        knock(constants.ENDPOINT)
    except OSError:
        return False
    return True


def _reason(problem: Exception, endpoint: str) -> str:
    """Say in one line why a file could not be had, and what to do."""
    chain: BaseException | None = problem
    while chain is not None:
        status = getattr(getattr(chain, "response", None), "status_code", None)
        if status in (401, 403, 404):
            return (
                f"the hub answers {status}: no such public repository or revision, or one that asks you to log in"
                " (`hf auth login`, or set HF_TOKEN) or to accept its terms on its page"
            )
        if status is not None:
            return f"the hub answers {status}. Try again later"
        chain = chain.__cause__ or chain.__context__
    if isinstance(problem, ValueError):
        return str(problem).splitlines()[0][:200].rstrip(".")
    if isinstance(problem, OSError) and problem.errno is not None and problem.strerror:
        return f"{problem.strerror}"
    return (
        f"it is not in the local hub cache, and {endpoint} cannot be reached or does not answer"
        f" ({type(problem).__name__})"
    )
