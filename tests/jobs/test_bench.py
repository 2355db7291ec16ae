"""The bench job: what it tells while it runs, and the record it returns. Nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench import tokenize
from headrace.bench.peer import Peer, Result
from headrace.errors import UsageError
from headrace.jobs.bench import Contest, bench_record, compare_tokenizers
from tests.conftest import make_text


def test_a_missing_peer_is_told_at_once_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(make_text(20_000))
    monkeypatch.setattr(tokenize, "PEERS", [Peer("absent", "absent", "no-such-package"), Peer("other", "x", "y")])
    said: list[tuple[str, str]] = []
    contest = Contest([str(tmp_path / "text.txt")], 0.1, [], ["other"], lambda *what: said.append(what))
    results = compare_tokenizers(contest, 300)
    assert said == [("absent", "missing: pip install no-such-package")]
    record = json.loads(json.dumps(bench_record("tokenize", {"vocabulary": 300}, {"300": results})))
    assert record["benchmark"] == "tokenize"
    assert record["command_options"] == {"vocabulary": 300}
    assert record["results"] == {"300": [Result("absent", "", "missing", "pip install no-such-package").as_json()]}
    assert record["machine"]["cores"] > 0


def test_peers_are_chosen_before_any_text_is_made() -> None:
    with pytest.raises(UsageError, match="'nobody': no such peer"):
        compare_tokenizers(Contest(["no-such-file.txt"], 1.0, ["nobody"], [], lambda *_: None), 300)
