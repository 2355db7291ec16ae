"""Native gradients against the same network in plain PyTorch and float64, on shapes that are awkward for kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from headrace.models.candidates import Candidates
from headrace.models.config import ModelConfig
from headrace.models.dropout import Dropout, row_keys
from headrace.models.loss import head_loss
from headrace.models.network import Network, build
from headrace.native.engine import NativeStep
from headrace.native.library import MASK, available_instructions, why_missing
from tests.models.plain import plain_loss

pytestmark = pytest.mark.skipif(bool(why_missing()), reason="the native library was not built")

BFLOAT16_FACTOR = 1.5
"""Times the error of PyTorch's own bfloat16 that a native bfloat16 gradient may have."""


@dataclass(frozen=True)
class Case:
    arch: str
    d_model: int
    num_heads: int
    num_layers: int
    vocab_size: int
    length: int
    rows: int
    d_ff: int = 0
    documents: bool = False
    masked: bool = False
    tied: bool = True
    bias: bool = True

    def __str__(self) -> str:
        flags = [name for name in ("documents", "masked") if getattr(self, name)]
        flags += [] if self.tied else ["untied"]
        flags += [] if self.bias else ["unbiased"]
        sizes = "x".join(map(str, (self.d_model, self.num_heads, self.num_layers, self.vocab_size)))
        return "-".join([self.arch, sizes, f"{self.rows}of{self.length}", *flags])


CASES = [
    Case("gpt2", 32, 2, 2, 50, 20, 4),
    Case("gpt2", 33, 3, 1, 65, 7, 3, documents=True, d_ff=37),
    Case("gpt2", 9, 1, 2, 11, 1, 1),
    Case("gpt2", 40, 5, 1, 50_257, 3, 2, tied=False),
    Case("gpt2", 64, 1, 1, 300, 150, 2, documents=True, masked=True, bias=False),
    Case("qwen3", 32, 2, 2, 50, 20, 4),
    Case("qwen3", 30, 5, 1, 65, 9, 3, documents=True, d_ff=19),
    Case("qwen3", 8, 1, 1, 11, 1, 1, tied=False),
    Case("qwen3", 24, 2, 1, 50_257, 5, 2, masked=True),
    Case("qwen3", 128, 2, 1, 700, 131, 2, documents=True, masked=True),
    Case("qwen3", 36, 3, 1, 100, 600, 1, documents=True),
]


def network_of(case: Case, seed: int = 1) -> Network:
    config = ModelConfig(
        arch=case.arch, d_model=case.d_model, num_heads=case.num_heads, num_layers=case.num_layers, d_ff=case.d_ff,
        vocab_size=case.vocab_size, context=case.length + 2, tie_embeddings=case.tied, bias=case.bias,
    )  # fmt: skip
    network = build(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # as after some training: norms are not one, biases not zero, attention is not even
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.15)
    return network


def arrays_of(case: Case, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any, Any]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, case.vocab_size, (case.rows, case.length + 1))
    starts = rng.random((case.rows, case.length)) < 0.1
    documents = np.cumsum(starts, axis=1).astype(np.int32) if case.documents else None
    mask = rng.random((case.rows, case.length)) < 0.7 if case.masked else None
    return tokens[:, :-1], tokens[:, 1:], documents, mask


def gradients(network: Network) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])


def expected_gradients(
    network: Network,
    arrays: Any,
    drop: Callable[[Tensor, int], Tensor] = lambda x, site: x,
    candidates: Candidates | None = None,
) -> tuple[float, Tensor]:
    """Return the sum of losses and its gradients in float64."""
    inputs, targets, documents, mask = arrays
    exact = copy.deepcopy(network).double()
    exact.zero_grad()
    losses = plain_loss(exact, *map(torch.from_numpy, (inputs, targets)), _tensor(documents), "none", drop, candidates)
    loss = losses.sum() if mask is None else (losses * torch.from_numpy(mask).flatten()).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), gradients(exact)


def torch_bfloat16_gradients(network: Network, arrays: Any) -> Tensor:
    inputs, targets, documents, mask = arrays
    network.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network(torch.from_numpy(inputs), _tensor(documents)).flatten(0, 1)
        counted = None if mask is None else torch.from_numpy(mask).flatten()
        loss = head_loss(hidden, network.head_weight_VD, torch.from_numpy(targets).flatten(), counted, 1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    found = gradients(network)
    network.zero_grad()
    return found


def _tensor(array: npt.NDArray[Any] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("instructions", available_instructions())
def test_float32_gradients_are_exact(case: Case, instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MASK, instructions)
    network, arrays = network_of(case), arrays_of(case)
    expected_loss, expected = expected_gradients(network, arrays)
    loss = NativeStep(network, "float32", num_threads=2)(*arrays, 1.0)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert error(gradients(network), expected) < 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("instructions", available_instructions())
def test_bfloat16_gradients_are_as_good_as_torch_has_them(
    case: Case, instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASK, instructions)
    network, arrays = network_of(case), arrays_of(case)
    expected_loss, expected = expected_gradients(network, arrays)
    allowed = BFLOAT16_FACTOR * error(torch_bfloat16_gradients(network, arrays), expected)
    loss = NativeStep(network, "bfloat16", num_threads=2)(*arrays, 1.0)
    assert loss == pytest.approx(expected_loss, rel=2e-2)
    assert error(gradients(network), expected) < allowed


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("instructions", available_instructions())
def test_the_same_numbers_are_dropped_as_in_torch(
    case: Case, instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MASK, instructions)
    network, arrays = network_of(case), arrays_of(case)
    keys = row_keys(seed=3, first_row=7, num_rows=case.rows)
    dropout = Dropout(0.3, torch.from_numpy(keys.astype(np.int64)))
    expected_loss, expected = expected_gradients(network, arrays, dropout)
    loss = NativeStep(network, "float32", num_threads=2)(*arrays, 1.0, 0.3, keys)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert error(gradients(network), expected) < 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loss_alone_is_that_of_a_step_and_leaves_gradients_alone(case: Case, precision: str) -> None:
    network, arrays = network_of(case), arrays_of(case)
    step = NativeStep(network, precision, num_threads=2)
    assert step.loss(*arrays) == pytest.approx(step(*arrays, 1.0), rel=1e-6)
    before = gradients(network).clone()
    fewer = [None if array is None else array[:1] for array in arrays]
    assert 0 < step.loss(*fewer) <= step.loss(*arrays)
    assert step._planned is not None and step._planned.sequences_at_once == -(-case.rows // 2), (
        "no smaller for the fewer rows"
    )
    assert torch.equal(gradients(network), before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=str)
@pytest.mark.parametrize("most_own_bytes", [1 << 30, 0], ids=["own gradients", "shared gradients"])
def test_results_do_not_depend_on_threads_beyond_rounding(
    precision: str, case: Case, most_own_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.native.engine.MOST_OWN_BYTES", most_own_bytes)
    monkeypatch.setattr("headrace.native.engine.ROWS_AT_ONCE", case.length)  # so that threads go several rounds
    network, arrays = network_of(case), arrays_of(case)
    found = []
    for threads in (1, 2, 3, 5):
        network.zero_grad()
        first = NativeStep(network, precision, threads)
        losses = [first(*arrays, 0.5)]
        once = gradients(network)
        network.zero_grad()
        losses.append(first(*arrays, 0.5))
        assert losses[0] == losses[1] and torch.equal(gradients(network), once), "the same again, to the bit"
        found.append(once)
    for other in found[1:]:
        assert error(other, found[0].double()) < 1e-6


def test_gradients_are_added_to_those_that_are_there() -> None:
    case = CASES[5]
    network, arrays = network_of(case), arrays_of(case)
    step = NativeStep(network, "float32", 2)
    step(*arrays, 1.0)
    once = gradients(network)
    step(*arrays, 1.0)
    torch.testing.assert_close(gradients(network), 2 * once)


@pytest.mark.parametrize("case", [CASES[1], Case("qwen3", 32, 2, 1, 65, 192, 1)], ids=str)
def test_padding_after_a_bad_step_is_clean(case: Case) -> None:
    """A step of NaN leaves nothing behind in the memory of a plan, where rows of odd width end in padding."""
    network, (inputs, targets, documents, mask) = network_of(case), arrays_of(case)
    if documents is None:  # the second block of 64 queries sees 127 keys, and the third one more
        documents = np.ones((case.rows, case.length), dtype=np.int32)
        documents[:, 0] = 0
    arrays = inputs, targets, documents, mask
    step = NativeStep(network, "bfloat16", 1)
    step(*arrays, 1.0)
    once = gradients(network)
    weights = copy.deepcopy(network.state_dict())
    network.embedding.weight.data.fill_(float("nan"))
    network.zero_grad()
    assert np.isnan(step(*arrays, 1.0)) and gradients(network).isnan().any()
    network.load_state_dict(weights)
    network.zero_grad()
    step(*arrays, 1.0)
    assert torch.equal(gradients(network), once)
