"""The config.json of a model that somebody else made: which architecture computes it, and what of it none does.

    values = HuggingFaceConfig(json.loads(text))
    architecture = find_by_type(values)                  # by model_type
    model = ModelConfig(arch=architecture.name, **architecture.read_hugging_face(values))

Importing this module does not import torch. `UnsupportedError` names what headrace does not compute.
"""

from __future__ import annotations

import math
from typing import Any

from headrace.models.architecture import Architecture, architecture_names, find_architecture

_MIXTURE, _NO_DECODER = "a mixture of experts", "a model that does not predict the next token"
KNOWN_REASONS = {
    "qwen2": "biases of queries, keys and values",
    "mixtral": _MIXTURE, "qwen2_moe": _MIXTURE, "qwen3_moe": _MIXTURE, "olmoe": _MIXTURE, "deepseek_v3": _MIXTURE,
    "phi": "attention and feed-forward side by side", "gpt_neox": "attention and feed-forward side by side",
    "gptj": "attention and feed-forward side by side", "falcon": "attention and feed-forward side by side",
    "gemma": "scaled embeddings and GeGLU", "gemma2": "scaled embeddings and GeGLU",
    "gemma3_text": "scaled embeddings and GeGLU", "phi3": "rotary positions in a part of each head",
    "bloom": "ALiBi positions", "mpt": "ALiBi positions", "opt": "ReLU and shifted positions",
    "mamba": "a state space instead of attention", "mamba2": "a state space instead of attention",
    "rwkv": "a recurrence instead of attention", "bert": _NO_DECODER, "roberta": _NO_DECODER, "t5": _NO_DECODER,
}  # fmt: skip
"""What headrace lacks for some well-known model types."""


class UnsupportedError(ValueError):
    """What a model has that headrace does not compute, in words that follow "it has"."""


class MalformedError(ValueError):
    """A config.json that cannot be that of a model."""


class HuggingFaceConfig(dict[str, Any]):
    """The values of a config.json, read with their types checked; null counts as missing."""

    def whole(self, key: str, otherwise: int | None = None) -> int:
        """Return a whole number, or `otherwise` where there is none; None: it has to be there."""
        value = self._present(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise MalformedError(f"{key} is {_shown(value)} instead of a whole number above 0")
        return value

    def number(self, key: str, otherwise: float | None = None) -> float:
        """Return a number above 0, or `otherwise` where there is none."""
        value = self._present(key, otherwise)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise MalformedError(f"{key} is {_shown(value)} instead of a number above 0")
        return float(value)

    def flag(self, key: str, otherwise: bool) -> bool:
        """Return true or false, or `otherwise` where neither is given."""
        value = self._present(key, otherwise)
        if not isinstance(value, bool):
            raise MalformedError(f"{key} is {_shown(value)} instead of true or false")
        return value

    def refuse_if_set(self, key: str, what: str) -> None:
        """Refuse a model in which something is switched on."""
        if self.flag(key, False):
            raise UnsupportedError(f"{what} ({key})")

    def expect(self, key: str, usual: str, what: str) -> None:
        """Refuse a model in which something is other than usual."""
        found = self.get(key)
        if found not in (None, usual):
            raise UnsupportedError(f"{what} {_shown(found)} ({key}); headrace computes {usual}")

    def _present(self, key: str, otherwise: Any) -> Any:
        value = self.get(key)
        value = otherwise if value is None else value
        if value is None:
            raise MalformedError(f"there is no {key}")
        return value


def find_by_type(values: HuggingFaceConfig) -> Architecture:
    """Return the architecture that computes a model, by the `model_type` of its config.json."""
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise MalformedError("there is no model_type")
    architectures = [find_architecture(name) for name in architecture_names()]
    found = next((each for each in architectures if kind in each.hugging_face_types), None)
    if found is None:
        known = sorted(name for each in architectures for name in each.hugging_face_types)
        reason = f": {KNOWN_REASONS[kind]}" if kind in KNOWN_REASONS else ""
        raise UnsupportedError(f"the model_type {_shown(kind)}{reason}. headrace computes {', '.join(known)}")
    if values.get("quantization_config"):
        raise UnsupportedError("quantised weights (quantization_config)")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
