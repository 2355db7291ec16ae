"""What a message says to type works: each is provoked, its own words are typed, and the command succeeds."""

from __future__ import annotations

import ast
import errno
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli.main import COMMANDS, load_command
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.sources import as_sources
from headrace.files import read_checked_json, write_checked_json, writing_failed
from headrace.run.config import ALIASES, all_keys
from tests.conftest import make_text

Command = Callable[..., tuple[int, str, str]]
TINY = (
    "model.d_model=16", "model.num_heads=1", "model.num_layers=1", "training.max_length=8", "training.batch_size=2",
    "training.micro_batch_size=1", "training.max_steps=1", "training.precision=float32", "training.matmul=default",
    "training.threads=1", "data.validation_fraction=0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run measures of the machine is not what these are about."""
    monkeypatch.setattr("headrace.run.environment.measure_peak_flops", lambda *_: 1e11)
    monkeypatch.setattr("headrace.run.environment.measure_memory_bandwidth", lambda: 1e10)
    monkeypatch.setattr("headrace.run.session.evaluation.TEXT_TOKENS", 2)


@dataclass
class Case:
    """How to provoke a message about a corpus or a cache, and what of it is typed."""

    corpus: Callable[[Path], Path]
    typed: str
    """A pattern: what it finds in the message is added to the command."""
    given: tuple[str, ...] = ()
    fill: dict[str, str] = field(default_factory=dict)
    """What stands for the words in capitals."""
    cache: Callable[[Path, Path], None] = lambda cache, corpus: None
    """Makes the cache folder what the message is about."""


def text(folder: Path) -> Path:
    (folder / "a.txt").write_text(make_text(2000))
    return folder / "a.txt"


def bad_lines(folder: Path) -> Path:
    (folder / "a.jsonl").write_text('{"text": "some words and more of them"}\n{broken\n' * 3)
    return folder / "a.jsonl"


def other_field(folder: Path) -> Path:
    (folder / "a.jsonl").write_text('{"body": "some words and more of them"}\n' * 3)
    return folder / "a.jsonl"


def other_column(folder: Path) -> Path:
    pq.write_table(pa.table({"body": ["some words and more of them"] * 3}), folder / "a.parquet")
    return folder / "a.parquet"


def other_table(folder: Path) -> Path:
    (folder / "a.csv").write_text("id,body\n1,some words and more of them\n2,and others\n")
    return folder / "a.csv"


def bomb(folder: Path) -> Path:
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"words " * 11_200_000, 9))
    return folder / "a.txt.gz"


def other_things(cache: Path, _: Path) -> None:
    cache.mkdir()
    (cache / "thesis.doc").write_text("precious")


def a_file(cache: Path, _: Path) -> None:
    cache.write_text("precious")


def other_tokenizer(cache: Path, corpus: Path) -> None:
    hr.prepare([corpus], tokenizer="char", out=cache)


def changed_manifest(**changes: object) -> Callable[[Path, Path], None]:
    def change(cache: Path, corpus: Path) -> None:
        hr.prepare([corpus], tokenizer="byte", out=cache)
        write_checked_json(cache / "manifest.json", read_checked_json(cache / "manifest.json") | changes)

    return change


def other_tokenizer_file(cache: Path, corpus: Path) -> None:
    hr.prepare([corpus], tokenizer="byte", out=cache)
    (cache / "tokenizer.json").write_text("{}")


CACHE_DIR = r"data\.cache_dir=FOLDER"
CASES = {
    "malformed line": Case(bad_lines, r"data\.malformed_lines=skip"),
    "field": Case(other_field, r"data\.text_field=NAME", fill={"NAME": "body"}),
    "column of a table": Case(other_table, r"data\.text_field=body"),
    "table as it is": Case(other_table, r"data\.as_plain_text=true"),
    "column": Case(other_column, r"data\.text_field=NAME", fill={"NAME": "body"}),
    "expansion": Case(bomb, r"data\.max_expansion=FACTOR", fill={"FACTOR": "10000"}),
    "delimiter": Case(text, r"data\.delimiter=TEXT", ("data.document=delimiter",), {"TEXT": "river"}),
    "way of cutting": Case(text, r"data\.document=delimiter", ("data.delimiter=river",)),
    "tokenizer": Case(text, r"bpe:16000", ("data.tokenizer=bpe:many",)),
    "size": Case(text, r"256MiB", ("data.memory_budget=lots",)),
    "folder of something else": Case(text, CACHE_DIR, cache=other_things),
    "file": Case(text, CACHE_DIR, cache=a_file),
    "cache of another tokenizer": Case(text, CACHE_DIR, cache=other_tokenizer),
    "cache of another version": Case(text, CACHE_DIR, cache=changed_manifest(version=99)),
    "manifest of something else": Case(text, CACHE_DIR, cache=changed_manifest(format="other")),
    "lost tokenizer": Case(text, CACHE_DIR, cache=other_tokenizer_file),
}
# What a message gives as an example of a value is typed as this key's.
EXAMPLES = {"bpe:16000": "data.tokenizer=bpe:16000", "256MiB": "data.memory_budget=256MiB"}


@pytest.mark.parametrize("name", ["prepare", "train"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_about_corpus_and_cache(command: Command, tmp_path: Path, name: str, case: Case) -> None:
    corpus = case.corpus(tmp_path)
    case.cache(tmp_path / "cache", corpus)
    basis = [name, corpus, *(TINY if name == "train" else ())]
    arguments = [*basis, "data.tokenizer=byte", f"data.cache_dir={tmp_path / 'cache'}", *case.given]
    arguments += ["--out", tmp_path / "run"] if name == "train" else []
    code, _, err = command(*arguments)
    assert code in (1, 2)
    assert "Traceback" not in err
    found = re.search(case.typed, err)
    assert found, err
    typed = EXAMPLES.get(found.group(), found.group())
    for word, value in {"FOLDER": str(tmp_path / "another"), **case.fill}.items():
        typed = typed.replace(word, value)
    code, _, err = command(*arguments, typed)
    assert code == 0, err


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (("model.d_model=64", "model.num_heads=7"), r"model\.num_heads=\d+"),
        (("training.batch_size=9", "training.micro_batch_size=2"), r"training\.micro_batch_size=\d+"),
        (("model.vocab_size=100",), r"model\.vocab_size=\d+"),
        (("model.context=4",), r"model\.context=\d+"),
        (("model.context=4",), r"training\.max_length=\d+"),
        (("data.memory_budget=1MiB",), r"data\.memory_budget=\d+MiB"),
        (("training.num_epochs=1", "training.batch_size=4096"), r"training\.batch_size=\d+"),
    ],
)
def test_about_values(command: Command, tmp_path: Path, given: tuple[str, ...], typed: str) -> None:
    basis = ["train", text(tmp_path), *TINY, "data.tokenizer=byte", f"data.cache_dir={tmp_path / 'cache'}", *given]
    code, _, err = command(*basis, "--out", tmp_path / "run")
    found = re.search(typed, err)
    assert code in (1, 2)
    assert found, err
    code, _, err = command(*basis, found.group(), "--out", tmp_path / "second")
    assert code == 0, err


def test_about_a_batch_for_several_processes(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.session.launch", lambda *_: 0)
    arguments = ["train", text(tmp_path), *TINY, "training.batch_size=5", "run.processes=2"]
    code, _, err = command(*arguments)
    assert code == 2
    assert command(*arguments, re.search(r"training\.batch_size=\d+", err).group())[0] == 0  # type: ignore[union-attr]


def test_about_memory(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.run.memory.available_memory_bytes", lambda: 1 << 20)
    arguments = ["train", text(tmp_path), *TINY, "data.tokenizer=byte", "training.max_length=512", "model.d_model=256"]
    arguments += [f"data.cache_dir={tmp_path / 'cache'}", "--out", tmp_path / "run"]
    code, _, err = command(*arguments)
    assert code == 2
    assert "run.force=true" in err
    assert command(*arguments, "run.force=true")[0] == 0


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        ("max_step=3", "training.max_steps"),
        ("trainng.max_steps=3", "training.max_steps"),
        ("training.bacth_size=3", "training.batch_size"),
        ("data.d_model=192", "model.d_model"),
    ],
)
def test_about_keys(command: Command, given: str, typed: str) -> None:
    code, _, err = command("config", given)
    assert code == 2
    assert f"Did you mean {typed}?" in err
    assert command("config", f"{typed}={given.partition('=')[2]}")[0] == 0


def run_of(err: str, text: Path) -> list[str]:
    """The command that a message ends with, its capitals filled in."""
    found = re.search(r"headrace ((?:train|prepare) .*)", err)
    assert found, err
    return [str(text) if word == "TEXT" else word for word in found.group(1).split()]


def test_about_caches_in_the_wrong_place(command: Command, tmp_path: Path) -> None:
    code, _, err = command("inspect", tmp_path / "cache")
    assert code == 1
    assert command(*run_of(err, text(tmp_path)), "--tokenizer", "byte")[0] == 0
    assert command("inspect", tmp_path / "cache")[0] == 0
    assert command("train", tmp_path / "cache", *TINY, "--out", tmp_path / "run")[0] == 0


def test_about_runs(command: Command, tmp_path: Path) -> None:
    run, own = tmp_path / "run", [text(tmp_path), *TINY, "data.tokenizer=byte", f"data.cache_dir={tmp_path / 'cache'}"]
    code, _, err = command("generate", run)
    assert code == 1
    assert command(*run_of(err, tmp_path), *own)[0] == 0
    assert command("generate", run, "--max-tokens", 2)[0] == 0
    code, _, err = command("train", *own, "--out", run)
    assert code == 2
    assert command("train", *own, "--out", tmp_path / "another")[0] == 0
    assert command(*run_of(err, tmp_path), "training.max_steps=2")[0] == 0


def damage_manifest(cache: Path) -> None:
    (cache / "manifest.json").write_text("{}")


def damage_shard(cache: Path) -> None:
    shard = next(cache.glob("shards/*.tokens"))
    shard.write_bytes(bytes(shard.stat().st_size))


@pytest.mark.parametrize("damage", [damage_manifest, damage_shard])
@pytest.mark.parametrize("name", ["prepare", "train"])
def test_about_damage(command: Command, tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    cache = tmp_path / "cache"
    arguments = [name, text(tmp_path), *(TINY if name == "train" else ()), "data.tokenizer=byte"]
    arguments.append(f"data.cache_dir={cache}")
    assert command(*arguments, *(["--out", tmp_path / "run"] if name == "train" else []))[0] == 0
    damage(cache)
    code, _, err = command("inspect", cache, "--verify")
    assert code == 1
    found = re.search(r"Delete it and run `headrace prepare` again|Run the `headrace prepare` or `headrace train`", err)
    assert found, err
    if found.group().startswith("Delete it"):
        (cache / "manifest.json").unlink()
    assert command(*arguments, *(["--out", tmp_path / "again"] if name == "train" else []))[0] == 0
    assert command("inspect", cache, "--verify")[0] == 0


def test_about_an_unfinished_cache(command: Command, tmp_path: Path) -> None:
    cache = open_or_create(as_sources([str(text(tmp_path))]), "byte", tmp_path / "cache")
    Builder(cache).close()
    code, _, err = command("inspect", tmp_path / "cache")
    assert code == 1
    assert "Run the command that began it again" in err
    assert command("prepare", tmp_path / "a.txt", "--tokenizer", "byte", "--out", tmp_path / "cache")[0] == 0
    assert command("inspect", tmp_path / "cache")[0] == 0


def test_about_options_of_inspect(command: Command, tmp_path: Path) -> None:
    sources = [{"path": str(text(tmp_path))}, {"path": str(bad_lines(tmp_path)), "malformed_lines": "skip"}]
    hr.prepare(sources, tokenizer="byte", out=tmp_path / "cache")
    step = ["inspect", tmp_path / "cache", "--step", 0, "--sequence-length", 8]
    _, _, err = command(*step, "--weights", "many")
    assert command(*step, "--weights", re.search(r"[\d.]+,[\d.]+", err).group())[0] == 0  # type: ignore[union-attr]
    _, _, err = command(*step, "--packing", "tight")
    choices = re.findall(r"'(\w+)'", err.partition("is not one of")[2])
    assert choices == ["stream", "document"]
    for choice in choices:
        assert command(*step, "--packing", choice)[0] == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_about_disks(command: Command, tmp_path: Path, code: int) -> None:
    said = str(writing_failed(tmp_path / "cache", OSError(code, "cannot")))
    typed = re.search(CACHE_DIR, said).group().replace("FOLDER", str(tmp_path / "other"))  # type: ignore[union-attr]
    assert "--out" in said
    assert command("prepare", text(tmp_path), "--tokenizer", "byte", "--out", tmp_path / "full", typed)[0] == 0
    assert not (tmp_path / "full").exists()


# Everything that messages name exists


def messages() -> dict[str, set[str]]:
    """Every piece of text in the source that is not a docstring, by file."""
    found: dict[str, set[str]] = {}
    for path in Path(hr.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found[path.name] = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone
        }
    return found


def test_messages_name_keys_that_exist() -> None:
    known = {*all_keys(), *ALIASES}
    for file, texts in messages().items():
        for piece in texts:
            named = re.findall(r"(?<![\w./-])(?:model|training|data|run)\.[a-z]\w+(?![\w./-])(?=[ =,;:)]|$)", piece)
            wrong = {key for key in named if key not in known and not key.endswith((".lock", ".json", ".safetensors"))}
            assert not wrong, f"{file}: {piece!r}"
            assert not re.search(r"\b[Ss]et [a-z_]+(:| to )", piece), f"{file}: {piece!r}"


def test_messages_name_commands_and_options_that_exist() -> None:
    commands: dict[str, set[str]] = {}

    def collect(group: dict[str, Any], prefix: str) -> None:
        for name, one in group.items():
            commands[f"{prefix}{name}"] = {option for parameter in one.params for option in parameter.opts}
            collect(getattr(one, "commands", {}), f"{prefix}{name} ")

    collect({name: load_command(name) for name in COMMANDS}, "")
    options = {option for of_one in commands.values() for option in of_one}
    for file, texts in messages().items():
        for piece in texts:
            for name in re.findall(r"(?:`|: |with )headrace ([a-z]+)", piece):
                assert name in commands, f"{file}: {piece!r}"
            if file not in ("launch.py", "parallel.py", "scale.py"):  # these pass options to others' programs
                wrong = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", piece)) - options - {"--version", "--help", "--no-"}
                assert not wrong, f"{file}: {piece!r}"


def test_json_of_a_failed_command_is_no_half_object(command: Command, tmp_path: Path) -> None:
    code, out, err = command("inspect", tmp_path, "--json")
    assert (code, out) == (1, "")
    assert "error: " in err
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(out)
