"""The regime of a run: the recipe follows from how often the text comes round, unless a key says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.distributed.group import ALONE, Group
from headrace.errors import UsageError
from headrace.jobs.train import run_to_the_end
from headrace.perf.loss_law import Exposure
from headrace.perf.pace import usual_pace
from headrace.run.config import Config
from headrace.run.corpus import open_training
from headrace.run.pretraining import Pretraining
from headrace.run.start import regime
from headrace.run.start.regime import RECIPE_KEYS, REGIMES, expected_tokens, regime_of, settle_recipe
from headrace.training.config import TrainingConfig
from headrace.training.schedule import Limits
from tests.conftest import make_text
from tests.run.tiny_run import configured, fresh_corpus

CORPUS = {"tokenizer": "byte", "bytes": 10_000 / 0.95}
DEFAULT = TrainingConfig().weight_decay


def settled(epochs: float, **training: Any) -> tuple[Config, list[str]]:
    config = Config(training=TrainingConfig(batch_size=1, max_length=100, **training))
    config.model.vocab_size, config.model.d_model, config.model.num_layers = 512, 16, 1
    limits = Limits(steps=round(epochs * 100), seconds=None)
    return config, settle_recipe(config, None, limits, CORPUS, ALONE)


def test_learning_by_heart_is_held_against_by_weight_decay_and_dropout() -> None:
    found = [settled(epochs) for epochs in (0.5, 4, 16, 200)]
    assert [config.training.weight_decay for config, _ in found] == [
        one.values.get("training.weight_decay", DEFAULT) for one in REGIMES
    ]
    assert [config.training.dropout for config, _ in found] == [
        one.values.get("training.dropout", 0.0) for one in REGIMES
    ]
    assert [said[0].split()[1] for _, said in found] == ["0.5", "4.0", "16", "200"]
    assert "a few epochs, weight_decay=" in found[1][1][0]


def test_a_large_network_learns_by_heart_sooner() -> None:
    small, large = (Exposure(1e6, blocks, 512, 4e6, 1e6, 3.0) for blocks in (1e5, 1e9))
    assert small.epochs == large.epochs
    assert regime_of(small.pressure) == REGIMES[1] and regime_of(large.pressure) == REGIMES[3]


def test_a_given_key_overrules_the_regime() -> None:
    config, (said,) = settled(4, weight_decay=DEFAULT, dropout=0)
    assert config.training.weight_decay == DEFAULT and config.training.dropout == 0
    assert said.endswith("the recipe for a few epochs")


def test_text_that_comes_round_often_is_calibrated_where_it_can_be() -> None:
    config, (said,) = settled(40)
    assert config.training.calibrate is True and "calibrate=true" in said
    averaged, (said,) = settled(40, average=0.05)
    assert not averaged.training.calibrate and "calibrate" not in said
    assert not settled(4)[0].training.calibrate, "a few epochs need no calibration"


def test_a_time_limit_means_as_many_tokens_as_the_machine_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    config.model.vocab_size = 512
    monkeypatch.setattr(regime, "machine_pace", lambda config, processes: usual_pace(processes * 1e11))
    one, two = (expected_tokens(config, Limits(None, 60.0), processes) for processes in (1, 2))
    assert one < two
    tokens_per_update = config.training.tokens_per_update
    assert expected_tokens(config, Limits(3, 60.0), 1) == 3 * tokens_per_update, "the first limit counts"


def test_a_run_that_only_time_limits_ends_before_it_knows_its_text_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime, "machine_pace", lambda config, processes: usual_pace(1e12))
    config = Config()
    config.model.vocab_size = 512
    said = settle_recipe(config, None, Limits(None, 600.0), CORPUS, ALONE)
    assert 2 < config.training.num_epochs < 40
    assert said[0].endswith("after which more would hardly help")
    given = Config(training=TrainingConfig(num_epochs=500))
    given.model.vocab_size = 512
    settle_recipe(given, None, Limits(10_000, 600.0), CORPUS, ALONE)
    assert given.training.num_epochs == 500


def test_a_text_without_passes_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime, "machine_pace", lambda config, processes: usual_pace(1e12))
    config = Config()
    config.model.vocab_size = 512
    settle_recipe(config, None, Limits(None, 600.0), CORPUS, ALONE, has_passes=lambda: False)
    assert config.training.num_epochs == 0
    assert config.training.dropout == REGIMES[-1].values["training.dropout"], "it comes round for the whole time"


def test_the_recipe_does_not_depend_on_what_is_tokenised_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = fresh_corpus(tmp_path, monkeypatch)
    told = []
    for name in ("first", "second"):  # the second finds the tokens of the first
        with Pretraining(configured(corpus, name, **{"training.max_steps": 200})) as run:
            told.append([notice for notice in run.notices if "the recipe for" in notice])
            run.loader.ledger()
    assert told[0] == told[1] != []


TIMED = {"training.max_steps": 0, "training.max_minutes": 10}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text that comes round for hundreds of times in ten minutes."""
    monkeypatch.setattr(regime, "machine_pace", lambda config, processes: usual_pace(1e11))
    return fresh_corpus(tmp_path, monkeypatch)


def test_a_text_of_less_than_a_batch_is_trained_on_until_the_time_is_up(corpus: Path) -> None:
    corpus.write_text("tiny text " * 12)
    with Pretraining(configured(corpus, "run", **TIMED)) as run:
        assert run.config.training.num_epochs == 0
        assert run.config.training.dropout > 0


def test_a_mixture_is_trained_on_until_the_time_is_up(corpus: Path) -> None:
    """Its passes are those of the source that is over first, and say nothing of the others."""
    (corpus.parent / "small.txt").write_text(make_text(3_000))
    sources = [{"path": str(corpus), "weight": 1}, {"path": str(corpus.parent / "small.txt"), "weight": 1}]
    with Pretraining(configured(corpus, "mixed", **TIMED, **{"data.sources": sources})) as run:
        assert run.config.training.num_epochs == 0
    with Pretraining(configured(corpus, "alone", **TIMED, **{"data.cache_dir": ""})) as run:
        assert run.config.training.num_epochs > 0


def test_batches_from_elsewhere_are_not_counted_as_epochs_of_the_named_text(corpus: Path) -> None:
    config = configured(corpus, "run", **TIMED)
    with open_training(config) as batches, Pretraining(config, batches=batches) as run:
        assert (run.config.training.num_epochs, run.config.training.dropout) == (0, 0)


def test_a_run_that_is_refused_before_it_begins_leaves_its_recipe_open(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("too little memory")

    monkeypatch.setattr("headrace.run.pretraining.check_memory", refuse)
    with pytest.raises(UsageError, match="too little memory"), Pretraining(configured(corpus, "run", **TIMED)):
        pass
    written = json.loads((corpus.parent / "run" / "config.json").read_bytes())["training"]
    recipe = {key.partition(".")[2] for key in RECIPE_KEYS}
    assert not written.keys() & recipe, "on resume, they are decided"
    assert written["max_minutes"] == 10


def test_a_run_that_begins_from_a_model_keeps_the_default_recipe() -> None:
    config = Config()
    config.model.init, config.model.vocab_size = "runs/one", 512
    assert settle_recipe(config, None, Limits(10**6, None), CORPUS, ALONE) == []
    assert config.training.weight_decay == DEFAULT


def test_in_a_group_all_take_what_rank_0_counted() -> None:
    class Other(Group):
        is_main = False

        def from_main(self, value: Any, doing: str) -> Any:
            return [REGIMES[-1].values, "many"]

    config = Config()
    assert settle_recipe(config, None, Limits(1, None), CORPUS, Other()) == ["many"]
    assert config.training.weight_decay == REGIMES[-1].values["training.weight_decay"]


def test_a_resumed_run_keeps_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = fresh_corpus(tmp_path, monkeypatch)
    with Pretraining(configured(corpus, "run", **{"training.max_steps": 2})) as first:
        run_to_the_end(first)
        began_with = first.config.training.weight_decay
    more = {"training.max_steps": 100_000, "run.resume": True}
    with Pretraining(configured(corpus, "run", **more)) as resumed:
        assert resumed.config.training.weight_decay == began_with
        assert not any("the recipe for" in notice for notice in resumed.notices)
