"""What a time limit is enough for: a network that is chosen without trials, and overruled by any key."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.data.prepare import prepare
from headrace.distributed.group import Group
from headrace.errors import CorpusError
from headrace.jobs.config import CHOSEN_LATER, resolve
from headrace.jobs.train import run_to_the_end
from headrace.perf.pace import usual_pace
from headrace.perf.search_space import LEAST_SEEN
from headrace.run.config import Config, Layers
from headrace.run.memory import count_memory
from headrace.run.pretraining import Pretraining
from headrace.run.start import budget, candidates
from headrace.run.start.budget import CHOOSABLE, Chosen, choose, fill_in, is_open
from headrace.run.start.keys import get_value, with_values
from headrace.training.execution import Execution
from headrace.units import human_time
from tests.conftest import make_text

PEAK = 4e11


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text, on a machine whose speed is known."""
    monkeypatch.setattr(budget, "machine_pace", lambda config, num_processes=1: usual_pace(num_processes * PEAK))
    path = tmp_path / "corpus.txt"
    path.write_text(make_text(300_000))
    return path


@pytest.fixture
def much_text(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as if it were a gigabyte."""
    monkeypatch.setattr(candidates, "divide_corpus", lambda _: [SimpleNamespace(nbytes=10**9)])
    return corpus


def configured(corpus: Path, **values: Any) -> Config:
    layers = Layers()
    layers.add({"data.sources": [str(corpus)]}, "the call")
    layers.add({key.replace("__", "."): value for key, value in values.items()}, "the call")
    return layers.build()


def parameters(chosen: Chosen) -> float:
    return chosen.prospect.exposure.parameters


def test_more_time_means_a_larger_network(much_text: Path) -> None:
    short, long = (choose(configured(much_text, training__max_minutes=minutes)) for minutes in (1, 60))
    assert parameters(short) < parameters(long)
    assert short.values.keys() == set(CHOOSABLE)
    assert short.sentence().startswith(f"chosen for {human_time(60)} on this machine: d_model=")


def test_a_faster_machine_gets_a_larger_network_in_equal_time(much_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(much_text, training__max_minutes=2)
    here = choose(config)
    monkeypatch.setattr(budget, "machine_pace", lambda config, num_processes=1: usual_pace(30 * PEAK))
    assert parameters(choose(config)) > parameters(here)


@pytest.mark.parametrize(
    "values",
    [
        {"model__d_model": 64},
        {"model__num_layers": 2},
        {"training__max_steps": 10},
        {"training__num_epochs": 1},
    ],
)
def test_a_given_shape_or_a_limit_of_another_kind_leaves_nothing_to_choose(
    corpus: Path, values: dict[str, object]
) -> None:
    config = configured(corpus, **values)
    assert not is_open(config)
    assert fill_in(config) == ""
    assert config == configured(corpus, **values)


def test_without_any_limit_the_default_of_ten_minutes_counts(corpus: Path) -> None:
    config = configured(corpus)
    assert human_time(600) in fill_in(config)


def test_what_is_given_stays_and_the_rest_follows_from_it(corpus: Path) -> None:
    config = configured(
        corpus, training__max_minutes=5, training__batch_size=3, training__max_length=40, data__tokenizer="byte"
    )
    fill_in(config)
    assert (config.training.batch_size, config.training.max_length, config.data.tokenizer) == (3, 40, "byte")
    assert not is_open(config)


def test_tokens_that_are_there_are_used_if_they_are_as_good(much_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "vocabularies_for", lambda num_bytes: [300, 4096, 5000])
    config = configured(much_text, training__max_minutes=3)
    free = choose(config)
    other = "bpe:5000" if free.values["data.tokenizer"] == "bpe:4096" else "bpe:4096"
    prepare([str(much_text)], tokenizer=other)
    chosen = choose(config)
    assert chosen.values["data.tokenizer"] == other
    assert chosen.prospect.bits_per_byte <= (1 + budget.AS_GOOD) * free.prospect.bits_per_byte
    prepare([str(much_text)], tokenizer="bpe:300")
    assert choose(config).values["data.tokenizer"] == other, "a vocabulary that is too small is not worth it"


def test_a_short_run_on_much_text_gets_a_vocabulary_that_it_can_learn(much_text: Path) -> None:
    for minutes in (2, 600):
        seen = choose(configured(much_text, training__max_minutes=minutes)).prospect
        assert seen.broken_rules == 0
        assert seen.exposure.tokens >= LEAST_SEEN * seen.exposure.vocab_size


def test_a_cache_in_the_named_folder_keeps_its_tokenizer(corpus: Path) -> None:
    prepare([str(corpus)], tokenizer="bpe:700", out=corpus.parent / "own")
    config = configured(corpus, training__max_minutes=1, data__cache_dir=str(corpus.parent / "own"))
    assert choose(config).values["data.tokenizer"] == "bpe:700"


def test_processes_share_the_chosen_batch_evenly(much_text: Path) -> None:
    config = configured(much_text, training__max_minutes=1, training__micro_batch_size=5)
    assert choose(config, num_processes=3).values["training.batch_size"] % 15 == 0


def test_longer_runs_on_much_text_get_longer_sequences(much_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    short, long = (choose(configured(much_text, training__max_minutes=minutes)).values for minutes in (1, 30))
    assert (short["training.max_length"], short["training.short_windows"]) == (256, 128)
    assert (long["training.max_length"], long["training.short_windows"]) == (1024, 256)


@pytest.mark.parametrize(
    "values",
    [{"model__context": 300}, {"model__arch": "gpt2"}, {"training__batch_size": 8}, {"training__micro_batch_size": 16}],
)
def test_sequences_suit_a_given_context_architecture_and_batch(much_text: Path, values: dict[str, Any]) -> None:
    config = configured(much_text, training__max_minutes=5, **values)
    fill_in(config)
    assert config.training.max_length == 256


@pytest.mark.parametrize("values", [{}, {"training__batch_size": 8}])
def test_sequences_are_no_longer_than_a_small_context(much_text: Path, values: dict[str, Any]) -> None:
    config = configured(much_text, training__max_minutes=5, model__context=128, **values)
    fill_in(config)
    assert config.training.max_length == 128


def test_a_small_text_is_cut_into_sequences_enough_to_shuffle(corpus: Path) -> None:
    values = choose(configured(corpus, training__max_minutes=30)).values
    assert values["training.max_length"] == 256


def test_every_thread_gets_a_sequence_of_the_batch(much_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(much_text, training__max_minutes=5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = choose(config).values
    for num_threads, num_processes in ((8, 1), (2, 4)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=num_threads: threads)
        values = choose(config, num_processes=num_processes).values
        assert values["training.batch_size"] >= 8
        assert values["training.max_length"] < alone["training.max_length"]
        tokens = [found["training.max_length"] * found["training.batch_size"] for found in (alone, values)]
        assert tokens[0] == tokens[1]
        given = configured(much_text, training__max_minutes=5, training__max_length=1024)
        assert choose(given, num_processes=num_processes).prospect.batch_size == alone["training.batch_size"]


def test_the_learning_rate_of_muon_is_not_taken_for_adamw(much_text: Path) -> None:
    config = configured(much_text, training__max_minutes=1, training__optimizer="adamw")
    assert "training.learning_rate" not in choose(config).values


def test_in_a_group_rank_0_chooses_for_all(corpus: Path) -> None:
    class Other(Group):
        is_main = False

        def from_main(self, value: Any, doing: str) -> Any:
            assert value == [{}, ""]
            return [{"model.d_model": 72, "model.num_layers": 5}, "chosen elsewhere"]

    config = configured(corpus)
    assert fill_in(config, Other()) == "chosen elsewhere"
    assert (config.model.d_model, config.model.num_layers) == (72, 5)


def test_a_network_that_does_not_fit_the_memory_is_not_chosen(much_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(much_text, training__max_minutes=600)
    large = choose(config)
    monkeypatch.setattr(candidates, "available_memory_bytes", lambda: 60 << 20)
    assert parameters(choose(config)) < parameters(large)


def test_the_memory_of_a_chosen_network_has_its_vocabulary_and_is_shared_by_processes(
    much_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(much_text, training__max_minutes=600)
    free = 250 << 20
    monkeypatch.setattr(candidates, "available_memory_bytes", lambda: free)
    alone, shared = (choose(config, num_processes_here=number) for number in (1, 4))
    assert parameters(shared) < parameters(alone)
    for chosen, share in ((alone, 1), (shared, 4)):
        whole = with_values(config, chosen.values)
        whole.model.vocab_size = chosen.prospect.exposure.vocab_size
        assert count_memory(whole, Execution(1), 0).total <= free / share


def test_processes_are_as_fast_together_as_their_sum(much_text: Path) -> None:
    config = configured(much_text, training__max_minutes=2)
    assert parameters(choose(config, num_processes=30)) > parameters(choose(config))


def test_given_epochs_end_a_run_before_its_time(corpus: Path) -> None:
    config = configured(corpus, training__max_minutes=600, training__num_epochs=2)
    assert choose(config).prospect.exposure.epochs == pytest.approx(2)


def test_a_small_text_gets_a_small_network_however_long_it_may_take(corpus: Path) -> None:
    long = choose(configured(corpus, training__max_minutes=600))
    assert long.prospect.exposure.block_parameters < 1e6


def test_a_run_says_what_was_chosen_and_a_resumed_one_keeps_it(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = corpus.parent / "run"
    config = configured(corpus, training__max_minutes=0.02, run__out=str(out), run__resume="auto")
    with Pretraining(config) as pretraining:
        assert any(notice.startswith("chosen for") for notice in pretraining.notices)
        chosen = pretraining.config
        run_to_the_end(pretraining)
    recorded = json.loads((out / "config.json").read_bytes())
    assert recorded["model"]["d_model"] == chosen.model.d_model
    monkeypatch.setattr(budget, "machine_pace", lambda config, num_processes=1: usual_pace(1000 * PEAK))
    with Pretraining(configured(corpus, training__max_minutes=0.03, run__out=str(out), run__resume="auto")) as again:
        assert [get_value(again.config, key) for key in CHOOSABLE] == [get_value(chosen, key) for key in CHOOSABLE]


def test_a_run_that_is_resumed_with_a_limit_of_another_kind_keeps_its_network(corpus: Path) -> None:
    values = {"run__out": str(corpus.parent / "run"), "run__resume": "auto"}
    with Pretraining(configured(corpus, training__max_minutes=0.02, **values)) as first:
        chosen = first.config
        run_to_the_end(first)
    with Pretraining(configured(corpus, training__max_steps=100_000, **values)) as again:
        assert [get_value(again.config, key) for key in CHOOSABLE] == [get_value(chosen, key) for key in CHOOSABLE]


def test_the_resolved_configuration_shows_what_would_be_chosen(corpus: Path) -> None:
    layers = Layers()
    layers.add({"data.sources": [str(corpus)], "training.max_minutes": 1}, "the call")
    wide = choose(layers.build()).values["model.d_model"]
    setting = resolve(layers)["model.d_model"]
    assert (setting.used, setting.origin) == (wide, "default")
    layers.add({"data.sources": ["not-there.txt"]}, "the call")
    assert resolve(layers)["model.d_model"].used == CHOSEN_LATER
    with pytest.raises(CorpusError):
        fill_in(layers.build())
