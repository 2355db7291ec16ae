from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.models.counts import count
from headrace.run.config import Layers
from headrace.run.config_files import read_config_file
from headrace.run.presets import PRESETS

Command = Callable[..., tuple[int, str, str]]

FIRST = """{"model": {"d_model": 256, "num_layers": 2, "vocab_size": 10000},
            "training": {"max_length": 64, "batch_size": 32, "num_epochs": 1}}"""
SECOND = """{"training": {
    "learning_rate": 0.001, "batch_size": 32, "num_epochs": 10,
    // Async DataLoader parameters (all optional)
    "prefetch_batches": 4,   // how many batches to prepare ahead
    "num_workers": 4,
    "shuffle": true
}}"""


def build(values: dict[str, Any]) -> Any:
    layers = Layers()
    layers.add(values, "test")
    return layers.build()


@pytest.mark.parametrize("text", [FIRST, SECOND])
def test_files_that_people_have(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    config = build(read_config_file(tmp_path / "config.json"))
    assert config.training.batch_size == 32
    if text == SECOND:
        assert (config.data.prefetch_batches, config.data.num_workers, config.data.shuffle) == (4, 4, True)


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model:\n  d_model: 128\ntraining: {learning_rate: 0.01}\n")
    (tmp_path / "a.toml").write_text("[model]\nd_model = 128\n[training]\nlearning_rate = 0.01\n")
    assert build(read_config_file(tmp_path / "a.yaml")) == build(read_config_file(tmp_path / "a.toml"))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name: str) -> None:
    config = build(PRESETS[name]())
    config.model.context = config.training.max_length
    assert count(config.model, config.training.max_length).num_parameters > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"training": {"bacth_size": 3}},
            r"training\.bacth_size: unknown key \(test\)\. Did you mean training\.batch_size",
        ),
        ({"model": {"learning_rate": 3}}, r"Did you mean training\.learning_rate"),
        ({"trainig": {}}, "trainig: unknown section"),
        (
            {"training": {"batch_size": "many"}},
            r"training\.batch_size: 'many' \(test\): it should be a whole number",
        ),
        ({"training": {"batch_size": 0}}, "greater than or equal to 1"),
        (
            {"model": {"d_model": 256, "num_heads": 7}},
            "num_heads 7 does not divide d_model 256; the nearest .* is model.num_heads=8",
        ),
        ({"training": 3}, "a section holds keys"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(values)


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{3}"), ("a.yaml", "a: [1"), ("a.toml", "a = "), ("b.yaml", "3")]
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=name):
        read_config_file(tmp_path / name)


def test_config_command_tells_where_values_come_from(command: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("training: {batch_size: 8, max_length: 32}\n")
    code, out, _ = command("config", "--preset", "wiki", tmp_path / "c.yaml", "training.max_length=64", "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert found["config"]["model"]["d_model"] == 512
    assert found["config"]["training"]["batch_size"] == 8
    assert found["config"]["training"]["max_length"] == 64
    assert found["origins"]["model.d_model"] == "preset wiki"
    assert found["origins"]["training.max_length"] == "training.max_length=64"
    assert json.loads(command("config", "--json")[1].splitlines()[-1])["config"]["training"]["max_minutes"] == 2
    own = json.loads(command("config", "mine.txt", "--json")[1].splitlines()[-1])["config"]
    assert own["data"]["sources"] == ["mine.txt"]
    assert own["training"]["max_minutes"] == 0  # the demo's two minutes are not for one's own text
    assert command("config", "--preset", "nothing")[0] == 2
    assert command("config", "nothing=3")[0] == 2


def test_config_tells_what_is_really_used_and_what_it_means(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("config", "mine.txt", "model.d_model=256", "training.max_length=32", "--json")
    assert code == 0
    used = json.loads(out.splitlines()[-1])["used"]
    assert (used["model.num_heads"], used["model.context"], used["data.tokenizer"]) == (2, 32, "bpe:4096")
    assert (used["model.vocab_size"], used["training.max_minutes"]) == (4096, 10)
    assert used["training.batch_size"] == 16
    assert "model.num_heads = 0 → 2  default\n    Attention heads;" in out


def test_config_files_may_be_given_by_option(command: Command, tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("training: {batch_size: 8}\n")
    for arguments in (("--config", tmp_path / "settings"), (f"--config={tmp_path / 'settings'}", "mine.txt")):
        code, out, err = command("config", *arguments, "--json")
        assert code == 0, err
        assert json.loads(out.splitlines()[-1])["config"]["training"]["batch_size"] == 8
    assert "No such file" in command("train", "--config", tmp_path / "missing.yaml")[2]
