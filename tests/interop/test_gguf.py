"""GGUF files, judged by llama.cpp: the same tokens, log-probabilities and greedy text as transformers has."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.data.tokens.tokenizers import Tokenizer, from_json, load_tokenizer
from headrace.errors import HeadraceError, UsageError
from headrace.interop import gguf
from headrace.interop.gguf_vocabulary import make_vocabulary
from headrace.jobs.export import export_gguf
from headrace.models.config import ModelConfig
from headrace.models.network import Network, build
from headrace.training.checkpoint import Checkpoints
from tests.conftest import make_text
from tests.interop.llama_cpp import LlamaCpp

Command = Callable[..., tuple[int, str, str]]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the neighbours
    pytest.mark.skipif(find_spec("gguf") is None, reason="pip install 'headrace[dev]'"),
]

CONTEXT = 64
NASTY = [
    "The mill's wheel can't turn; we'll see.  It'S 3.14159 or 1234567890…\n\n\tindented\r\n  \u00a0\u3000end \n",
    "naïve café Ünïcödé ΑΒΓ привет мир עברית العربية हिन्दी 日本語のテキスト。中文没有空格 한국어",
    "👩‍👩‍👧 e\u0301 ½ Ⅷ ﬁ \x01\x7f\u200b\u2028 a_b CamelCase x+=1; // <html>&nbsp;</html> 'quoted' \"twice\"",
    " leading", "trailing ", "   ", "\n", "a", "", "\x00", "<|endoftext|>", "a<|endoftext|>b", "  \n \n\n  x",
    "it's'll'S", "\u0130\u0131ß\u1e9e", "🌾🌾 🌾", "\U0001d518\U0001d52b \U00010348 \U0001f1e9\U0001f1ea", "x" * 300,
    "12345 1234 ١٢٣ ৪৫", "\ufeffmark \ufffd",
]  # fmt: skip
TEXT = make_text(20_000) + "".join(NASTY)


def make_checkpoint(folder: Path, arch: str, spec: str, **changes: Any) -> tuple[Path, Network, Tokenizer]:
    """Save an untrained model with weights that are far from zero. Its likeliest tokens are whole characters."""
    tokenizer = load_tokenizer(spec, lambda: iter([TEXT.encode()]))
    shape = {"arch": arch, "d_model": 64, "num_heads": 4, "num_layers": 2, "context": CONTEXT, **changes}
    config = ModelConfig(**{"vocab_size": tokenizer.vocab_size, **shape})
    network = build(config, seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        broken = [index for index in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.decode([index])]
        network.head_weight_VD[broken] = 0  # llama.cpp's server gives no probabilities of half a character
    data = {"tokenizer": spec, "special_tokens_in_text": "ordinary"}
    state = {"config": {"model": config.model_dump(), "data": data}, "position": {"step": 7, "tokens": 1234}}
    checkpoint = Checkpoints(folder / "mine" / "checkpoints").save(7, network, {}, tokenizer, state, True)
    return checkpoint, network, tokenizer


def greedy(model: Any, prompt: list[int], num_tokens: int, never: int) -> tuple[list[int], list[torch.Tensor]]:
    """Return transformers' likeliest tokens after a prompt, and its log-probabilities at each."""
    ids, steps = list(prompt), []
    with torch.no_grad():
        for _ in range(num_tokens):
            steps.append(model(torch.tensor([ids])).logits[0, -1].log_softmax(-1))
            likely = steps[-1].clone()
            likely[never] = -torch.inf
            ids.append(int(likely.argmax()))
    return ids[len(prompt) :], steps


GROUPED = {"num_kv_heads": 2, "head_dim": 24, "norm_epsilon": 1e-4, "rope_theta": 50_000.0}


@pytest.mark.parametrize(
    ("arch", "spec", "changes"),
    [
        *((arch, spec, {}) for arch in ("gpt2", "qwen3", "llama") for spec in ("bpe:400", "char", "byte")),
        *((arch, "bpe:400", GROUPED) for arch in ("qwen3", "llama")),
    ],
)
def test_llama_cpp_computes_what_transformers_does(
    tmp_path: Path, arch: str, spec: str, changes: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    checkpoint, _, tokenizer = make_checkpoint(tmp_path, arch, spec, **changes)
    llama = LlamaCpp(export_gguf(checkpoint).model, CONTEXT)
    for text in NASTY:
        ids = tokenizer.encode(text).tolist()
        assert llama.tokens(text) == ids, text
        assert llama.text(ids) == text
    assert llama.tokens("a<|endoftext|>", special=True)[-1] == tokenizer.end_of_text_id
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    prompt = tokenizer.encode("the mill").tolist()
    expected, probabilities = greedy(model, prompt, 40, tokenizer.end_of_text_id)
    found, steps = llama.continue_greedily(prompt, 40, tokenizer.vocab_size)
    assert found == expected
    assert len(steps) == 40
    differences = [
        abs(float(theirs[index]) - step[index])
        for step, theirs in zip(steps, probabilities, strict=True)
        for index in step
    ]
    assert len(differences) >= 40 * (tokenizer.vocab_size - 1)
    assert max(differences) < 1e-3


@pytest.mark.parametrize("changes", [{"tie_embeddings": False}, {"bias": False}, {"d_model": 40, "d_ff": 72}], ids=str)
@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 1e-3), ("f16", 0.02), ("bf16", 0.15), ("q8_0", 0.15)])
@pytest.mark.parametrize("arch", ["gpt2", "qwen3"])
def test_every_type_of_weight(tmp_path: Path, arch: str, changes: dict[str, Any], kind: str, tolerance: float) -> None:
    checkpoint, network, tokenizer = make_checkpoint(tmp_path, arch, "char", **changes)
    prompt = tokenizer.encode("the mill").tolist()
    _, (step, *_) = LlamaCpp(export_gguf(checkpoint, kind).model, CONTEXT).continue_greedily(prompt, 1, 200)
    with torch.no_grad():
        expected = network.logits(network(torch.tensor([prompt])))[0, -1].log_softmax(-1)
    assert max(abs(float(expected[index]) - value) for index, value in step.items()) < tolerance


def test_the_command_says_what_it_wrote(tmp_path: Path, command: Command) -> None:
    make_checkpoint(tmp_path, "qwen3", "char", vocab_size=300)
    code, out, err = command("export", tmp_path / "mine", "--gguf", "--type", "f16", "--json")
    assert code == 0
    path = tmp_path / "mine" / "gguf" / "mine-f16.gguf"
    assert json.loads(out.splitlines()[-1]) == {
        "run": str(tmp_path / "mine"), "gguf": str(path), "type": "f16", "bytes": path.stat().st_size,
        "modelfile": str(path.with_name("Modelfile")),
    }  # fmt: skip
    assert f"ollama create mine -f {path.with_name('Modelfile')}" in out
    assert "characters that the training text did not have" in err
    assert path.with_name("Modelfile").read_text().startswith("FROM ./mine-f16.gguf\n")
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    said = {name: fields[name].contents() for name in fields if not name.startswith("tokenizer")}
    assert said["general.name"] == "mine"
    assert said["headrace.training_tokens"] == 1234
    assert "headrace.version" in said
    assert {file.name for file in path.parent.iterdir()} == {path.name, "Modelfile"}
    code, out, _ = command("export", tmp_path / "mine" / "checkpoints" / "best", "--gguf", "--out", tmp_path / "a.gguf")
    assert code == 0 and (tmp_path / "a.gguf").exists()


OLLAMA_NAME = r"(?!.*\.\.)[a-z0-9_][a-z0-9_.-]{0,79}"


@pytest.mark.parametrize("name", ["mine", "My Run (2)", "Übung..3", "x" * 90])
def test_the_modelfile_says_what_ollama_understands(tmp_path: Path, name: str) -> None:
    """Ollama is in no package that can be installed here: its client knows the parameters, its manual the syntax."""
    ollama = pytest.importorskip("ollama", reason="pip install 'headrace[dev]'")
    checkpoint, _, _ = make_checkpoint(tmp_path, "qwen3", "byte")
    (tmp_path / "mine").rename(tmp_path / name)
    exported = export_gguf(tmp_path / name / checkpoint.relative_to(tmp_path / "mine"))
    assert re.fullmatch(OLLAMA_NAME, exported.name)
    said = [line.split(maxsplit=1) for line in exported.modelfile.read_text().splitlines()]
    assert [instruction for instruction, _ in said] == ["FROM", "TEMPLATE", *["PARAMETER"] * (len(said) - 2)]
    (_, model), (_, template), *parameters = said
    assert (exported.modelfile.parent / model).read_bytes()[:4] == b"GGUF"
    assert template == '"""{{ .Prompt }}"""'
    options = dict(value.split() for _, value in parameters)
    assert set(options) <= set(ollama.Options.model_fields)
    assert ollama.Options(**options).num_ctx == CONTEXT


def test_what_cannot_be_asked_for(tmp_path: Path, command: Command) -> None:
    make_checkpoint(tmp_path, "qwen3", "byte")
    for arguments, message in (
        (("--gguf", "--type", "q4_k"), "--type q4_k: use one of f32, f16, bf16, q8_0"),
        ((), "say which file to write: --gguf"),
    ):
        code, _, err = command("export", tmp_path / "mine", *arguments)
        assert code == 2
        assert message in err
    assert command("export", tmp_path / "nothing", "--gguf")[0] == 1


def foreign(**changes: Any) -> Tokenizer:
    data = json.loads(load_tokenizer("bpe:300", lambda: iter([TEXT.encode()])).json)
    for key, value in changes.items():
        place, _, name = key.rpartition("__")
        (data[place] if place else data)[name] = value
    return from_json("theirs.json", json.dumps(data), "theirs.json")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, "its normalizer NFC changes text first"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre-tokenizer is Whitespace, not ByteLevel"),
        ({"pre_tokenizer__add_prefix_space": True}, "adds a space before a text"),
        ({"pre_tokenizer__use_regex": False}, "does not split text into words"),
        ({"model__ignore_merges": True}, "its BPE has ignore_merges"),
        ({"model__end_of_word_suffix": "</w>"}, "its BPE has end_of_word_suffix"),
    ],
    ids=str,
)
def test_what_gguf_cannot_express_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=r"tokenizer theirs.json: GGUF cannot express it: .*" + reason):
        make_vocabulary(foreign(**changes), 300)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, *_ = make_checkpoint(tmp_path, "qwen3", "byte")
    monkeypatch.delitem(gguf._DESCRIBE, "qwen3")
    with pytest.raises(UsageError, match=r"model.arch qwen3: GGUF export knows gpt2, llama only"):
        export_gguf(checkpoint)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place]).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_one_message_and_nothing_half_written(tmp_path: Path, small_disk: Path) -> None:
    checkpoint, *_ = make_checkpoint(tmp_path, "qwen3", "byte")
    with pytest.raises(HeadraceError, match=r"mine-f32.gguf: the disk is full"):
        export_gguf(checkpoint, "f32", small_disk)
    assert not list(small_disk.iterdir())
    (small_disk / "old.gguf").write_bytes(b"what was there")
    with pytest.raises(HeadraceError, match="the disk is full"):
        export_gguf(checkpoint, "f32", small_disk / "old.gguf")
    assert [file.read_bytes() for file in small_disk.iterdir()] == [b"what was there"]
