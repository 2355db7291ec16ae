"""Repositories of the Hugging Face hub, by huggingface_hub's own file system, which has the user's token.

What is listed is pinned to the commit that it was listed at, so files cannot change while they are read; and the
version of a file is the hash of its content, so a commit that changes another file changes nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.data.corpus.remote.failures import failure_of
from headrace.data.corpus.remote.patience import current_patience
from headrace.data.corpus.remote.store import CHANGED, Entry, Failure, Store
from headrace.extras import require

_FORM = "An address is hf://datasets/OWNER/NAME/PATH, or hf://datasets/OWNER/NAME@REVISION/PATH"


class HubStore(Store):
    """The hub."""

    def __init__(self, _: str) -> None:
        self._hub = require("huggingface_hub", "remote")
        self._errors = require("huggingface_hub.errors", "remote")
        # Its own client waits for an answer for ever.
        require("huggingface_hub.utils", "remote").get_session().timeout = current_patience().stall_s
        self._system = self._hub.HfFileSystem(skip_instance_cache=True)
        self._commits: dict[Entry, str] = {}
        """The repository, at the commit that each file was listed at: of one repository there may be several."""

    def look_up(self, key: str) -> Entry | None:
        try:
            root, path = self._at_commit(key)
            facts = self._system.info(f"{root}{path}")
        except (FileNotFoundError, self._errors.EntryNotFoundError):
            return None
        except Exception as problem:
            raise failure_of(problem) from None
        return self._pin(_entry(key, facts), root) if facts["type"] == "file" else None

    def list(self, folder: str) -> Iterator[Entry]:
        try:
            root, path = self._at_commit(folder.rstrip("/"))
            found = self._system.find(f"{root}{path}", detail=True)
        except (FileNotFoundError, self._errors.EntryNotFoundError):
            return
        except Exception as problem:
            raise failure_of(problem) from None
        for name, facts in found.items():
            yield self._pin(_entry(folder + name[len(root) + len(path) :].lstrip("/"), facts), root)

    def read(self, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
        if entry not in self._commits and self.look_up(entry.key) != entry:  # listed by another process
            raise CHANGED
        path = "/".join([self._commits[entry], *entry.key.split("/")[3:]])
        try:
            data = self._system.cat_file(path, start=begin, end=end, cache_type="none")
        except Exception as problem:
            raise failure_of(problem) from None
        if len(data) != end - begin:
            raise Failure("the hub sent fewer bytes than the file has", may_pass=True)
        yield bytes(data)

    def _pin(self, entry: Entry, root: str) -> Entry:
        """Remember the commit that a file is to be read at."""
        self._commits[entry] = root
        return entry

    def _at_commit(self, key: str) -> tuple[str, str]:
        """Return the repository of a key at the commit that it is at now, and the path within it."""
        parts = key.split("/")
        if len(parts) < 3 or parts[0] not in ("datasets", "models", "spaces") or not all(parts[:3]):
            raise Failure(f"not an address of the hub ({_FORM})")
        return self._commit_of(parts[0], parts[1], parts[2]), "".join(f"/{part}" for part in parts[3:])

    def _commit_of(self, kind: str, owner: str, name: str) -> str:
        name, _, revision = name.partition("@")
        try:
            facts = self._hub.HfApi().repo_info(
                f"{owner}/{name}",
                repo_type=kind.removesuffix("s"),
                revision=revision.replace("%2F", "/") or None,
                timeout=current_patience().stall_s,
            )
        except self._errors.RevisionNotFoundError:
            raise Failure(f"the repository has no revision {revision!r}", "Check the address") from None
        except self._errors.GatedRepoError:
            raise Failure(
                "access must be asked for on the hub", "Ask for it on its page there, then `hf auth login`"
            ) from None
        except self._errors.RepositoryNotFoundError:
            raise Failure(
                "there is no such repository on the hub, or it is private",
                "Check the address; for a private one: `hf auth login`, or set HF_TOKEN",
            ) from None
        prefix = "" if kind == "models" else f"{kind}/"
        return f"{prefix}{owner}/{name}@{facts.sha}"


def _entry(key: str, facts: Any) -> Entry:
    large = facts.get("lfs")
    content = (large.sha256 if large else None) or facts.get("xet_hash") or facts.get("blob_id") or ""
    return Entry(key, int(facts["size"]), f"content {content}")
