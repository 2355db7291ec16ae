"""An architecture that headrace does not know, defined here and in no other file, does all that the built-in ones do.

docs/design/architectures.md shows the same file and explains it; the two are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.utils.flop_counter import FlopCounterMode

from headrace.distributed.replicas import Replica
from headrace.generation.sampling import Sampling
from headrace.instruments.rehearsal import quick_execution, random_batch, rehearse
from headrace.jobs.generate import stream_text
from headrace.jobs.train import train
from headrace.models.architecture import Architecture, Matrix, Part, find_architecture, register, unregister
from headrace.models.attention import KeyValueCache, attend
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.kernels import Kernels
from headrace.models.linear import Linear
from headrace.models.network import Network, build
from headrace.report import report
from headrace.run.config import Layers
from headrace.run.memory import count_memory
from headrace.run.pretraining import Pretraining
from headrace.run.saved_model import load_model
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution, Precision
from headrace.training.optimizers.assignment import assign, state_bytes, update_flops
from headrace.training.optimizers.muon import Muon
from headrace.training.step import batch_loss
from headrace.training.ways.activations import activation_bytes_per_token
from tests.conftest import make_text
from tests.run.tiny_run import settings

# --- the file of the architecture, as docs/design/architectures.md shows it ---


class SquaredArchitecture(Architecture):
    """The facts of `squared`: no biases, squared ReLU, learned positions."""

    name = "squared"

    def default_feed_forward(self, d_model: int) -> int:
        return 3 * d_model

    def block_matrices(self, config: ModelConfig) -> list[Matrix]:
        width, feed_forward = config.d_model, config.feed_forward
        return [
            Matrix("attention", "query_key_value.weight", width, width, stacked=3),
            Matrix("attention", "out.weight", width, width),
            Matrix("feed-forward", "up.weight", feed_forward, width),
            Matrix("feed-forward", "down.weight", width, feed_forward),
        ]

    def other_parameters(self, config: ModelConfig) -> dict[Part, int]:
        return {"embedding": config.context * config.d_model, "norms": (2 * config.num_layers + 1) * config.d_model}

    def activation_bytes(self, config: ModelConfig, precision: str) -> int:
        width, feed_forward = config.d_model, config.feed_forward
        return {"float32": 40 * width + 8 * feed_forward, "bfloat16": 30 * width + 4 * feed_forward}[precision]

    def build(self, config: ModelConfig, generator: torch.Generator) -> Network:
        return Squared(config, generator)


class Block(nn.Module):
    """One layer: attention, then a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.query_key_value = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.up = Linear(width, config.feed_forward, bias=False)
        self.down = Linear(config.feed_forward, width, bias=False)

    def forward(
        self,
        x_BTD: Tensor,
        _: Any,
        mask: Tensor | None,
        cache: KeyValueCache | None,
        layer: int,
        kernels: Kernels,
    ) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = self.query_key_value(self.attention_norm(x_BTD), kernels).view(B, T, 3, self.heads, D // self.heads)
        x_BTD = x_BTD + self.out(attend(qkv, mask, cache, layer, kernels), kernels)
        hidden = relu(self.up(self.feed_forward_norm(x_BTD), kernels)).square()
        out_BTD: Tensor = x_BTD + self.down(hidden, kernels)
        return out_BTD


class Squared(Network):
    """The network of `squared`."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__(config)
        self.positions = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.draw_weights(generator, residual=("out.weight", "down.weight"))

    def begin(self, tokens_BT: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        return self.embedding(tokens_BT) + self.positions(positions), None

    def hugging_face_config(self) -> dict[str, Any]:
        return {"model_type": "squared", **self.config.model_dump()}

    def hugging_face_tensors(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())


# --- the end of the file, but for its last line: register(SquaredArchitecture()) ---


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(SquaredArchitecture())
    yield
    unregister("squared")


def shape(**changes: Any) -> ModelConfig:
    values = {"d_model": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 200, "context": 32}
    return ModelConfig(arch="squared", **{**values, **changes})


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_counted(tied: bool) -> None:
    config = shape(tie_embeddings=tied)
    network = build(config)
    counts = count(config, 32)
    assert counts.num_parameters == sum(parameter.numel() for parameter in network.parameters())
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),  # PyTorch counts no other one on a CPU
        FlopCounterMode(display=False) as counter,
    ):
        batch_loss(Replica(network), random_batch(config, 4, 32), slice(0, 4), 1.0).backward()  # type: ignore[no-untyped-call]
    other_half = 3 * 2.0 * config.num_layers * 32 * config.d_model  # PyTorch counts attention over the whole square
    assert counter.get_total_flops() == 4 * 32 * (counts.training_flops_per_token + other_half)


def test_muon_gets_its_matrices() -> None:
    network = build(shape())
    muon = assign(network, TrainingConfig(optimizer="muon"))[-1]
    assert isinstance(muon, Muon)
    assert len(muon.parameters) == 2 * 4
    assert sum(parameter.numel() for parameter in muon.parameters) == count(shape(), 32).block_weights
    assert sorted(muon.stacked.values()) == [1] * 6 + [3] * 2
    expected = 2 * (4 * Muon.update_flops(64, 64, torch.float32) + 2 * Muon.update_flops(192, 64, torch.float32))
    assert sum(update_flops(shape(), "muon", torch.float32).values()) == expected


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_its_memory_is_predicted(tmp_path: Path, precision: Precision) -> None:
    config = shape(d_model=256, num_layers=4, context=64)
    counted = activation_bytes_per_token(build(config), Execution(1, precision), 64)
    estimated = config.num_layers * find_architecture("squared").activation_bytes(config, precision)
    assert estimated == pytest.approx(counted, rel=0.05)
    layers = Layers()
    layers.add(settings(tmp_path, tmp_path, **{"model.arch": "squared", "training.precision": precision}), "test")
    run = layers.build()
    run.model = shape()
    execution = quick_execution(run.model, run.training)
    parts = count_memory(run, execution, runtime_bytes=1 << 20)
    counts = count(run.model, run.training.max_length)
    assert (parts.weights, parts.optimizer) == (4 * counts.num_parameters, state_bytes(counts, "muon"))
    rehearsal, footprint = rehearse(run.model, run.training, execution)
    assert footprint.activation_bytes_per_token == activation_bytes_per_token(
        build(run.model), execution, run.training.max_length
    )
    assert all(seconds > 0 for seconds in rehearsal.step_seconds(2, 4).values())


def test_it_trains_saves_resumes_generates_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(make_text(40_000))
    changes = {"model.arch": "squared", "training.max_steps": 6, "training.learning_rate": 0.01}
    whole = train(**settings(tmp_path / "corpus.txt", tmp_path / "whole", **changes))
    assert whole.steps == 6
    assert whole.train_loss is not None
    assert whole.first_loss is not None
    assert whole.train_loss < whole.first_loss - 0.3
    values = settings(tmp_path / "corpus.txt", tmp_path / "broken", **changes)
    layers = Layers()
    layers.add(values, "test")
    seen: list[int] = []
    with Pretraining(layers.build(), lambda: len(seen) >= 2) as pretraining:
        for info in pretraining.steps():
            seen.append(info.step)  # noqa: PERF401 - the run looks at it while it grows
    assert seen[-1] == 3
    assert train(**{**values, "run.resume": True}).steps == 6
    unbroken, resumed = (
        load_file(tmp_path / name / "checkpoints" / "last" / "model.safetensors") for name in ("whole", "broken")
    )
    assert unbroken.keys() == resumed.keys()
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)
    pieces = list(stream_text(load_model(tmp_path / "whole"), "the mill", Sampling(max_tokens=5)))
    assert len(pieces) == 5
    page = report([tmp_path / "whole"], markdown=True)
    assert "squared" in page
    assert "feed-forward" in page


def test_the_documentation_shows_this_file() -> None:
    shown = (Path(__file__).parents[2] / "docs" / "design" / "architectures.md").read_text()
    source = Path(__file__).read_text()
    begin, end = (source.index(marker) for marker in ("class SquaredArchitecture", "# --- the end of the file"))
    assert source[begin:end].strip() in shown
