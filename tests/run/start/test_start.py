"""Runs that begin from a model: another run, a folder that transformers saved; what contradicts it; resuming."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.errors import CheckpointError, HeadraceError, UsageError
from headrace.jobs.config import resolve
from headrace.jobs.train import train
from headrace.run.config import Config, Layers
from headrace.run.pretraining import Pretraining
from headrace.run.saved_model import load_model
from tests.conftest import make_text
from tests.interop.pretrained.tiny_models import KINDS, logits_of, make_model, save_model
from tests.run.tiny_run import losses, settings

pytestmark = pytest.mark.filterwarnings("ignore")  # of the neighbours
ABOUT_THE_MODEL = ("model.", "data.tokenizer", "data.cache_dir")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "user-cache"))
    monkeypatch.setattr("headrace.run.environment.measure_peak_flops", lambda *_: 1e9)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(make_text(30_000, seed=4))
    return tmp_path / "corpus.txt"


def continuing(corpus: Path, name: str, init: object, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run that begins from a model, and says nothing else of the network."""
    values = settings(corpus, corpus.parent / name, **{"training.max_steps": 3, "training.evaluate_every": 3})
    kept = {key: value for key, value in values.items() if not key.startswith(ABOUT_THE_MODEL)}
    return {**kept, "model.init": str(init), **changes}


def built(values: dict[str, Any]) -> Config:
    layers = Layers()
    layers.add(values, "the test")
    return layers.build()


@pytest.mark.parametrize("arch", ["gpt2", "qwen3", "llama"])
def test_a_run_goes_on_with_the_loss_of_the_checkpoint(corpus: Path, arch: str) -> None:
    """The same text and sample: what a run begins with is what the one before it ended with, within 1e-4."""
    whole = {"training.evaluation_tokens": 0, "model.arch": arch}
    first = train(**settings(corpus, corpus.parent / "first", **whole))
    second = train(**continuing(corpus, "second", corpus.parent / "first", **{"training.evaluation_tokens": 0}))
    start = second.continues_from
    assert start is not None and start.kind == "run" and (start.steps, start.tokens) == (12, first.tokens)
    assert start.validation_loss == pytest.approx(first.best_validation_loss, abs=1e-4)
    network, _ = load_model(corpus.parent / "first")
    config = json.loads((corpus.parent / "second" / "config.json").read_text())
    assert (
        config["model"]["d_model"] == network.config.d_model and config["data"]["tokenizer"] == config["model"]["init"]
    )
    assert abs(second.first_loss - first.smoothed_loss) < 1  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_before_the_first_step_and_of_what_is_saved(corpus: Path, tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = make_model(kind)
    folder = save_model(tmp_path / "model", model)
    tokens = torch.randint(300, (2, 30), generator=torch.Generator().manual_seed(1))
    with Pretraining(built(continuing(corpus, "run", folder))) as pretraining:
        with torch.no_grad():
            network = pretraining.network
            difference = (network.logits(network(tokens)) - logits_of(model, tokens)).abs().max()
        assert difference < 1e-4
        assert len(list(pretraining.steps())) == 3
    network, tokenizer = load_model(tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "last"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(saved.resolve())
    with torch.no_grad():
        assert (network.logits(network(tokens)) - logits_of(theirs, tokens)).abs().max() < 1e-4
    assert (
        transformers.AutoTokenizer.from_pretrained(saved.resolve())("the mill")["input_ids"]
        == tokenizer.encode("the mill").tolist()
    )


def test_native_steps_are_left_to_torch_where_they_lack_the_shape(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("qwen3 grouped"))
    with pytest.raises(UsageError, match=r"training.engine=native is not possible: it does not know grouped heads"):
        train(**continuing(corpus, "run", folder, **{"training.engine": "native", "training.micro_batch_size": 0}))
    folder = save_model(tmp_path / "plain", make_model("qwen3"))
    run = train(**continuing(corpus, "auto", folder, **{"training.engine": "auto", "training.micro_batch_size": 0}))
    assert run.steps == 3


def test_new_tokens_are_trained_and_saved(corpus: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save_model(tmp_path / "model", make_model("llama"))
    corpus.write_text("".join(f"<|user|>{line}\n" for line in corpus.read_text().splitlines()))
    values = continuing(corpus, "run", folder, **{"model.new_tokens": ["<|user|>", "mill"]})
    with Pretraining(built(values)) as pretraining:
        weights = pretraining.network.embedding.weight.detach().clone()
        head = pretraining.network.head_weight_VD.detach().clone()
        before = {name: tensor.clone() for name, tensor in load_model(folder)[0].named_parameters()}
        list(pretraining.steps())
    _, plain = load_model(folder)
    pieces = plain.encode("<|user|>").tolist()
    torch.testing.assert_close(weights[300], before["embedding.weight"][pieces].mean(0))
    torch.testing.assert_close(head[300], before["head"][pieces].mean(0))
    torch.testing.assert_close(weights[:300], before["embedding.weight"])
    network, tokenizer = load_model(tmp_path / "run")
    assert network.config.vocab_size == tokenizer.vocab_size == 302
    assert not torch.equal(network.embedding.weight[300], weights[300]), "it was trained"
    saved = (tmp_path / "run" / "checkpoints" / "last").resolve()
    assert transformers.AutoTokenizer.from_pretrained(saved)("<|user|>")["input_ids"] == [300]
    assert transformers.AutoModelForCausalLM.from_pretrained(saved).config.vocab_size == 302


def test_a_resumed_run_does_not_read_the_model_again(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("llama grouped"))
    changes = {"model.new_tokens": ["mill"], "training.max_steps": 6}
    train(**continuing(corpus, "whole", folder, **changes))
    train(**continuing(corpus, "cut", folder, **{**changes, "training.max_steps": 3}))
    shutil.rmtree(folder)
    for again in ({"run.resume": True}, {"run.resume": "auto"}):
        run = train(**continuing(corpus, "cut", folder, **{**changes, **again}))
        assert run.continues_from is not None and run.continues_from.new_tokens == 1
    assert [step for step, _ in losses(tmp_path / "cut")] == [*range(1, 7)]
    # The schedule of the first three steps was another, so only what they start with is the same.
    assert losses(tmp_path / "cut")[0] == losses(tmp_path / "whole")[0]
    with pytest.raises(CheckpointError, match=r"model.d_model was 32 in the run and is 64 now"):
        train(**continuing(corpus, "cut", folder, **{**changes, "run.resume": True, "model.d_model": 64}))
    other = {**changes, "run.resume": True, "training.max_steps": 9}
    with pytest.raises(CheckpointError, match=r"model.init was .* in the run and is 'elsewhere' now"):
        train(**continuing(corpus, "cut", "elsewhere", **other))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("qwen3"))
    values = continuing(corpus, "run", folder, **{"model.new_tokens": ["mill"]})
    with Pretraining(built(values)):
        pass
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    layers = Layers()
    layers.add(saved, "config.json")
    layers.add({"run.resume": True}, "--resume")
    with Pretraining(layers.build()) as pretraining:
        assert len(list(pretraining.steps())) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.d_model": 64}, "model.d_model=64: contradicts model.init=.*, which has 32. Leave model.d_model out"),
        ({"model.num_heads": 7}, "model.num_heads=7: contradicts .* which has 4"),
        ({"model.arch": "gpt2"}, "model.arch=gpt2: contradicts .* which has qwen3"),
        ({"model.num_kv_heads": 4}, "model.num_kv_heads=4: contradicts .* which has 2"),
        ({"model.tie_embeddings": True}, "model.tie_embeddings=True: contradicts"),
        ({"model.vocab_size": 200}, "model.vocab_size=200: contradicts .* which needs 300"),
        ({"training.max_length": 100}, "model.context=100 or training.max_length=64"),
        ({"data.tokenizer": "bpe:400"}, "would be learned anew"),
        ({"data.tokenizer": "byte"}, "gives other ids than the tokenizer of model.init"),
        ({"model.init": "nowhere"}, "nowhere: no such run. .*A model of the hub is named OWNER/NAME"),
        ({"model.init": "runs/nowhere"}, "runs/nowhere: no such run"),
    ],
)
def test_what_contradicts_the_model_is_an_error(
    corpus: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = save_model(tmp_path / "model", make_model("qwen3 grouped"))
    with pytest.raises(HeadraceError, match=message):
        train(**continuing(corpus, "run", folder, **changes))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_what_agrees_with_the_model_may_be_given(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("qwen3 grouped"))
    same = {
        "model.d_model": 32, "model.num_kv_heads": 2, "model.num_heads": 0, "model.vocab_size": 320,
        "model.context": 96, "training.max_length": 96, "data.tokenizer": str(folder / "tokenizer.json"),
    }  # fmt: skip
    assert train(**continuing(corpus, "run", folder, **same)).steps == 3
    network, _ = load_model(tmp_path / "run")
    assert (network.config.vocab_size, network.config.context) == (320, 96)


def test_positions_that_were_learned_cannot_grow(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("gpt2"))
    for changes, message in (
        ({"model.context": 128}, "has learned 64 positions"),
        ({"training.max_length": 128}, "Use training.max_length=64"),
    ):
        with pytest.raises(UsageError, match=message):
            train(**continuing(corpus, "run", folder, **changes))


def test_tokenizers_that_are_missing_or_of_another_model(corpus: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_model("gpt2", vocab_size=256))
    with pytest.raises(CheckpointError, match=r"has ids up to 299, and the model .* has 256 tokens: .*another model"):
        train(**continuing(corpus, "run", folder))
    with pytest.raises(CheckpointError, match="the tokenizer belongs to another model"):
        load_model(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json. Give data.tokenizer"):
        train(**continuing(corpus, "run", folder))
    with pytest.raises(UsageError, match="new_tokens are added to the vocabulary of a model"):
        train(**settings(corpus, tmp_path / "run", **{"model.new_tokens": ["a"]}))


def test_a_preset_gives_way_to_the_model(corpus: Path, tmp_path: Path) -> None:
    from headrace.run.presets import PRESETS

    folder = save_model(tmp_path / "model", make_model("llama"))
    layers = Layers()
    layers.add(PRESETS["shakespeare-char"](), "preset shakespeare-char")
    layers.add({"model.init": str(folder), "data.sources": [str(corpus)]}, "the command line")
    used = {key: setting.used for key, setting in resolve(layers).items()}
    assert (used["model.d_model"], used["model.arch"], used["data.tokenizer"]) == (32, "llama", str(folder))


def test_a_token_cache_of_the_same_tokenizer(corpus: Path, tmp_path: Path) -> None:
    import headrace as hr

    folder = save_model(tmp_path / "model", make_model("llama"))
    hr.prepare([corpus], tokenizer=str(folder), out=tmp_path / "tokens")
    values = continuing(corpus, "run", folder, **{"data.sources": [str(tmp_path / "tokens")]})
    assert train(**values).steps == 3
    with pytest.raises(UsageError, match="the token cache was made without them"):
        train(**{**values, "run.out": str(tmp_path / "other"), "model.new_tokens": ["mill"]})
    hr.prepare([corpus], tokenizer="byte", out=tmp_path / "bytes")
    with pytest.raises(UsageError, match="gives other ids"):
        train(**{**values, "run.out": str(tmp_path / "bad"), "data.sources": [str(tmp_path / "bytes")]})
