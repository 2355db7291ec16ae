"""headrace's arithmetic against other people's, each figure with its tolerance in one table.

Logits and trained weights against transformers' own models, optimizer against `torch.optim.AdamW`, counted FLOPs
against `torch.utils.flop_counter`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from headrace.data.batch import Batch
from headrace.distributed.replicas import Replica
from headrace.instruments.rehearsal import random_batch
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.step import TrainStep, batch_loss

LOGITS_TOLERANCE = 1e-5
"""Largest difference of a logit; logits are up to about 1 here."""
LOSS_TOLERANCE = 1e-5
"""Largest difference of a loss in 30 updates; losses are about 5 nats here."""
WEIGHTS_TOLERANCE = 1e-4
"""Norm of all differences of weights after 30 updates, as a share of how far the updates moved them. Single weights
whose gradient is nearly zero differ more: AdamW takes steps of one size whatever the gradient's."""
NUM_STEPS = 30

ARCHITECTURES = ["gpt2", "qwen3"]
ROWS, LENGTH = 4, 32


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small take longer with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def shape(arch: str, **changes: Any) -> ModelConfig:
    values = {"arch": arch, "d_model": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 200, "context": LENGTH}
    return ModelConfig(**{**values, **changes})


def batch(seed: int) -> Batch:
    return random_batch(shape("gpt2"), ROWS, LENGTH, seed)


def of_transformers(network: Network) -> Any:
    """The same model with the same weights, made by transformers from what headrace would save."""
    transformers = pytest.importorskip("transformers")
    values, tensors = network.to_hugging_face()
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(tensors, strict=False)  # the head is tied
    return model.train()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_logits_are_those_of_transformers(arch: str) -> None:
    network = build(shape(arch), seed=3)
    theirs = of_transformers(network)
    tokens = torch.from_numpy(batch(0).inputs)
    with torch.no_grad():
        difference = (theirs(tokens).logits - network.logits(network(tokens))).abs().max()
    assert difference < LOGITS_TOLERANCE


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")  # transformers' own deprecations
def test_thirty_updates_are_those_of_transformers_with_pytorch_adamw(arch: str) -> None:
    """Same weights, batches, clipping, decay of matrices only; 2-row micro-batches against whole batches."""
    network = build(shape(arch), seed=3)
    theirs = of_transformers(network)
    before = flat(network.to_hugging_face()[1])
    training = TrainingConfig(optimizer="adamw", learning_rate=1e-3, weight_decay=0.1)
    step = TrainStep(Replica(network), Optimizer(network, training), Execution(2), gradient_clip=1.0)
    matrices = [parameter for parameter in theirs.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in theirs.parameters() if parameter.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(training.beta1, training.beta2), eps=1e-8)
    for seed in range(NUM_STEPS):
        loss = step(batch(seed), 1.0).loss
        logits = theirs(torch.from_numpy(batch(seed).inputs)).logits
        reference = cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch(seed).targets).flatten())
        reference.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        assert loss == pytest.approx(float(reference.detach()), abs=LOSS_TOLERANCE), f"update {seed + 1}"
    ours, expected = flat(network.to_hugging_face()[1]), flat(theirs.state_dict())
    assert (ours - expected).norm() < WEIGHTS_TOLERANCE * (expected - before).norm()


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """All weights in a row, in the order of their names; a head that is tied is the embedding."""
    return torch.cat([tensors[name].detach().flatten() for name in sorted(tensors) if name != "lm_head.weight"])


def onednn_flops(x_shape: tuple[int, ...], weight_shape: tuple[int, ...], *_: object, **__: object) -> int:
    """FLOPs of oneDNN's product, which PyTorch's counter does not know."""
    return 2 * math.prod(x_shape) * weight_shape[0]


def measured_flops(network: Network, is_training: bool) -> int:
    """FLOPs of matrix products, attention included, as PyTorch counts them."""
    products = {torch.ops.mkldnn._linear_pointwise: onednn_flops}
    with FlopCounterMode(display=False, custom_mapping=products) as counter, torch.set_grad_enabled(is_training):
        loss = batch_loss(Replica(network), batch(0), slice(0, ROWS), 1.0)
        if is_training:
            loss.backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def counted_flops(config: ModelConfig) -> float:
    """Of a forward pass by headrace's count, with attention over the whole square, as PyTorch counts it."""
    other_half = 2.0 * config.num_layers * LENGTH * config.d_model
    return ROWS * LENGTH * (sum(count(config, LENGTH).forward_flops_per_token.values()) + other_half)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_counted_flops_are_those_of_pytorch(arch: str, tied: bool) -> None:
    config = shape(arch, tie_embeddings=tied)
    network = build(config)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # PyTorch counts no other one on a CPU
        assert measured_flops(network, is_training=False) == counted_flops(config)
        assert measured_flops(network, is_training=True) == 3 * counted_flops(config)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_evaluation_computes_a_forward_pass_and_no_gradient(precision: str) -> None:
    config = shape("qwen3")
    network = build(config)
    assert network.head_weight_VD.grad is None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            assert measured_flops(network, is_training=False) == counted_flops(config)
        kept = network.head_weight_VD.grad = torch.ones_like(network.head_weight_VD)
        measured_flops(network, is_training=False)
    assert torch.equal(kept, torch.ones_like(kept)), "a gradient that was there is added to"
