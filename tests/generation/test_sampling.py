"""Which tokens are drawn, and how often, by temperature, top_k and top_p."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.errors import UsageError
from headrace.generation.sampling import Sampling, draw

PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


def drawn(number: int = 4000, **options: Any) -> list[float]:
    """Return how often each of four tokens is drawn."""
    logits = PROBABILITIES.log().expand(number, 4)
    tokens = draw(logits, Sampling(**options), torch.Generator().manual_seed(1))
    return [float(share) for share in torch.bincount(tokens, minlength=4) / number]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 1e-40}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"temperature": 1.0, "top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_k": 9}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 1.0, "top_p": 0.5}, [1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [0.625, 0.375, 0, 0]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should(options: dict[str, Any], expected: list[float]) -> None:
    assert drawn(**options) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="top_p must lie between 0 and 1"):
        Sampling(**options)
