"""Updates that compare a part of the vocabulary: right on average, and the same however they are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.data.batch import Batch
from headrace.distributed.group import Group
from headrace.distributed.replicas import Replica
from headrace.models.candidates import Candidates
from headrace.models.config import ModelConfig
from headrace.models.counts import num_candidates
from headrace.models.network import build
from headrace.training.autotune import measure_on
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.showing.presentation import Presentation
from headrace.training.showing.vocabulary import VocabularySampler, draw_by_weight
from headrace.training.step import accumulate
from tests.native.test_gradients import CASES, Case, arrays_of, error, expected_gradients, gradients, network_of
from tests.training.tiny import random_batch, small

COUNTS = (1000 / (np.arange(200) + 1)).astype(np.int64)
TOKENS = np.array([[3, 7, 7], [190, 0, 3]])


def sampler(seed: int = 0, num_drawn: int = 32) -> VocabularySampler:
    return VocabularySampler(COUNTS, 64, num_drawn, seed)


def draw(step: int = 0, seed: int = 0) -> Candidates:
    found = sampler(seed).draw(step, [TOKENS])
    assert found is not None
    return found


def test_the_tokens_of_the_batch_are_candidates_and_stand_for_themselves() -> None:
    found = draw()
    assert len(found) == len(found.offsets) == 64
    assert (found.ids[found.place(TOKENS)] == TOKENS).all()
    assert (found.offsets[found.place(TOKENS)] == 0).all()
    is_filler = found.offsets < -1e29
    assert len(set(found.ids[~is_filler])) == len(found.ids[~is_filler]), "none twice"


def test_what_is_drawn_follows_from_seed_step_and_batch() -> None:
    assert (draw(3, 5).ids == draw(3, 5).ids).all()
    assert (draw(3, 5).ids != draw(4, 5).ids).any() and (draw(3, 5).ids != draw(3, 6).ids).any()


def test_candidates_stand_for_all_tokens_on_average() -> None:
    values, total = np.random.default_rng(1).random(200), 0.0
    for step in range(4000):
        found = draw(step)
        total += float((values[found.ids] * np.exp(found.offsets)).sum())
    assert total / 4000 == pytest.approx(values.sum(), rel=0.01)


def test_frequent_tokens_are_drawn_more_often() -> None:
    weights = np.array([100.0, 4.0, 2.0, 2.0, 0.0])
    hits = np.zeros(5)
    for start in np.linspace(0, 1, 1000, endpoint=False):
        drawn, chances = draw_by_weight(weights, 2, start)
        hits[drawn] += 1
        assert (chances <= 1).all() and len(drawn) == 2
    assert hits.tolist() == pytest.approx([1000, 500, 250, 250, 0], abs=2)


def test_no_more_are_drawn_than_there_are() -> None:
    drawn, chances = draw_by_weight(np.array([0.0, 1.0, 3.0]), 3, 0.5)
    assert drawn.tolist() == [1, 2] and chances.tolist() == [1, 1]


def test_at_least_one_token_stands_for_all_others() -> None:
    counts, used = np.ones(1000), np.arange(64)
    found = VocabularySampler(counts, 64, 1, 0).draw(0, [used])
    assert found is not None and len(found) > len(used) and found.offsets.max() > 0


def test_ways_to_compute_are_measured_on_as_many_tokens_as_updates_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("headrace.training.autotune._time", lambda *given: seen.append(given[3].candidates) or 1.0)
    network = build(ModelConfig(d_model=16, num_layers=1, vocab_size=4096, context=16))
    batch = random_batch()
    for sampled in (64, 0):
        measure_on(network, batch, TrainingConfig(sampled_tokens=sampled, batch_size=8, max_length=16))(Execution(8))
    assert seen[0] is not None and len(seen[0]) < 1024 and seen[1] is None


def test_a_batch_of_many_different_tokens_gets_more_candidates_or_all() -> None:
    counts = np.ones(1000)
    many, all_but_some = np.arange(300), np.arange(800)
    found = VocabularySampler(counts, 64, 32, 0).draw(0, [many])
    assert found is not None and len(found) == 384 and (found.ids[found.place(many)] == many).all()
    assert VocabularySampler(counts, 64, 32, 0).draw(0, [all_but_some]) is None


def test_processes_draw_what_one_process_draws() -> None:
    class Half(Group):
        world_size = 2

        def gather_rows(self, rows: Tensor, doing: str) -> Tensor:
            other = np.zeros(200, dtype=np.uint8)
            other[TOKENS[1]] = 1
            return torch.cat([rows, torch.from_numpy(other)[None]])

    whole, half = draw(), sampler().draw(0, [TOKENS[0]], Half())
    assert half is not None
    assert (whole.ids == half.ids).all() and (whole.offsets == half.offsets).all()


def test_small_vocabularies_are_compared_whole() -> None:
    assert num_candidates(300, 2048, num_drawn=512) == 300
    assert TrainingConfig(sampled_tokens=512, batch_size=8).num_logits(16_000) < 1500


def candidates_for(case: Case) -> Candidates:
    """Return candidates for a case of native gradients: those of its batch, some others, and a filler."""
    inputs, targets, _, _ = arrays_of(case)
    used = np.unique([inputs, targets])
    rng = np.random.default_rng(2)
    others = rng.permutation(np.setdiff1d(np.arange(case.vocab_size), used))[:40]
    ids = np.concatenate([used, others, [0]])
    offsets = np.concatenate([np.zeros(len(used)), rng.random(len(others)), [-1e30]]).astype(np.float32)
    places = np.zeros(case.vocab_size, dtype=np.int32)
    places[used] = np.arange(len(used))
    return Candidates(ids, offsets, places)


@pytest.mark.parametrize("case", [case for case in CASES if case.length > 1], ids=str)
@pytest.mark.parametrize("execution", [Execution(2), Execution(8), Execution(8, engine="native")], ids=str)
def test_gradients_are_those_of_a_softmax_over_the_candidates(case: Case, execution: Execution) -> None:
    inputs, targets, documents, mask = arrays_of(case)
    candidates = candidates_for(case)
    network = network_of(case)
    expected_loss, expected = expected_gradients(network, arrays_of(case), candidates=candidates)
    batch = Batch(0, inputs, targets, documents, mask)
    for times in (1, 2):  # the second time, gradients are added to those that are there
        loss, _ = accumulate(Replica(network), batch, execution, 1.0, presentation=Presentation(candidates=candidates))
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert error(gradients(network), times * expected) < 2e-5


@pytest.mark.parametrize("execution", [Execution(8), Execution(8, engine="native")], ids=str)
def test_all_tokens_as_candidates_are_the_whole_vocabulary(execution: Execution) -> None:
    ids = np.arange(50)
    candidates = Candidates(ids, np.zeros(50, dtype=np.float32), ids.astype(np.int32))
    found = []
    for presentation in (Presentation(4), replace(Presentation(4), candidates=candidates)):
        network = small()
        accumulate(Replica(network), random_batch(), execution, presentation=presentation)
        found.append(gradients(network))
    assert error(found[1], found[0].double()) < 1e-6
