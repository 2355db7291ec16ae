"""Every key is documented where it is defined, and everything that explains it says the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli.keys import describe_key
from headrace.data.config import DataConfig, LoaderOptions
from headrace.errors import UsageError
from headrace.run.config import all_keys

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("name", all_keys())
def test_every_key_has_a_type_a_default_and_a_meaning(name: str) -> None:
    key = describe_key(name)
    assert key.name == name
    assert key.type != "a value"
    assert key.meaning.endswith(".")


def test_the_config_command_explains_keys(command: Command) -> None:
    code, out, _ = command("config", "data.memory_budget", "training.num_workers", "--json")
    assert code == 0
    assert "data.memory_budget: a size, such as 256MiB; default none" in out
    told = json.loads(out.splitlines()[-1])
    assert told["data.num_workers"]["type"] == "a whole number, at least 0, at most 1,024"
    with pytest.raises(UsageError, match=r"Did you mean data\.packing"):
        describe_key("data.paking")


def test_help_of_prepare_is_what_the_keys_say(command: Command) -> None:
    _, out, _ = command("prepare", "--help")
    shown = " ".join(out.split())
    for name in ("text_field", "delimiter"):
        assert describe_key(f"data.{name}").meaning in shown
    assert "file|line|paragraph|delimiter" in shown


def test_a_loader_has_the_options_and_defaults_of_the_data_section() -> None:
    arguments = inspect.signature(hr.Loader).parameters
    for name, field in LoaderOptions.model_fields.items():
        assert arguments[name].default == field.default == DataConfig.model_fields[name].default, name


def test_sizes_are_read_alike_everywhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the mill wheel turns " * 50)
    assert DataConfig(memory_budget="96MiB").memory_budget == 96 << 20  # type: ignore[arg-type]
    hr.prepare(tmp_path / "a.txt", tokenizer="byte", out=tmp_path / "cache", memory_budget="96MiB")
    with hr.Loader(tmp_path / "cache", 2, 8, memory_budget="1MiB") as loader:
        assert next(loader).inputs.shape == (2, 8)
    with pytest.raises(UsageError, match="memory_budget: 'lots' is not a size"):
        hr.prepare(tmp_path / "a.txt", memory_budget="lots")
    with pytest.raises(UsageError, match="memory_budget '-1': '-1' is not a size"):
        hr.Loader(tmp_path / "cache", 1, 1, memory_budget="-1")


def test_old_configurations_with_nothing_set_are_read() -> None:
    old = {"document": None, "delimiter": None, "text_field": None, "max_expansion": None, "memory_budget": ""}
    config = DataConfig.model_validate({**old, "sources": ["a.txt"]})
    assert config.model_dump() == DataConfig(sources=["a.txt"]).model_dump()


def test_prepare_and_train_share_one_cache(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "caches"))
    (tmp_path / "a.txt").write_text("the mill wheel turns the water in the stream\n" * 400)
    assert command("prepare", tmp_path / "a.txt", "--json")[0] == 0
    small = ("model.d_model=16", "model.num_layers=1", "training.max_steps=1", "training.max_length=8")
    code, _, err = command("train", tmp_path / "a.txt", *small, "training.batch_size=2", "--out", tmp_path / "run")
    assert code == 0, err
    assert len([folder for folder in (tmp_path / "caches").iterdir() if (folder / "manifest.json").exists()]) == 1


def test_a_key_that_does_not_exist_is_not_taken_for_text(command: Command) -> None:
    code, _, err = command("config", "training.batchsize")
    assert code == 2
    assert "training.batchsize: unknown key. Did you mean training.batch_size?" in err


def test_a_preset_that_does_not_exist_is_answered_with_the_nearest(command: Command) -> None:
    for wrong, right in (("shakespear", "shakespeare-char"), ("wikki", "wiki"), ("gpt2", "gpt2-small")):
        code, _, err = command("config", "--preset", wrong)
        assert code == 2
        assert f"Did you mean {right}?" in err
    assert "Did you mean" not in command("config", "--preset", "zzz")[2]
