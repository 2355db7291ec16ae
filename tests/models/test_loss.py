"""The head's loss in chunks against PyTorch's cross-entropy of whole logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from headrace.models.kernels import Kernels, Matmul
from headrace.models.loss import head_loss


@pytest.mark.parametrize("matmul", ["default", "onednn"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_head_loss_is_cross_entropy(masked: bool, matmul: Matmul) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(45, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    targets = torch.randint(50, (45,))
    mask = torch.rand(45) < 0.6 if masked else None
    loss = head_loss(hidden, weight, targets, mask, 1 / 45, Kernels(matmul, head_chunk_bytes=4 * 50 * 16))  # 16 rows
    loss.backward()
    ours = (hidden.grad, weight.grad)
    hidden.grad = weight.grad = None
    losses = cross_entropy(hidden @ weight.T, targets, reduction="none")
    expected = (losses if mask is None else losses * mask).sum() / 45
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours, (hidden.grad, weight.grad))
