"""Grain reads the cache in threads and processes; and headrace's trainer takes batches from its pipelines."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import StateError, UsageError
from headrace.interop.grain import GrainBatches, GrainSource

logging.getLogger("absl").setLevel(logging.ERROR)
grain = pytest.importorskip("grain", reason="pip install 'headrace[grain]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of grain

BATCH, LENGTH = 4, 16


@pytest.fixture(scope="module", autouse=True)
def parsed_flags() -> None:
    """What `absl.app.run` does: Grain's worker processes read flags."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()


def rows_of_cache(cache: hr.Cache) -> np.ndarray[Any, Any]:
    """Straight from the mapped tokens."""
    parts = [p for s in range(len(cache.segments)) for p in cache.tokens(s, 0, cache.entry(s).num_tokens)]
    tokens = np.concatenate(parts)
    count = (len(tokens) - 1) // LENGTH
    return np.stack([tokens[k * LENGTH : (k + 1) * LENGTH + 1] for k in range(count)])


def as_rows(elements: Any) -> np.ndarray[Any, Any]:
    return np.stack([np.append(element["inputs"], element["targets"][-1]) for element in elements])


def test_rows_are_those_of_the_cache_and_of_the_loader_in_corpus_order(cache: hr.Cache) -> None:
    source = GrainSource(cache, LENGTH)
    rows = rows_of_cache(cache)
    assert len(source) == len(rows) > 500
    np.testing.assert_array_equal(as_rows(source[i] for i in range(len(source))), rows)
    with hr.Loader(cache, BATCH, LENGTH, shuffle=False) as loader:
        np.testing.assert_array_equal(next(loader).inputs, rows[:BATCH, :-1])
    with pytest.raises(IndexError):
        source[len(source)]


def test_threads_and_processes_read_the_same_rows(cache: hr.Cache) -> None:
    rows = rows_of_cache(cache)
    dataset = grain.MapDataset.source(GrainSource(cache, LENGTH))
    threads = dataset.to_iter_dataset(grain.ReadOptions(num_threads=2))
    np.testing.assert_array_equal(as_rows(threads), rows)
    processes = threads.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    np.testing.assert_array_equal(as_rows(processes), rows)


def test_data_loader_reads_every_row_once(cache: hr.Cache) -> None:
    source = GrainSource(cache, LENGTH)
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=3, num_epochs=1)
    seen = as_rows(grain.DataLoader(data_source=source, sampler=sampler))
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, rows_of_cache(cache).tolist()))


def test_it_pickles_as_a_path(cache: hr.Cache) -> None:
    pickled = pickle.dumps(GrainSource(cache, LENGTH))
    assert len(pickled) < 2000
    np.testing.assert_array_equal(pickle.loads(pickled)[7]["inputs"], GrainSource(cache, LENGTH)[7]["inputs"])


def pipeline(cache: hr.Cache) -> Any:
    dataset = grain.MapDataset.source(GrainSource(cache, LENGTH)).shuffle(seed=1).repeat()
    return dataset.batch(BATCH, drop_remainder=True).to_iter_dataset()


def test_a_pipeline_resumes_at_every_step(cache: hr.Cache) -> None:
    batches = GrainBatches(pipeline(cache))
    states, whole = [batches.state()], []
    for _ in range(6):
        whole.append(next(batches).inputs)
        states.append(json.loads(json.dumps(batches.state())))
    for step, state in enumerate(states[:-1]):
        again = GrainBatches(pipeline(cache))
        again.restore(state)
        np.testing.assert_array_equal([next(again).inputs for _ in range(step, 6)], whole[step:])


def test_the_trainer_trains_on_a_pipeline_and_resumes_exactly(cache: hr.Cache, tmp_path: Path) -> None:
    def run(out: str, resume: bool = False, hook: Any = lambda info: None) -> hr.Run:
        config = {
            "model": {"d_model": 16, "num_layers": 1, "num_heads": 1},
            "training": {"batch_size": BATCH, "max_length": LENGTH, "max_steps": 6, "micro_batch_size": BATCH,
                         "save_every": 3, "evaluate_every": 6, "threads": 1, "precision": "float32",
                         "engine": "torch"},
            "data": {"sources": [str(cache.path.parent / "text.txt")], "tokenizer": "bpe:300",
                     "cache_dir": str(cache.path)},
            "run": {"out": str(tmp_path / out), "resume": resume},
        }  # fmt: skip
        return hr.train(config, hooks=[hook], batches=GrainBatches(pipeline(cache)))

    def fail_after_saving(info: Any) -> None:
        if info.step == 4:
            raise InterruptedError

    whole = run("whole")
    with pytest.raises(InterruptedError):
        run("broken", hook=fail_after_saving)
    assert run("broken", resume=True).train_loss == whole.train_loss


def test_what_is_no_endless_pipeline_of_batches_is_named(cache: hr.Cache) -> None:
    source = grain.MapDataset.source(GrainSource(cache, LENGTH))
    with pytest.raises(UsageError, match=r"\.batch\("):
        next(GrainBatches(source.to_iter_dataset()))
    with pytest.raises(UsageError, match="'inputs' and 'targets'"):
        next(GrainBatches(grain.MapDataset.range(5).to_iter_dataset()))
    short = GrainBatches(source[:4].batch(4).to_iter_dataset())
    next(short)
    with pytest.raises(UsageError, match=r"\.repeat\(\)"):
        next(short)
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(StateError, match="Grain"):
        short.restore(loader.state())
