"""What a report needs of each file of a run directory, and whether a value has it: such files come from anywhere."""

from __future__ import annotations

from typing import Any

NUMBER = (int, float)
MAYBE = (int, float, type(None))
EVERY = "*"  # as a key: whatever the keys are

CONFIG = {
    "model": {},
    "training": {
        "batch_size": int, "max_length": int, "micro_batch_size": int, "optimizer": str,
        "gradient_checkpointing": bool, "threads": int,
    },
    "data": {"tokenizer": str, "num_workers": int},
    EVERY: {},
}  # fmt: skip
STEP = {
    "step": int, "tokens": int, "loss": MAYBE, "learning_rate": NUMBER, "gradient_norm": MAYBE,
    "elapsed_s": NUMBER, "step_s": NUMBER, "seconds": {"data wait": NUMBER, EVERY: NUMBER},
    EVERY: (*MAYBE, dict),
}  # fmt: skip
STEP_TEXTS = {"warning", "not_finite"}
"""What else a step may have, which is not a number and which a report does without."""
CORPUS = {
    "bytes": NUMBER, "documents": NUMBER, "tokens": NUMBER, "bytes_per_token": NUMBER,
    "tokenizer": {"vocab_size": NUMBER}, "noticed": {EVERY: NUMBER},
    "chunking": {
        "shortest": NUMBER, "mean": NUMBER, "longest": NUMBER, "packing": str, "sequence_length": NUMBER,
        "sequences_after": NUMBER, "documents_split": NUMBER, "padding": NUMBER, "fill_percent": NUMBER,
    },
}  # fmt: skip
LEDGER = [{"trained": NUMBER, "carried": NUMBER, "dropped": NUMBER, "tokens": NUMBER, "rows": NUMBER}]
TUNING = {
    "findings": [
        {"gain_percent": MAYBE, "spread_percent": MAYBE, "changes": {}, "changes_result": bool, "note": str},
    ]
}  # fmt: skip
SUMMARY = {"peak_memory_bytes": NUMBER}
ENVIRONMENT = {
    "versions": {EVERY: str},
    "peak_flops": MAYBE,
    "memory_bandwidth": MAYBE,
    "memory_bytes": MAYBE,
    "activation_bytes_per_token": MAYBE,
    "memory_parts": {"activations": NUMBER, EVERY: NUMBER},
    "machine": {
        "measurements": {"matmul_flops": {EVERY: {EVERY: NUMBER}}},
        "hardware": {"simd": str, "fast_formats": [str], "caches_bytes": {EVERY: NUMBER}, "accelerators": [str]},
    },
    "scaling": {
        "measured": [
            {
                "processes": int, "threads": int, "tokens_per_second": NUMBER, "speedup": NUMBER,
                "expected_speedup": MAYBE, "efficiency_percent": NUMBER, "memory_bytes_per_worker": NUMBER,
                "aggregation_percent": MAYBE,
            }
        ]
    },
}  # fmt: skip
"""Each of these may be missing."""


def fits(value: Any, shape: Any) -> bool:
    """Tell whether a value has a shape: keys and what they hold, the items of a list, or a type.

    >>> fits({"step": 3, "note": "x"}, {"step": int}), fits([1, "2"], [int])
    (True, False)
    """
    if isinstance(shape, dict):
        if not isinstance(value, dict) or not value.keys() >= shape.keys() - {EVERY}:
            return False
        return all(fits(inner, shape.get(key, shape.get(EVERY, object))) for key, inner in value.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    return isinstance(value, shape)


def fitting_parts(values: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """Return the values without those that are not as their shape."""
    return {key: value for key, value in values.items() if value is None or fits(value, shape.get(key, object))}
