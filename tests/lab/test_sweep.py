"""Sweeps of a tiny table: results, restart, claims, changed tables, failures, and models judged at one context."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import psutil
import pytest

from headrace.errors import HeadraceError, UsageError
from tests.conftest import make_text
from tests.lab.conftest import BENCHMARKS, TABLE, train_here

if TYPE_CHECKING:
    from lab.corpora import Library
    from lab.sweep import Sweep

Make = Callable[..., "Sweep"]


def test_a_table_becomes_runs_and_results(sweep: Make) -> None:
    from lab.results import write_results

    made = sweep()
    made.run()
    results = made.results()
    assert [(r["variant"], r["seed"], r["steps"]) for r in results] == [
        ("as it is", 0, 3), ("faster", 0, 3), ("as it is", 1, 3), ("faster", 1, 3),
    ]  # fmt: skip
    assert all(4 < result["bits_per_byte"] < 12 and result["num_bytes"] > 1000 for result in results)
    run = made.out / "faster--small--3-steps--seed-1"
    config = json.loads((run / "config.json").read_bytes())
    assert (config["training"]["learning_rate"], config["training"]["seed"]) == (0.01, 1)
    assert (run / "summary.json").exists() and (run / "checkpoints").is_dir()
    rows = write_results(made.out, made.table, results, {"a cell": "no memory"})
    text = (made.out / "results.md").read_text()
    assert "4 of 4 cells" in text and "| faster | 2 |" in text and "Failed: a cell: no memory" in text
    assert len((made.out / "results.csv").read_text().splitlines()) == 5
    assert json.loads((made.out / "results.json").read_bytes())["rows"][0]["mean"] == rows[0].mean
    drawn = ElementTree.parse(made.out / "results.svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4


def test_finished_cells_are_skipped_and_a_killed_one_is_taken_up_again(sweep: Make) -> None:
    trained: list[str] = []

    def train(config: Path, run: Path) -> None:
        trained.append(run.name)
        if len(trained) == 2:
            raise KeyboardInterrupt  # as if killed: nothing of the cell is finished
        train_here(config, run)

    with pytest.raises(KeyboardInterrupt):
        sweep(train, seeds=1).run()
    again = sweep(train, seeds=1)
    again.run()
    assert trained == ["as-it-is--small--3-steps--seed-0", *2 * ["faster--small--3-steps--seed-0"]]
    assert len(again.results()) == 2
    sweep(lambda config, run: pytest.fail("all cells are finished"), seeds=1).run()


def test_a_cell_killed_between_training_and_judging_is_not_trained_again(
    sweep: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab import cell

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    changes = {"seeds": 1, "variants": {"one": ""}}
    with monkeypatch.context() as patch:
        patch.setattr(cell, "judge", fail)
        with pytest.raises(KeyboardInterrupt):
            sweep(**changes).run()
    made = sweep(**changes)
    metrics = made.place(made.table.cells[0]).run / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    made.run()
    assert len(made.results()) == 1
    assert metrics.stat().st_mtime_ns == before


def test_a_cell_that_another_process_holds_is_left_to_it(sweep: Make) -> None:
    from lab import claims

    made = sweep(seeds=1)
    with claims.take(made.place(made.table.cells[0]).lab) or pytest.fail("the cell was free"):
        made.run(waits=False)
    assert [result["variant"] for result in made.results()] == ["faster"]


def test_a_changed_variant_is_not_taken_for_the_old_one(sweep: Make) -> None:
    sweep(seeds=1).run()
    changed = sweep(seeds=1, variants={"as it is": "", "faster": "learning_rate=0.02"})
    with pytest.raises(UsageError, match="made with another values"):
        changed.run()


def test_a_failed_cell_is_told_and_the_others_run(sweep: Make) -> None:
    def train(config: Path, run: Path) -> None:
        if run.name.startswith("as-it-is"):
            raise HeadraceError("no memory")
        train_here(config, run)

    made = sweep(train, seeds=1)
    made.run()
    assert made.failures == {"as-it-is--small--3-steps--seed-0": "no memory"}
    assert len(made.results()) == 1


def test_the_judge_is_refused_before_anything_runs(sweep: Make) -> None:
    made = sweep(lambda config, run: pytest.fail("refused"), corpora=["small", "secret"])
    with pytest.raises(UsageError, match="--final"):
        made.run()


def test_all_models_are_judged_at_the_longer_context(sweep: Make) -> None:
    variants = {"long": "", "short": "max_length=16", "learned": "arch=gpt2 max_length=16"}
    made = sweep(seeds=1, variants=variants)
    made.run()
    long, short, learned = made.results()
    assert [(r["context"], r["own_context"]) for r in (long, short, learned)] == [(32, 32), (32, 16), (16, 16)]
    assert long["num_bytes"] == short["num_bytes"] == learned["num_bytes"]
    assert long["own_bits_per_byte"] == long["bits_per_byte"]
    assert short["own_bits_per_byte"] != short["bits_per_byte"]
    assert "learned positions end at 16" in learned["note"] and not short["note"]


def test_models_can_be_judged_in_windows_of_their_own(sweep: Make) -> None:
    made = sweep(seeds=1, variants={"long": "", "short": "max_length=16"}, context="own")
    made.run()
    long, short = made.results()
    assert [(r["context"], r["own_context"]) for r in (long, short)] == [(32, 32), (16, 16)]
    assert short["own_bits_per_byte"] == short["bits_per_byte"]


def test_judging_agrees_with_plain_cross_entropy(sweep: Make) -> None:
    import numpy as np
    import torch
    from lab.judge import sum_losses
    from torch.nn.functional import cross_entropy

    from headrace.run.saved_model import load_trained

    made = sweep(seeds=1, variants={"one": ""})
    made.run()
    network = load_trained(made.place(made.table.cells[0]).run).network
    tokens = np.random.default_rng(0).integers(0, 256, 75)
    with torch.no_grad():
        expected = 0.0
        for start in (0, 32, 64):
            piece = torch.from_numpy(tokens[start : start + 33])
            logits = network.logits(network(piece[None, :-1]))
            expected += float(cross_entropy(logits[0], piece[1:], reduction="sum"))
    assert sum_losses(network, tokens, 32) == pytest.approx(expected, rel=1e-5)


def test_the_command_trains_in_processes_and_prints_json_last(
    tmp_path: Path, library: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    from lab.command import main

    table = tmp_path / "table.json"
    table.write_text(json.dumps({**TABLE, "seeds": 1, "variants": {"one": ""}}))
    places = [str(table), "--out", str(tmp_path / "out"), "--corpora", str(library.folder)]
    assert main(["run", *places]) == 0
    printed = capfd.readouterr().out.splitlines()
    assert json.loads(printed[-1])["finished"] == 1
    log = tmp_path / "out" / "one--small--3-steps--seed-0" / "lab" / "train.log"
    assert "3" in log.read_text()
    assert main(["list", *places]) == 0
    assert "one--small--3-steps--seed-0: " in capfd.readouterr().out


def test_a_training_process_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    from lab.cell import TrainingProcess

    config = tmp_path / "config.json"
    config.write_text(json.dumps({"data.sources": [str(tmp_path / "none.txt")], "run.out": str(tmp_path / "run")}))
    with pytest.raises(HeadraceError, match=r"no such file"):
        TrainingProcess()(config, tmp_path / "run")


def test_the_command_can_be_started_by_its_folder() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / "lab"), "corpora"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "debian-books" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_laboratory_leaves_no_process_and_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "shakespeare.txt").write_text(make_text(60_000))
    table = tmp_path / "table.json"
    budget = {"budgets": ["600 steps"], "corpora": ["shakespeare"], "seeds": 1, "variants": {"one": "save_every=5"}}
    table.write_text(json.dumps({**TABLE, **budget}))
    places = ["--out", tmp_path / "out", "--corpora", tmp_path / "corpora", "--texts", tmp_path]
    command = [sys.executable, BENCHMARKS / "lab", "run", table, *places]
    run = tmp_path / "out" / "one--shakespeare--600-steps--seed-0"
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_until(lambda: (run / "checkpoints" / "last").exists())
        [child] = psutil.Process(first.pid).children()
        first.send_signal(number)
        assert first.wait(30) == (3 if number == signal.SIGTERM else -signal.SIGKILL)
    finally:
        first.kill()
        first.wait()
    _wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["finished"] == 1
    assert "resuming from step" in (run / "lab" / "train.log").read_text()


def _wait_until(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.02)
