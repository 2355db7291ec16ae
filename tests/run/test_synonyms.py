"""Words of neighbouring projects are taken for headrace's own keys, or answered with what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.run.config import ALIASES, Layers, all_keys
from headrace.run.config_files import is_override, parse_override
from headrace.run.synonyms import ACCEPTED, ANSWERED_VALUES, ANSWERS, VALUES

Command = Callable[..., tuple[int, str, str]]


def build(values: dict[str, Any]) -> Any:
    layers = Layers()
    layers.add(values, "test")
    return layers.build()


def test_the_tables_name_keys_that_exist_and_take_none_away() -> None:
    keys = set(all_keys())
    assert {*ACCEPTED.values(), *VALUES, *ANSWERED_VALUES} <= keys
    assert not keys & ALIASES.keys()
    assert not ACCEPTED.keys() & ANSWERS.keys()
    for answer in (*ANSWERS.values(), *ANSWERED_VALUES["training.precision"].values()):
        assert set(re.findall(r"(?:model|training|data|run)\.\w+", answer)) <= keys


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"data": {"tokenizer_name": "gpt2"}}, "data.tokenizer", "gpt2"),
        ({"data": {"worker_count": 4}}, "data.num_workers", 4),
        ({"data": {"prefetch_buffer_size": 50}}, "data.prefetch_batches", 50),
        ({"training": {"dtype": "bf16"}}, "training.precision", "bfloat16"),
        ({"training": {"precision": "fp32"}}, "training.precision", "float32"),
        ({"training": {"mixed_precision": False}}, "training.precision", "float32"),
        ({"model": {"n_layer": 3}}, "model.num_layers", 3),
        ({"data": {"validation_sources": "va.txt"}}, "data.validation_sources", ["va.txt"]),
    ],
)
def test_a_word_that_means_the_same_is_accepted(given: dict[str, Any], key: str, value: object) -> None:
    section, name = key.split(".")
    assert getattr(getattr(build(given), section), name) == value


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("batch_size=32", "training.batch_size", 32),
        ("lr=1e-3", "training.learning_rate", 0.001),
        ("precision=bf16", "training.precision", "bf16"),
        ("data_dir=corpus/part", "data.sources", "corpus/part"),
        ("data.validation_sources=va.txt", "data.validation_sources", "va.txt"),
    ],
)
def test_an_override_may_leave_out_its_section(typed: str, key: str, value: object) -> None:
    assert is_override(typed)
    assert parse_override(typed) == (key, value)


def test_a_path_with_an_equals_sign_is_still_a_path() -> None:
    assert not is_override("year=2024/*.txt")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data.cache_size": 100_000}, "data.memory_budget=256MiB"),
        ({"training.fp16": True}, "Write training.precision=bfloat16"),
        ({"training.bf16": True}, "Write training.precision=bfloat16."),
        ({"training.warmup_steps": 100}, "training.warmup=0.02"),
        ({"training.precision": "fp16"}, "training.precision: 'fp16' (test): Write training.precision=bfloat16"),
        ({"data.worker_cuont": 3}, "Did you mean data.num_workers?"),
        ({"lr": 3}, "Did you mean training.learning_rate?"),
    ],
)
def test_another_word_is_answered(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        build(given)


def test_an_ambiguous_key_asks_which(command: Command) -> None:
    code, _, err = command("config", "memory_budget=1GB")
    assert code == 2
    assert "memory_budget" in err
    assert "Did you mean" in err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--batch_size", "3"), "Write training.batch_size=VALUE instead."),
        (("--num_batches", "3"), "Write training.max_steps=100."),
        (("--lr", "0.1"), "Write training.learning_rate=VALUE instead."),
        (("--dry-run",), "`headrace plan` says what a run will cost"),
        (("--memory-budget", "3"), "training.memory_budget=VALUE or data.memory_budget=VALUE"),
        (("--nonsense",), "--nonsense."),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_its_key(
    command: Command, typed: tuple[str, ...], says: str
) -> None:
    code, _, err = command("train", *typed)
    assert code == 2
    assert says in " ".join(err.split())


def test_options_may_be_written_with_underscores(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "some words"}\n')
    out = ("--tokenizer", "byte", "--out", tmp_path / "cache")
    assert command("prepare", tmp_path / "a.jsonl", "--text_field", "body", *out)[0] == 0
