from __future__ import annotations

from typing import Any

import pytest

from headrace.models.config import ModelConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 7}, "nearest that does is model.num_heads=8"),
        ({"d_model": 65, "num_heads": 13}, "even width per head"),
        ({"arch": "gpt3"}, "unknown architecture 'gpt3'; there are gpt2, llama, qwen3. Did you mean gpt2?"),
        ({"arch": "config"}, "unknown architecture 'config'; there are gpt2, llama, qwen3. "),
    ],
)
def test_impossible_shapes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"d_model": 64, **values})


@pytest.mark.parametrize(("arch", "feed_forward"), [("gpt2", 1024), ("qwen3", 704)])
def test_what_is_not_given_follows_from_the_width(arch: str, feed_forward: int) -> None:
    config = ModelConfig(arch=arch, d_model=256)
    assert (config.heads, config.head_width, config.feed_forward) == (2, 128, feed_forward)
    assert ModelConfig(arch=arch, d_model=256, d_ff=100).feed_forward == 100
    assert ModelConfig(arch="gpt2", d_model=65, num_heads=13).head_width == 5, "only rotary positions need it even"
