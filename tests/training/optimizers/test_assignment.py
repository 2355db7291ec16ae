from __future__ import annotations

from typing import get_args

import pytest
from torch import Tensor

from headrace.models.architecture import architecture_names
from headrace.models.config import ModelConfig
from headrace.models.counts import count
from headrace.models.network import Network, build
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.assignment import RULES, assign, state_bytes
from headrace.training.optimizers.muon import Muon
from headrace.training.optimizers.optimizer import Optimizer


def small(arch: str) -> Network:
    return build(ModelConfig(arch=arch, d_model=32, num_heads=2, num_layers=2, vocab_size=50, context=16), seed=1)


def test_every_optimizer_of_the_configuration_has_a_rule() -> None:
    assert set(get_args(TrainingConfig.model_fields["optimizer"].annotation)) == set(RULES)


@pytest.mark.parametrize("arch", architecture_names())
@pytest.mark.parametrize("optimizer", list(RULES))
def test_every_parameter_is_given_to_one_rule(arch: str, optimizer: str) -> None:
    network = small(arch)
    rules = assign(network, TrainingConfig(optimizer=optimizer))  # type: ignore[arg-type]
    owners: dict[Tensor, list[int]] = {parameter: [] for parameter in network.parameters()}
    for number, rule in enumerate(rules):
        for parameter in rule.parameters:
            owners[parameter].append(number)
    for name, parameter in network.named_parameters():
        assert len(owners[parameter]) == 1, name
        rule = rules[owners[parameter][0]]
        is_block_matrix = name.startswith("blocks.") and parameter.dim() == 2
        assert isinstance(rule, Muon) == (optimizer == "muon" and is_block_matrix), name
        assert (rule.weight_decay > 0) == (parameter.dim() == 2), name


@pytest.mark.parametrize("arch", architecture_names())
def test_muon_knows_what_is_stacked(arch: str) -> None:
    network = small(arch)
    muon = assign(network, TrainingConfig(optimizer="muon"))[-1]
    named = dict(network.named_parameters())
    assert muon.stacked[named["blocks.1.query_key_value.weight"]] == 3
    assert muon.stacked[named["blocks.1.down.weight"]] == 1


@pytest.mark.parametrize("arch", architecture_names())
@pytest.mark.parametrize("optimizer", list(RULES))
def test_the_size_of_the_state_is_known_before_it_is_there(arch: str, optimizer: str) -> None:
    network = small(arch)
    expected = Optimizer(network, TrainingConfig(optimizer=optimizer)).bytes_to_come()  # type: ignore[arg-type]
    assert state_bytes(count(network.config, 16), optimizer) == expected
