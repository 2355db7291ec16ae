from __future__ import annotations

import torch

from headrace.generation.decoding import Sampling, generate
from headrace.models.config import ModelConfig
from headrace.models.network import build


def test_the_same_seed_gives_the_same_text_and_long_texts_slide() -> None:
    network = build(ModelConfig(d_model=64, num_heads=4, num_layers=2, vocab_size=400, context=32), seed=1)
    sampling = Sampling(max_tokens=80, temperature=1.0, top_k=50, top_p=0.9, seed=5, num_samples=3)
    texts = [list(generate(network, list(range(50)), sampling, 399)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0][0]) == 3
    greedy = list(generate(network, [1, 2, 3], Sampling(max_tokens=5, temperature=0), 399))
    with torch.no_grad():
        assert greedy[0][0] == int(network.logits(network(torch.tensor([[1, 2, 3]])))[0, -1].argmax())
