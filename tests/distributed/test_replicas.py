"""A replica of one; `test_parallel.py` has those of several processes."""

from __future__ import annotations

import torch

from headrace.distributed.group import ALONE
from headrace.distributed.replicas import Replica, make_replica
from headrace.models.config import ModelConfig
from headrace.models.kernels import PLAIN, Kernels
from headrace.models.network import build


def test_a_process_alone_has_the_network_itself() -> None:
    network = build(ModelConfig(d_model=32, num_layers=2, vocab_size=50, context=16))
    tokens = torch.arange(16)[None]
    for sharding in ("ddp", "fsdp"):
        replica = make_replica(network, ALONE, sharding)
        assert type(replica) is Replica
        assert torch.equal(replica.hidden(tokens, None, PLAIN), network(tokens))
        with replica.micro_batch(is_last=True), replica.whole() as whole:
            assert whole is network
        assert replica.exposed_s is None, "there is nobody to wait for"


def test_what_is_passed_with_a_call_is_gone_after_it() -> None:
    network = build(ModelConfig(d_model=32, num_layers=2, vocab_size=50, context=16))
    before, replica, tokens = vars(network).copy(), Replica(network), torch.arange(16)[None]
    plain = replica.hidden(tokens, None, PLAIN)
    other = replica.hidden(tokens, None, Kernels(matmul="onednn", gradient_checkpointing=True))
    torch.testing.assert_close(other, plain)
    assert vars(network) == before
