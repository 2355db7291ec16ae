"""The mixture of a run: schedules counted in steps, changes from a step on, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.run.config import Layers
from headrace.run.pretraining import Pretraining
from tests.conftest import make_text
from tests.run.tiny_run import fresh_corpus, losses, settings

Command = Callable[..., tuple[int, str, str]]
CHANGE = {"run.resume": True, "data.mixture_from": 8}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fresh_corpus(tmp_path, monkeypatch)
    for number, name in enumerate("abc"):
        (tmp_path / f"{name}.txt").write_text(make_text(12_000, seed=number))
    return tmp_path


def sources(texts: Path, **weights: Any) -> list[dict[str, Any]]:
    return [{"path": str(texts / f"{name}.txt"), "name": name, "weight": weight} for name, weight in weights.items()]


def run(texts: Path, out: str, given: Any, stop: int = 99, **changes: Any) -> list[str]:
    """Train until a step; return the notices."""
    values = {**settings(texts / "corpus.txt", texts / out), "data.tokenizer": "bpe:300", **changes}
    del values["data.cache_dir"]
    layers = Layers()
    layers.add({**values, "data.sources": given}, "the test")
    with Pretraining(layers.build(), should_stop=lambda: pretraining.loop.position.step >= stop) as pretraining:
        for _ in pretraining.steps():
            pass
    return pretraining.notices


def data_of(texts: Path, out: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((texts / out / "config.json").read_text())["data"]
    return data


def test_percentages_become_steps_that_a_longer_run_keeps(texts: Path, command: Command) -> None:
    run(texts, "run", sources(texts, a={0: 0.9, "50%": 0.1}, b={0: 0.1, "384 tokens..100%": 0.9}))
    assert [source["weight"] for source in data_of(texts, "run")["sources"]] == [
        {"0": 0.9, "6": 0.1},
        {"0": 0.1, "3..12": 0.9},
    ]
    code, out, err = command("train", "--resume", texts / "run", "training.max_steps=20", "--json")
    assert code == 0, err
    rows = json.loads(out.splitlines()[-1])["rows_by_source"]
    assert sum(rows.values()) == 20 * 4
    assert rows["b"] > rows["a"]
    assert command("report", texts / "run", "--markdown")[0] == 0
    report = (texts / "run" / "report.md").read_text()
    assert "| weight | 0.9 → 0.1 at step 6 | 0.1 → 0.9 from step 3 to 12 |" in report
    assert f"| rows in 20 steps | {rows['a']} | {rows['b']} |" in report
    ledgers = json.loads((texts / "run" / "ledger.json").read_text())
    assert [ledger["source"] for ledger in ledgers] == ["a", "b"]
    assert all(part["trained"] + part["carried"] + part["dropped"] == part["tokens"] for part in ledgers)


def test_a_changed_run_is_exact_however_often_it_is_interrupted(texts: Path) -> None:
    """A source is added and all weights change at step 8; the run stops before, at and after it."""
    old, new = sources(texts, a=0.7, b=0.3), sources(texts, c={0: 1, 10: 5}, a=0.5, b=0.2)
    run(texts, "old", old, stop=4)
    for name in ("unbroken", "broken"):
        shutil.copytree(texts / "old", texts / name, symlinks=True)
    run(texts, "old", old, **{"run.resume": True})
    notices = run(texts, "unbroken", new, **CHANGE)
    assert "from step 8 on, the mixture is a 0.5; b 0.2; c 1 → 5 at step 10" in notices
    for stop in (6, 8, 9, 99):
        again = CHANGE if stop == 6 else {"run.resume": True, **saved_data(texts, "broken")}
        run(texts, "broken", again.pop("data.sources", new), stop, **again)
    assert losses(texts / "broken") == losses(texts / "unbroken")
    assert losses(texts / "unbroken")[:8] == losses(texts / "old")[:8]
    assert losses(texts / "unbroken")[8:] != losses(texts / "old")[8:]
    recorded = data_of(texts, "unbroken")
    assert [source["name"] for source in recorded["sources"]] == ["a", "b", "c"], "sources of the run keep their places"
    assert recorded["mixture_from"] == 8
    assert recorded["earlier_mixtures"] == [{"until": 8, "weights": [0.7, 0.3]}]
    assert recorded == data_of(texts, "broken")
    corpus = json.loads((texts / "unbroken" / "corpus.json").read_text())
    assert corpus["mixture"]["earlier"] == [{"until": 8, "weights": [0.7, 0.3]}]
    summary = json.loads((texts / "unbroken" / "summary.json").read_text())
    assert list(summary["validation_loss_by_source"]) == ["a", "b", "c"]


def saved_data(texts: Path, out: str) -> dict[str, Any]:
    """The mixture as `--resume` reads it from config.json."""
    data = data_of(texts, out)
    return {f"data.{key}": data[key] for key in ("sources", "weights", "mixture_from", "earlier_mixtures")}


def test_the_same_change_asked_for_again_is_the_same_run(texts: Path) -> None:
    """A job script that is started again after every interruption asks for the change each time."""
    old, new = sources(texts, a=0.7, b=0.3), sources(texts, a=0.1, b=0.9)
    run(texts, "run", old, stop=4)
    run(texts, "run", new, stop=10, **CHANGE)
    assert run(texts, "run", new, **CHANGE)[0].startswith("resuming from step 10")
    assert data_of(texts, "run")["earlier_mixtures"] == [{"until": 8, "weights": [0.7, 0.3]}]


def test_a_change_that_leaves_a_source_out_can_be_asked_for_again(texts: Path) -> None:
    run(texts, "run", sources(texts, a=0.7, b=0.3), stop=4)
    for stop in (10, 99):
        run(texts, "run", sources(texts, b=1), stop, **CHANGE)
    assert data_of(texts, "run")["earlier_mixtures"] == [{"until": 8, "weights": [0.7, 0.3]}]
    with pytest.raises(UsageError, match="steps already"):
        run(texts, "run", sources(texts, a=1), **CHANGE)


def test_a_change_that_has_not_come_yet_is_replaced_and_one_that_has_is_kept(texts: Path) -> None:
    run(texts, "run", sources(texts, a=1, b=1), stop=2)
    for step, weight in ((8, 5), (6, 7), (10, 9)):
        run(texts, "run", sources(texts, a=weight, b=1), 4, **{"run.resume": True, "data.mixture_from": step})
    assert data_of(texts, "run")["earlier_mixtures"] == [
        {"until": 6, "weights": [1.0, 1.0]},
        {"until": 10, "weights": [7.0, 1.0]},
    ]


def test_one_text_goes_on_with_another(texts: Path) -> None:
    run(texts, "run", [str(texts / "a.txt")], stop=4)
    run(texts, "run", [str(texts / "b.txt")], **CHANGE)
    recorded = data_of(texts, "run")
    assert [source["weight"] for source in recorded["sources"]] == [0.0, 1.0]
    assert recorded["earlier_mixtures"] == [{"until": 8, "weights": None}]
    summary = json.loads((texts / "run" / "summary.json").read_text())
    assert list(summary["rows_by_source"].values()) == [32, 16]


def test_what_a_run_refuses_of_mixtures_changes_nothing(texts: Path, command: Command) -> None:
    run(texts, "run", sources(texts, a=0.7, b=0.3), stop=4)
    before = (texts / "run" / "config.json").read_bytes()
    for arguments, complaint in (
        (["data.mixture_from=3", "data.weights={a: 1}"], "has trained 4 steps already"),
        (["data.mixture_from=3", "data.weights={a: 1}"], "Use data.mixture_from=4 or a later step"),
        (["data.weights={a: 1}"], "change them from a step on: data.mixture_from=4"),
        (["data.mixture_from=9"], "the mixture of the run is this already"),
        (["data.mixture_from=9", "data.weights={aa: 1}"], "no source 'aa'. Did you mean 'a'?"),
        (["data.mixture_from=9", "data.weights={a: -1}"], "-1 is not a weight"),
        (["data.mixture_from=9", "data.weights={a: .nan}"], "nan is not a weight"),
        (["data.mixture_from=9", "data.weights={a: 0, b: 0}"], "weights of all sources are 0 at step 0"),
        (["data.mixture_from=9", "data.weights={a: {0: 1, 9: 2, 5: 1}}"], "'5' comes after '9' in the schedule"),
        (["data.mixture_from=-1"], "data.mixture_from: -1"),
    ):
        code, _, err = command("train", "--resume", texts / "run", *arguments)
        assert code == 2, err
        assert complaint in " ".join(err.split()), err
    assert (texts / "run" / "config.json").read_bytes() == before
    with pytest.raises(UsageError, match="this one begins"):
        run(texts, "new", sources(texts, a=1, b=1), **{"data.mixture_from": 5})
    with pytest.raises(UsageError, match="needs a run whose number of steps is set"):
        limits = {"training.max_steps": 0, "training.max_minutes": 1}
        run(texts, "new", sources(texts, a={"50%": 1}, b=1), **limits)
