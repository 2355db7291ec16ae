"""Files made to do harm: refused with one message, nothing outside is touched, no memory is lost to them."""

from __future__ import annotations

import gzip
import json
import resource
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from headrace.files import canonical_json, digest
from headrace.training.restore import file_hash
from tests.faults.bench import Workbench, fault

MOST_BYTES = 6 << 30  # of address space: torch alone takes four


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def _rewrite(path: Path, change: Any) -> None:
    """Change a checked JSON file and give it a right checksum again, as an attacker would."""
    value = json.loads(path.read_bytes())
    value.pop("checksum")
    change(value)
    path.write_text(canonical_json({**value, "checksum": digest(canonical_json(value))}), encoding="utf-8")


def _trained(bench: Workbench) -> Path:
    bench.run(*bench.training(training__max_steps=10)).expect(0)
    return bench.folder / "run" / "checkpoints" / "last"


@fault("hostile file", "a manifest names ../../victim: nothing outside the cache is removed or written")
def escaping_manifest(bench: Workbench) -> None:
    cache = bench.folder / "cache"
    bench.run("prepare", bench.corpus, "--tokenizer", "byte", "--out", cache).expect(0)
    victims = [bench.folder / f"victim{suffix}" for suffix in (".json", ".tokens", ".ends")]
    for victim in victims:
        victim.write_text("precious", encoding="utf-8")

    def escape(manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest)
        key = next(path.stem for path in (cache / "shards").glob("*.json"))
        manifest |= {**json.loads(text.replace(key, "../../victim")), "retired": ["../../victim"]}

    _rewrite(cache / "manifest.json", escape)
    for command in (("inspect", cache, "--verify"), ("prepare", bench.corpus, "--tokenizer", "byte", "--out", cache)):
        outcome = bench.run(*command)
        assert "Traceback" not in outcome.stderr, outcome.stderr[-300:]
        bench.corpus.write_text(bench.corpus.read_text(encoding="utf-8") + " More.", encoding="utf-8")
    bench.run("prepare", bench.corpus, "--tokenizer", "byte", "--out", cache)
    assert all(victim.exists() and victim.read_text() == "precious" for victim in victims), "a file outside was touched"


def _replace_tensors(checkpoint: Path, name: str, change: Any) -> None:
    tensors = {key: change(tensor) for key, tensor in load_file(checkpoint / name).items()}
    save_file(tensors, checkpoint / name, metadata={"format": "pt"})
    _rewrite(checkpoint / "state.json", lambda state: state["files"].update({name: file_hash(checkpoint / name)}))


@fault("hostile file", "optimizer tensors of other shapes: refused by name, no crash")
def wrong_optimizer_shapes(bench: Workbench) -> None:
    checkpoint = _trained(bench)
    _replace_tensors(checkpoint, "optimizer.safetensors", lambda tensor: torch.zeros(1) if tensor.dim() else tensor)
    bench.run("train", "--resume", bench.folder / "run", "training.max_steps=20").expect(1, "optimizer.safetensors")


@fault("hostile file", "int8 weights: refused by name")
def int8_weights(bench: Workbench) -> None:
    checkpoint = _trained(bench)
    _replace_tensors(checkpoint, "model.safetensors", lambda tensor: tensor.to(torch.int8))
    bench.run("train", "--resume", bench.folder / "run", "training.max_steps=20").expect(1, "model.safetensors")


@fault("hostile file", "weights that are not numbers: one message, in resume and in generate")
def nan_weights(bench: Workbench) -> None:
    checkpoint = _trained(bench)
    _replace_tensors(checkpoint, "model.safetensors", lambda tensor: tensor * float("nan"))
    bench.run("train", "--resume", bench.folder / "run", "training.max_steps=20").expect(1, "model.safetensors")
    bench.run("generate", bench.folder / "run", "--prompt", "A").expect(1, "model.safetensors")


@fault("hostile file", "a damaged state.json: says what to do, and what it says works")
def damaged_state(bench: Workbench) -> None:
    checkpoint = _trained(bench)
    (checkpoint / "state.json").write_text("{", encoding="utf-8")
    outcome = bench.run("train", "--resume", bench.folder / "run", "training.max_steps=20").expect(1, "state.json")
    assert "prepare" not in outcome.stderr, "advises `headrace prepare`"


@fault("hostile file", "a gzip file that expands a thousand times: refused within its memory")
def gzip_bomb(bench: Workbench) -> None:
    bomb = bench.folder / "bomb.txt.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(300):
            file.write(b"\0" * (1 << 20))
    bench.run("prepare", bomb, "--tokenizer", "byte", "--out", bench.folder / "cache", preexec_fn=_limit_memory).expect(
        1, "bomb.txt.gz"
    )


@fault(
    "hostile file", "a parquet file of a few hundred bytes that claims 4 GiB of text: refused or read within its memory"
)
def parquet_bomb(bench: Workbench) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bomb = bench.folder / "bomb.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["a" * (32 << 20)]))
    pq.write_table(pa.table({"text": column}), bomb, compression="zstd")
    outcome = bench.run(
        "prepare", bomb, "--tokenizer", "byte", "--out", bench.folder / "cache", preexec_fn=_limit_memory
    )
    assert outcome.code in (0, 1), f"exit code {outcome.code}: {outcome.stderr[-300:]}"
    assert "Traceback" not in outcome.stderr, outcome.stderr[-300:]


@fault("hostile file", "YAML aliases that multiply, JSON nested ten thousand deep: refused as configurations")
def config_bombs(bench: Workbench) -> None:
    yaml = bench.folder / "bomb.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    yaml.write_text("\n".join(lines), encoding="utf-8")
    bench.run("train", yaml, preexec_fn=_limit_memory).expect(2, "bomb.yaml")
    nested = bench.folder / "deep.json"
    nested.write_text('{"model":' * 10_000 + "1" + "}" * 10_000, encoding="utf-8")
    bench.run("train", nested).expect(2, "deep.json")


@fault("hostile file", "a tokenizer.json nested ten thousand deep, and one that is not UTF-8: refused by name")
def tokenizer_bombs(bench: Workbench) -> None:
    for name, content in (("deep.json", b'{"a":' * 10_000 + b"1" + b"}" * 10_000), ("latin.json", b'{"a": "\xfc"}')):
        (bench.folder / name).write_bytes(content)
        bench.run("prepare", bench.corpus, "--tokenizer", bench.folder / name, "--out", bench.folder / "cache").expect(
            1, name
        )


@fault("hostile file", "a folder of pickled weights: refused")
def pickles(bench: Workbench) -> None:
    folder = bench.folder / "model"
    folder.mkdir()
    torch.save({"weight": torch.zeros(2)}, folder / "pytorch_model.bin")
    outcome = bench.run("generate", folder, "--prompt", "A")
    assert outcome.code in (1, 2) and "Traceback" not in outcome.stderr, outcome.stderr[-300:]
