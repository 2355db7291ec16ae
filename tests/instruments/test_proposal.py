"""Proposals: short runs are few and bounded, what is given stays, and the config that is written can be trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headrace.errors import CorpusError, UsageError
from headrace.instruments import proposal as room
from headrace.instruments.short_run import ShortRun
from headrace.jobs.plan import write_plan
from headrace.models.counts import count
from headrace.perf.loss_law import Exposure, Law
from headrace.run.config import Config, Layers
from headrace.run.config_files import read_config_file
from headrace.run.start import candidates
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus.txt").write_text(make_text(400_000))
    return tmp_path / "corpus.txt"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Short runs that take no time: what the law says, at 10 GFLOP/s."""
    seen: list[Config] = []

    def pretend(config: Config, seconds: float, train_bytes: float, _before: ShortRun | None, _: int) -> ShortRun:
        seen.append(config)
        counts = count(config.model, config.training.max_length)
        per_token = counts.training_flops_per_token / 1e10
        vocab_size, tokens = config.model.vocab_size, seconds / per_token
        exposure = Exposure(counts.num_parameters, counts.block_weights, vocab_size, tokens, train_bytes / 3, 3.0)
        return ShortRun(
            config, exposure, per_token, 0.1, Law().bits_per_byte(exposure) + 0.2, "float32", "default", "fused"
        )

    monkeypatch.setattr(room, "train_briefly", pretend)
    return seen


def given(corpus: Path, **values: Any) -> Layers:
    layers = Layers()
    layers.add({"data.sources": [str(corpus)], **values}, "test")
    return layers


def test_a_proposal_is_whole_and_says_what_it_assumed(corpus: Path, tried: list[Config]) -> None:
    proposal = room.propose(given(corpus), minutes=5)
    config = proposal.config
    *first, last = tried
    assert 2 <= len(first) <= room.MOST_RUNS
    assert len({config.model_dump_json() for config in first}) == len(first), "nothing is tried twice"
    assert last.model == config.model, "the one that seems best is trained for longer in the end"
    assert proposal.interval[0] < proposal.prospect.bits_per_byte < proposal.interval[1]
    assert max(proposal.runs, key=lambda run: run.exposure.tokens) is proposal.runs[-1]
    assert config.training.max_minutes == 5
    assert config.data.tokenizer in {config.data.tokenizer for config in tried}
    assert config.model.num_heads
    assert config.model.d_ff
    assert config.model.context == config.training.max_length
    assert proposal.as_json()["tokens"] == pytest.approx(proposal.prospect.exposure.tokens, abs=1)
    assert any("short runs" in text for text in proposal.assumptions)
    assert any("times" in text for text in proposal.assumptions), "the small corpus repeats"


def test_a_proposal_says_that_other_programs_were_in_the_way(
    corpus: Path, tried: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("disturbed" in text for text in room.propose(given(corpus), minutes=5).assumptions)
    quiet = room.train_briefly
    monkeypatch.setattr(room, "train_briefly", lambda *arguments: replace(quiet(*arguments), taken_percent=33.0))
    assert any("up to 33% of the processor" in text for text in room.propose(given(corpus), minutes=5).assumptions)


def test_a_proposal_has_the_recipe_for_its_epochs(
    corpus: Path, tried: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    proposal = room.propose(given(corpus), minutes=60)
    training = proposal.config.training
    assert training.num_epochs > 10, "the corpus is small"
    assert proposal.prospect.exposure.epochs == pytest.approx(training.num_epochs, rel=0.05), "what it says, it does"
    assert training.dropout > 0 and training.weight_decay > 0.1
    assert (training.max_length, training.short_windows) == (512, 256)
    kept = room.propose(given(corpus, **{"training.dropout": 0, "training.num_epochs": 5}), minutes=60)
    assert (kept.config.training.dropout, kept.config.training.num_epochs) == (0, 5)
    assert kept.prospect.exposure.epochs == pytest.approx(5)


def test_a_mixture_does_not_end_before_its_time(corpus: Path, tried: list[Config]) -> None:
    (corpus.parent / "other.txt").write_text(make_text(20_000))
    sources = [{"path": str(corpus), "weight": 1}, {"path": str(corpus.parent / "other.txt"), "weight": 1}]
    proposal = room.propose(given(corpus, **{"data.sources": sources}), minutes=60)
    assert proposal.config.training.num_epochs == 0


def test_text_of_its_own_to_validate_on_leaves_all_of_the_corpus(corpus: Path, tried: list[Config]) -> None:
    apart = room.Search(given(corpus, **{"data.validation_sources": [str(corpus)]}), minutes=5)
    assert apart.train_bytes == corpus.stat().st_size


def test_a_plan_names_sources_that_are_found_from_anywhere(
    corpus: Path, tried: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(corpus.parent))
    proposal = room.propose(given(corpus), minutes=5)
    named = ["~/corpus.txt", "s3://bucket/text", {"path": "~/corpus.txt", "weight": 1}]
    proposal.config.data.sources = named
    write_plan(proposal, corpus.parent / "plan.yaml")
    written = yaml.safe_load((corpus.parent / "plan.yaml").read_text())["data"]["sources"]
    assert written == [str(corpus), "s3://bucket/text", {"path": str(corpus), "weight": 1}]


def test_batches_are_whole_micro_batches(corpus: Path, tried: list[Config]) -> None:
    config = room.propose(given(corpus, **{"training.micro_batch_size": 3}), minutes=5).config
    assert all(one.training.batch_size % 3 == 0 for one in (config, *tried))


def test_more_time_gives_a_larger_network(corpus: Path, tried: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "divide_corpus", lambda _: [type("Segment", (), {"nbytes": 10**10})])
    minute, day = (room.propose(given(corpus), minutes).prospect.exposure.parameters for minutes in (1, 1440))
    assert minute < day


@pytest.mark.parametrize("values", [{"model.context": 300}, {"training.batch_size": 5}, {"model.arch": "gpt2"}])
def test_sequences_suit_what_is_given(corpus: Path, tried: list[Config], values: dict[str, Any]) -> None:
    assert room.propose(given(corpus, **values), minutes=5).config.training.max_length == 256


def test_what_is_given_stays(corpus: Path, tried: list[Config]) -> None:
    values = {"model.d_model": 96, "training.batch_size": 5, "data.tokenizer": "byte", "training.max_length": 32}
    config = room.propose(given(corpus, **values), minutes=5).config
    assert (config.model.d_model, config.training.batch_size, config.training.max_length) == (96, 5, 32)
    assert config.data.tokenizer == "byte"
    assert all(one.model.d_model == 96 for one in tried)


def test_short_runs_learn_at_the_rate_of_a_given_width(corpus: Path, tried: list[Config]) -> None:
    room.propose(given(corpus, **{"model.d_model": 512, "model.num_layers": 2}), minutes=5)
    assert {one.training.learning_rate for one in tried} == {0.003}


@pytest.mark.parametrize("key", ["training.dropout", "model.arch", "model.context", "training.threads"])
def test_a_value_that_makes_no_sense_is_an_error_that_names_it(corpus: Path, tried: list[Config], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        room.propose(given(corpus, **{key: "nonsense"}), minutes=5)


def test_what_cannot_be_planned(corpus: Path, tried: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="num_heads 37 does not divide"):
        room.propose(given(corpus, **{"model.num_heads": 37}), minutes=5)
    monkeypatch.setattr(candidates, "available_memory_bytes", lambda: 1000)
    with pytest.raises(UsageError, match="fits both the memory"):
        room.propose(given(corpus), minutes=5)
    corpus.write_text("")
    with pytest.raises(CorpusError, match="empty"):
        room.propose(given(corpus), minutes=5)
    assert not tried


def test_the_command_writes_what_train_takes(command: Command, corpus: Path, tried: list[Config]) -> None:
    out = corpus.parent / "plan.yaml"
    code, printed, _ = command("plan", corpus, "--minutes", "5", "--out", out, "training.threads=1", "--json")
    assert code == 0
    result = json.loads(printed.splitlines()[-1])
    assert "headrace train" in printed
    assert "assumed" in printed
    layers = Layers()
    layers.add(read_config_file(out), str(out))
    config = layers.build()
    assert config.model.d_model == result["config"]["model"]["d_model"]
    assert config.data.sources == [str(corpus)]
    assert yaml.safe_load(out.read_text())["training"]["max_minutes"] == 5
    code, _, _ = command("train", out, "training.max_minutes=0.01", "--out", corpus.parent / "run")
    assert code == 0

    before = out.read_text()
    tried.clear()
    code, _, err = command("plan", corpus, "--minutes", "5", "--out", out)
    assert (code, tried) == (2, []), "refused before anything is tried"
    assert "exists already" in err
    assert out.read_text() == before
    code, _, err = command("plan", corpus, "--out", out)
    assert code == 2
    assert "--minutes" in err
