"""The survey ends soon when it is interrupted, also while it waits for a server."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.corpus.remote.patience import Patience, use_patience
from headrace.data.corpus.remote.registry import close_stores
from headrace.data.selection import survey
from tests.conftest import make_text
from tests.data.corpus.remote.web_server import Answer, Request, web_server


def test_an_interrupted_survey_does_not_wait_for_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="pip install 'headrace[remote]'")
    is_stalled = threading.Event()

    def stall(request: Request, answer: Answer) -> None:
        if request.is_for_data:
            answer.sent_bytes, answer.pause_s = 10, 30.0
            is_stalled.set()

    def interrupted(*_: object, **__: object) -> None:
        assert is_stalled.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(survey, "wait", interrupted)
    with web_server() as web, use_patience(Patience(attempts=2, stall_s=8.0)):
        web.files["/a.txt"] = make_text(5000).encode()
        web.trouble = stall
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            hr.prepare(f"{web.address}/a.txt", "byte", tmp_path / "cache", deduplicate="exact")
        assert time.monotonic() - began < 6
    close_stores()
