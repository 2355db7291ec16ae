"""Named starting points. Each returns the values that it sets; files and overrides go on top."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from headrace.errors import UsageError

Values = dict[str, dict[str, Any]]


FIRST_RUN: Values = {"training": {"max_minutes": 2.0, "prompt": "    def __init__("}}
"""What holds where no text is named: the Python standard library on this disk for two minutes, by the network that is
chosen for them."""


def demo() -> Values:
    """Return a fixed small network that learns the Python standard library on this disk: two minutes on two cores."""
    return {
        "model": {"d_model": 192, "num_heads": 3, "num_layers": 4, "vocab_size": 2048},
        "training": {**FIRST_RUN["training"], "max_length": 128, "batch_size": 16},
    }


def shakespeare_char() -> Values:
    """Return a configuration for the characters of one small text, on a CPU: ten seconds on two cores.

    It ends below the loss of 2,000 AdamW steps of the same size (benchmarks/bench_from_enter.py); more go further.
    """
    return {
        "model": {"d_model": 128, "num_heads": 4, "num_layers": 4},
        "training": {
            "max_length": 64,
            "batch_size": 32,
            "max_steps": 140,
            "learning_rate": 0.008,
            "prompt": "ROMEO:",
        },
        "data": {"tokenizer": "char", "validation_fraction": 0.1},
    }


def prototype() -> Values:
    """Return a small and quick configuration."""
    return _plain(256, 2, 10_000, 64, 32)


def quality() -> Values:
    """Return a configuration between quick and good."""
    return _plain(384, 4, 16_000, 128, 32)


def production() -> Values:
    """Return a configuration for a larger model."""
    return _plain(512, 6, 32_000, 128, 64)


def wiki() -> Values:
    """Return the configuration that write-ups of training on CPUs use for encyclopaedias."""
    values = _plain(512, 6, 16_000, 256, 16)
    values["model"] |= {"num_heads": 8, "d_ff": 2048}
    return values


def development() -> Values:
    """Return a configuration of half the width of `wiki`, for trying things out."""
    values = _plain(256, 3, 16_000, 128, 32)
    values["model"] |= {"num_heads": 4, "d_ff": 1024}
    return values


def gpt2_small() -> Values:
    """Return the configuration of the smallest GPT-2: 124 M parameters."""
    return {
        "model": {"arch": "gpt2", "d_model": 768, "num_heads": 12, "num_layers": 12, "vocab_size": 50_304},
        "training": {"max_length": 1024, "batch_size": 32, "learning_rate": 0.001},
        "data": {"tokenizer": "bpe:50257"},
    }


def _plain(d_model: int, num_layers: int, vocab_size: int, sequence_length: int, batch_size: int) -> Values:
    return {
        "model": {"d_model": d_model, "num_layers": num_layers, "vocab_size": vocab_size},
        "training": {"max_length": sequence_length, "batch_size": batch_size},
    }


PRESETS: dict[str, Callable[[], Values]] = {
    "demo": demo,
    "shakespeare-char": shakespeare_char,
    "prototype": prototype,
    "quality": quality,
    "production": production,
    "wiki": wiki,
    "development": development,
    "gpt2-small": gpt2_small,
}


def preset_values(name: str) -> Values:
    """Return the values of a preset; a name that does not exist is an error that suggests the nearest."""
    if name in PRESETS:
        return PRESETS[name]()
    near = difflib.get_close_matches(name, PRESETS, n=1) or [known for known in PRESETS if known.startswith(name[:4])]
    meant = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(f"--preset {name}: no such preset.{meant} Presets: {', '.join(PRESETS)}")
