"""The benchmarks' own workings: peers missing, failing and hanging; equal models, equal ids. Nothing is timed here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.bench.loaders import PEERS, LoaderOptions, bench_loaders
from headrace.bench.peer import Peer, begin, bench_corpus, choose_peers, run_peer
from headrace.bench.train import PEERS as TRAINERS
from headrace.bench.train import bench_config, bench_train
from headrace.data.corpus.sources import as_sources
from headrace.errors import ChildError, UsageError
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
PEER_FILES = sorted(Path(headrace.__file__).parent.glob("bench/peers/*/*.py"))


def say_nothing(peer: str, what: str) -> None:
    pass


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(make_text(200_000))
    return path


def test_peers_are_chosen_by_parts_of_their_names() -> None:
    assert [peer.name for peer in choose_peers(PEERS, ["grain"], ["processes"])] == ["grain-threads"]
    assert len(choose_peers(PEERS, [], ["headrace"])) == len(PEERS) - 2
    with pytest.raises(UsageError, match=r"'grian': no such peer\. Peers are headrace-cache"):
        choose_peers(PEERS, ["grian"], [])


def test_a_missing_peer_is_listed_with_its_install_line() -> None:
    result = begin(Peer("other", "other", "no-such-package"))
    assert (result.status, result.message) == ("missing", "pip install no-such-package")


def test_a_peer_that_fails_or_hangs_is_shown_and_the_others_go_on(text: Path) -> None:
    with bench_corpus(as_sources(str(text)), 0.2, "bpe:400") as corpus:
        broken = Peer("broken", "headrace.bench.peers.loaders.no_such_file", "headrace")
        options = LoaderOptions(batch_size=4, sequence_length=16, num_batches=2, step_ms=1, least_s=0.0)
        failed, ours = bench_loaders(corpus, [broken, PEERS[0]], options, say_nothing)
        assert failed.status == "failed" and "no_such_file" in failed.message
        assert ours.status == "ok" and ours.values["batches"] >= 2
        assert ours.values["same_order_after_restart"] and ours.values["same_order_with_other_workers"]
        assert ours.values["peak_memory_bytes"] >= 0 and ours.values["tokens_per_second"] > 0
        with pytest.raises(ChildError, match="took longer than 0 s"):
            run_peer(PEERS[0], "prepare", {"corpus": {}, "sequence_length": 1}, timeout_s=0)
    assert not Path(corpus.folder).exists()


def test_a_failure_in_the_middle_is_shown(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tires.py").write_text(
        "def batches(*_):\n    yield [[1, 2, 3]]\n    yield [[1, 2, 3]]\n    raise OSError('the third batch is gone')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(headrace.__file__).parents[1]}")
    with bench_corpus(as_sources(str(text)), 0.2, "bpe:400") as corpus:
        options = LoaderOptions(batch_size=1, sequence_length=2, num_batches=5, step_ms=1, least_s=0.0)
        (result,) = bench_loaders(corpus, [Peer("tires", "tires", "headrace")], options, say_nothing)
    assert (result.status, result.message) == ("failed", "OSError: the third batch is gone")


def test_raw_text_is_timed_over_a_whole_pass_and_work_is_told(command: Command, text: Path) -> None:
    arguments = ("--batch-size", 4, "--sequence-length", 16, "--num-batches", 1, "--step-ms", 1, "--megabytes", 0.2)
    code, out, told = command("bench", "loaders", text, *arguments, "--only", "headrace-text", "--json")
    result = json.loads(out.splitlines()[-1])["results"]["4"][0]
    assert code == 0 and result["status"] == "ok" and result["same_order_with_other_workers"]
    assert result["batches"] > 100
    assert "headrace-text: serves\n" in told


def test_equal_models_have_equal_losses(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.bench.train.measure_peak_flops", lambda: 1e11)  # nothing here is about it
    config = bench_config("demo")
    config.model.vocab_size = 400
    config.model.d_model, config.model.num_layers = 48, 1
    config.training.batch_size, config.training.max_length, config.model.context = 4, 32, 32
    with bench_corpus(as_sources(str(text)), 0.2, "bpe:400") as corpus:
        results = bench_train(corpus, TRAINERS[:2], config, num_steps=1, num_repeats=1, say=say_nothing)
    assert [result.status for result in results] == ["ok", "ok"], [result.message for result in results]
    assert all(result.values["same_losses"] for result in results)
    assert len({result.values["parameters"] for result in results}) == 1


def test_tokenizers_give_the_same_ids(command: Command, text: Path) -> None:
    arguments = ("--vocabulary", 400, "--megabytes", 0.2, "--json")
    code, out, _ = command("bench", "tokenize", text, *arguments, "--only", "headrace", "--only", "hf-tokenizers")
    assert code == 0
    assert any(line.startswith("hf-tokenizers ") and line.endswith(" yes") for line in out.splitlines()), "same ids"
    results = json.loads(out.splitlines()[-1])["results"]["400"]
    assert [result["peer"] for result in results] == ["headrace", "hf-tokenizers"]
    assert all(result["same_ids"] for result in results)


def test_wrong_usage_is_named(command: Command) -> None:
    for arguments, message in (
        (("loaders", "--batch-size", "12,x"), "--batch-size '12,x'"),
        (("loaders", "--only", "nobody"), "no such peer"),
        (("train", "--preset", "nobody"), "no such preset"),
        (("train", "--preset", "shakespeare-char"), "no vocabulary size"),
    ):
        code, _, error = command("bench", *arguments)
        assert code == 2 and message in error


@pytest.mark.parametrize("path", PEER_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_peer_is_at_most_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 70
