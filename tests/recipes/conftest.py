"""What tests of recipes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def steady_threads() -> Iterator[None]:
    """Runs set the number of threads; leave it as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
