"""The Hugging Face hub: a model's files and its card, uploaded in one commit.

    push_files("me/shakespeare", {"README.md": b"...", "config.json": Path("config.json")}, private=True)

HF_ENDPOINT, HF_TOKEN and the login of `hf auth login` are used as all tools of the hub use them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, UsageError

ANSWER_S = 30.0
"""Time to wait for an answer of the hub, and for each part of an upload."""
_REASONS = {
    401: "you are not logged in, or the token is not valid. Log in with `hf auth login`, or set HF_TOKEN",
    403: "your token may not write there. Make one with write access, and check the owner's name",
    404: "no such owner or repository, or one that your token may not see",
}


def push_files(repo: str, files: Mapping[str, bytes | Path], private: bool, message: str) -> str:
    """Upload files to a model repository, which is made if there is none, in one commit; return its address.

    A failed upload leaves the repository's files as they were.
    """
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo, re.ASCII):
        raise UsageError(f"{repo}: not the name of a repository. Write OWNER/NAME, such as me/shakespeare.")
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_session
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # what goes wrong is one message of ours
    if not sys.stderr.isatty():
        disable_progress_bars()
    session = get_session()
    session.timeout = ANSWER_S  # its own is none: a hub that never answers would be waited for forever
    library: Any = import_module(type(session).__module__.partition(".")[0])
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        address = api.create_repo(repo, private=private, exist_ok=True)
        operations = [
            CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in files.items()
        ]
        api.create_commit(address.repo_id, operations, commit_message=message)
    except (library.HTTPError, OSError, ValueError, RuntimeError) as problem:
        raise HeadraceError(f"{repo}: not uploaded: {_reason(problem, constants.ENDPOINT)}.") from None
    return str(address)


def _reason(problem: Exception, endpoint: str) -> str:
    """Say in one line why an upload failed, and what to do."""
    while isinstance(problem, RuntimeError) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__  # the reason why a file could not be uploaded
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if status in _REASONS:
        return f"the hub answers {status}: {_REASONS[status]}"
    if status is not None:
        said = str(getattr(problem, "server_message", "") or "").strip().splitlines()
        return f"the hub answers {status}{': ' + said[0][:200] if said else ''}. Try again later"
    if isinstance(problem, ValueError):
        return str(problem).splitlines()[0][:200].rstrip(".")
    return f"{endpoint} cannot be reached or does not answer ({type(problem).__name__}). Nothing was changed there"
