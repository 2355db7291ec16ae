"""llama.cpp itself, by way of xllamacpp: what it makes of a text, and what it predicts."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest


class LlamaCpp:
    """A server of llama.cpp on localhost with one GGUF file, computing in float32 as far as it can."""

    def __init__(self, path: Path, context: int) -> None:
        xllamacpp = pytest.importorskip("xllamacpp", reason="pip install 'headrace[dev]'")
        settings = xllamacpp.CommonParams()
        settings.model.path = str(path)
        settings.n_ctx, settings.n_parallel, settings.port = context, 1, 0
        settings.cpuparams.n_threads = settings.n_threads_http = 1
        settings.warmup = settings.fit_params = False
        settings.verbosity = -1
        settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._server = xllamacpp.Server(settings)

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the ids of a text, in which special tokens are looked for or not."""
        return list(self._ask("/tokenize", content=text, parse_special=special)["tokens"])

    def text(self, tokens: list[int]) -> str:
        return str(self._ask("/detokenize", tokens=tokens)["content"])

    def continue_greedily(self, prompt: list[int], num_tokens: int, num_ids: int) -> tuple[list[int], Any]:
        """Return the likeliest tokens after a prompt, and the log-probability of every id at each of them."""
        answer = self._ask(
            "/completion", prompt=prompt, n_predict=num_tokens, temperature=0, n_probs=num_ids, ignore_eos=True,
            return_tokens=True, cache_prompt=False,
        )  # fmt: skip
        steps = [
            {top["id"]: top["logprob"] for top in step["top_logprobs"]} for step in answer["completion_probabilities"]
        ]
        return list(answer["tokens"]), steps

    def _ask(self, path: str, **values: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            self._server.listening_address + path, json.dumps(values).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return dict(json.loads(response.read()))
