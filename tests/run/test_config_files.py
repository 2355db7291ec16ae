"""What people type and write into files becomes values; what no configuration can be is one sentence, at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.run.config import Layers
from headrace.run.config_files import parse_override, read_config_file

Command = Callable[..., tuple[int, str, str]]


def build(values: dict[str, Any]) -> Any:
    layers = Layers()
    layers.add(values, "test")
    return layers.build()


@pytest.mark.parametrize(
    "text",
    [
        "ROMEO:",
        "1984",
        "yes",
        "null",
        "2024-01-01",
        "[a",
        "{",
        "- x",
        "!!int 3",
        "*a",
        "&",
        '"so" and "so"',
        "'",
        "x" * 300,
        "",
    ],
)
def test_text_is_taken_as_it_was_typed(command: Command, text: str) -> None:
    key, value = parse_override(f"training.prompt={text}")
    assert build({key: value}).training.prompt == text
    code, _, err = command("config", f"training.prompt={text}", "training.max_steps=3")
    assert (code, err) == (0, "")


@pytest.mark.parametrize("text", ['"byte"', "'byte'"])
def test_quotes_around_text_are_not_of_it(text: str) -> None:
    assert parse_override(f"data.tokenizer={text}") == ("data.tokenizer", "byte")
    assert parse_override('training.prompt="a\\n"') == ("training.prompt", "a\n")


def test_text_in_yaml_is_taken_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "training: {prompt: 1984, memory_budget: 850000000}\n"
        "data:\n  tokenizer: 007\n  sources: [2024, {path: 2025, text_field: on, weight: 1}]\n"
        "run.out: 2024-01-01\n"
    )
    config = build(read_config_file(tmp_path / "a.yaml"))
    assert (config.training.prompt, config.training.memory_budget) == ("1984", 850_000_000)
    assert config.data.tokenizer == "007"
    assert config.data.sources == ["2024", {"path": "2025", "text_field": "on", "weight": 1}]
    assert config.run.out == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("training.max_steps=1e3", 1000),
        ("training.learning_rate=1e-3", 0.001),
        ("data.shuffle=no", False),
        ("data.queue_capacity=null", None),
        ("data.sources=[a.txt, 2024]", ["a.txt", "2024"]),
        ("data.sources=a.txt", ["a.txt"]),
        ("run.processes=auto", "auto"),
    ],
)
def test_other_values_are_read_as_yaml(text: str, value: object) -> None:
    key, parsed = parse_override(text)
    section, name = key.split(".")
    assert getattr(getattr(build({key: parsed}), section), name) == value


@pytest.mark.parametrize(
    "value",
    ["!!int abc", "!!int ''", "!!bool maybe", "!!timestamp x", "2024-13-45", "&a [*a]", "9" * 5000, "0x" + "f" * 5000],
)
def test_values_that_are_not_numbers_are_one_message(command: Command, tmp_path: Path, value: str) -> None:
    (tmp_path / "a.yaml").write_text(f"training: {{max_steps: {value}}}\n")
    for argument in (f"training.max_steps={value}", tmp_path / "a.yaml"):
        code, _, err = command("config", argument)
        assert code == 2
        assert "max_steps" in err or "a.yaml" in err
        assert "Traceback" not in err
        assert len(err) < 1000


STEPS = list(zip("abcdefghij", "bcdefghijk", strict=True))
LAUGHS = "a: &a [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n"
LAUGHS += "".join(f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in STEPS)
MERGES = "a: &a {x: 1}\n"
MERGES += "".join(f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 9)}]}}\n" for old, new in STEPS)
BAD_FILES = [
    ("laughs.yaml", LAUGHS + "model: *k\n", "more than"),
    ("sources.yaml", LAUGHS + "data: {sources: *k}\n", "more than"),
    ("merges.yaml", MERGES + "model: *k\n", "merge keys"),
    ("cycle.yaml", "data: {sources: &a [*a]}\n", "nested"),
    ("deep.yaml", "model: " + "[" * 5000, "nested"),
    ("deep.json", '{"model": ' + "[" * 100_000, "nested"),
    ("deeper.json", '{"data": {"sources": ' + "[" * 900 + "]" * 900 + "}}", "nested"),
    ("deep.toml", "a = " + "[" * 5000, "nested"),
    ("long.yaml", "# " + "x" * (2 << 20), "MiB"),
    ("comments.json", "/*" * 300_000, "JSON"),
    ("quotes.json", '"\\' * 300_000, "JSON"),
    ("keys.yaml", "1: {a: 2}\n", "1: unknown section"),
    ("keys2.yaml", "training: {1: 2}\n", "training.1: unknown key"),
    ("null.yaml", "~: {a: 2}\n", "unknown section"),
    ("tagged.yaml", "training: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
    ("digits.json", '{"training": {"seed": ' + "9" * 5000 + "}}", "JSON"),
    ("nan.json", '{"training": {"learning_rate": NaN}}', "finite"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "says"), BAD_FILES, ids=[name for name, _, _ in BAD_FILES])
def test_a_file_that_is_no_configuration_ends_at_once(
    command: Command, tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    code, _, err = command("config", tmp_path / name)
    assert code == 2
    assert name in err
    assert says in err
    assert "Traceback" not in err
    assert len(err) < 1500


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("suffix", ["yaml", "json", "toml"])
def test_a_file_that_is_not_utf8_is_named(command: Command, tmp_path: Path, encoding: str, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes("# Ærø\n".encode(encoding))
    code, _, err = command("config", tmp_path / f"a.{suffix}")
    assert code == 2
    assert f"a.{suffix}: not UTF-8" in err


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: {batch_size: 8}\n", encoding="utf-8-sig")
    assert read_config_file(tmp_path / "a.yaml") == {"training": {"batch_size": 8}}


@pytest.mark.parametrize(
    "text",
    [
        "model.num_layers=1000000",
        "model.d_model=10000000000",
        "model.d_ff=1e12",
        "model.num_heads=1e12",
        "model.vocab_size=1000000000000",
        "model.context=1e15",
        "model.rope_theta=.inf",
        "training.learning_rate=.inf",
        "training.learning_rate=.nan",
        "training.learning_rate=-1",
        "training.batch_size=.inf",
        "training.batch_size=1e15",
        "training.max_length=1e15",
        "training.max_minutes=.inf",
        "training.num_epochs=.nan",
        "training.num_epochs=1e300",
        "training.max_steps=1e30",
        "training.gradient_clip=.nan",
        "training.weight_decay=.inf",
        "training.threads=100000000",
        "training.seed=18446744073709551616",
        "training.seed=-1",
        "data.num_workers=1000000",
        "data.prefetch_batches=-1",
        "data.prefetch_batches=1e12",
        "data.queue_capacity=-1",
        "data.max_sequences_in_memory=-5",
        "data.memory_budget=1e400",
        "data.memory_budget=-5MB",
        "training.memory_budget=lots",
        "data.validation_fraction=.nan",
        "run.processes=1000000",
        "run.timeout_seconds=.inf",
    ],
)
def test_absurd_values_end_at_once(command: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text("a text")
    code, _, err = command("train", tmp_path / "a.txt", text, "--out", tmp_path / "run")
    assert code == 2
    assert text.partition("=")[0].rpartition(".")[2] in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_batch_beyond_any_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="tokens per update"):
        build({"training.batch_size": 1 << 20, "training.max_length": 1 << 20})


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"trainng.max_steps": 3}, "Did you mean training.max_steps?"),
        ({"trainng.max_step": 3}, "Did you mean training.max_steps?"),
        ({"mode.d_modle": 3}, "Did you mean model.d_model?"),
        ({"dta.memory_budget": 3}, "Did you mean data.memory_budget?"),
        ({"trainin.memory_budget": 3}, "Did you mean training.memory_budget?"),
        ({"data_config": {"tokenizer": "char"}}, "Did you mean data?"),
        ({"trainng": {"max_steps": 3}}, "Did you mean training?"),
        ({"optimizer": "adamw"}, "Did you mean training.optimizer?"),
        ({"max_step": 3}, "Did you mean training.max_steps?"),
        ({"general": {"max_steps": 3, "seed": 1}}, "Did you mean training?"),
    ],
)
def test_hints_look_at_whole_keys(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(values)
    assert str(caught.value).endswith(hint)
