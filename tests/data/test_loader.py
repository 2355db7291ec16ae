"""The loader: bounded queue, clean ends, failures that reach the consumer, and wrong arguments."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.data.prefetch import REAL_WAIT_S, Prefetcher
from headrace.errors import StateError, UsageError
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")


BATCH, LENGTH = 6, 16


def test_large_vocabularies_use_four_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("".join(chr(code) for code in range(0x4E00, 0x4E00 + 200)) * 5)
    narrow = hr.prepare([tmp_path / "a.txt"], tokenizer="char", out=tmp_path / "narrow")
    monkeypatch.setattr("headrace.data.tokens.tokenizers.Tokenizer.dtype", np.dtype("<u4"))
    wide = hr.prepare([tmp_path / "a.txt"], tokenizer="char", out=tmp_path / "wide")
    with hr.Loader(wide, 2, 8) as loader:
        row = next(loader)
    monkeypatch.undo()
    with hr.Loader(narrow, 2, 8) as loader:
        assert row.inputs.dtype == np.uint32
        assert np.array_equal(row.inputs, next(loader).inputs)


def cache_of(tmp_path: Path, num_bytes: int = 30_000) -> hr.Cache:
    (tmp_path / "a.txt").write_text(make_text(num_bytes))
    return hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")


def threads() -> int:
    """Count the threads of loaders; those that fetch remote files serve the whole process, and stay."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("headrace") and name != "headrace-fetch" for name in names)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"prefetch_batches": 5}, 5),
        ({"queue_capacity": 3}, 3),
        ({"prefetch_batches": 50, "max_sequences_in_memory": 4 * BATCH}, 4),
        ({"prefetch_batches": 50, "memory_budget": 8 * BATCH * (LENGTH + 1) * 2}, 2),
    ],
)
def test_the_queue_is_bounded(tmp_path: Path, options: dict[str, Any], limit: int) -> None:
    with hr.Loader(cache_of(tmp_path), BATCH, LENGTH, **options) as loader:
        next(loader)
        wait_for(lambda: loader.counters().queue_depth == limit)
        time.sleep(0.05)
        counters = loader.counters()
        assert counters.queue_depth == counters.queue_limit == limit
        assert counters.bytes_held == limit * BATCH * (LENGTH + 1) * 2


def test_prefetch_deepens_only_while_the_consumer_waits() -> None:
    asked_for = threading.Semaphore(0)

    def ask() -> None:
        time.sleep(2 * REAL_WAIT_S)
        asked_for.release()

    def make(step: int, count: int) -> list[Any]:
        return list(range(step, step + count))

    def make_when_asked(step: int, count: int) -> list[Any]:
        asked_for.acquire()
        return make(step, count)

    hungry = Prefetcher(make_when_asked, num_workers=1, depth=2, grow_to=32)
    hungry.while_waiting = ask
    patient = Prefetcher(make, num_workers=1, depth=2, grow_to=32)
    try:
        for step in range(60):
            assert hungry.take(step) == step
        for step in range(20):
            assert patient.take(step) == step
            wait_for(lambda following=step + 1: patient._current or following in patient._ready)
        assert hungry._depth == 32
        assert patient._depth == 2
    finally:
        for queue in (hungry, patient):
            queue.stop()
            asked_for.release()
            queue.join()


def test_counters(tmp_path: Path) -> None:
    with hr.Loader(cache_of(tmp_path), BATCH, LENGTH) as loader:
        for _ in range(30):
            next(loader)
        counters = loader.counters()
    assert counters.batches == 30
    assert counters.tokens == 30 * BATCH * LENGTH
    assert 0 < counters.wait_s <= counters.elapsed_s
    assert counters.wait_percent == pytest.approx(100 * counters.wait_s / counters.elapsed_s)
    assert counters.worker_cpu_s > 0


def test_transform_runs_in_workers_and_is_reproducible(tmp_path: Path) -> None:
    names = set()

    def drop_tokens(batch: hr.Batch, rng: np.random.Generator) -> hr.Batch:
        names.add(threading.current_thread().name)
        noisy = np.where(rng.random(batch.inputs.shape) < 0.1, 0, batch.inputs)
        return hr.Batch(batch.step, noisy, batch.targets)

    cache = cache_of(tmp_path)
    results = []
    for workers in (1, 3):
        with hr.Loader(cache, BATCH, LENGTH, num_workers=workers, transform=drop_tokens) as loader:
            results.append([next(loader).inputs for _ in range(20)])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    assert all(name.startswith("headrace-load") for name in names)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_from_any_state_leaves_no_thread(tmp_path: Path, taken: int) -> None:
    (tmp_path / "a.txt").write_text(make_text(200_000))
    before = threads()
    for options in ({"prefetch_batches": 0}, {"prefetch_batches": 1}, {"prefetch_batches": 64, "num_workers": 4}):
        loader = hr.Loader(
            tmp_path / "a.txt",
            BATCH,
            LENGTH,
            tokenizer="byte",
            cache_dir=tmp_path / f"raw-{len(str(options))}",
            **options,
        )
        for _ in range(taken):
            next(loader)
        loader.close()
        loader.close()
    assert threads() == before


def test_a_forgotten_loader_ends_its_threads(tmp_path: Path) -> None:
    before = threads()
    loader = hr.Loader(cache_of(tmp_path), BATCH, LENGTH)
    next(loader)
    del loader
    gc.collect()
    wait_for(lambda: threads() == before)


def test_an_interrupt_while_waiting_ends_cleanly(tmp_path: Path) -> None:
    before = threads()

    def interrupted(batch: hr.Batch, rng: np.random.Generator) -> hr.Batch:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        hr.Loader(cache_of(tmp_path), BATCH, LENGTH, transform=interrupted) as loader,
    ):
        next(loader)
    assert threads() == before


def test_a_broken_file_reaches_the_consumer_with_its_place(tmp_path: Path) -> None:
    lines = [json.dumps({"text": make_text(100, seed=n)}) for n in range(300)]
    lines[250] = "{broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with (
        hr.Loader(tmp_path / "a.jsonl", BATCH, LENGTH, tokenizer="byte", cache_dir=tmp_path / "raw") as loader,
        pytest.raises(hr.HeadraceError, match=r"a\.jsonl:251: not valid JSON"),
    ):
        for _ in range(10_000):
            next(loader)
    lines[250] = lines[0]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with hr.Loader(tmp_path / "a.jsonl", BATCH, LENGTH, tokenizer="byte", cache_dir=tmp_path / "raw") as loader:
        for _ in range(loader.steps_per_epoch):
            next(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"sequence_length": -1}, "sequence_length"),
        ({"rank": 2, "world_size": 2}, "rank 2 does not exist"),
        ({"batch_size": 7, "world_size": 2}, "use 6 or 8"),
        ({"packing": "tetris"}, "packing 'tetris'"),
        ({"weights": [1, 2]}, "one weight for each of the sources"),
        ({"weights": [-1]}, "-1 is not a weight"),
        ({"weights": [float("nan")]}, "nan is not a weight"),
        ({"weights": [0]}, "weights of all sources are 0 at step 0"),
        ({"weights": {"nobody": 1}}, "there is no source 'nobody'"),
        ({"weights": [{"80%": 1}]}, "a percentage needs a run whose number of steps is set"),
        ({"weights": [{0: 1, 20: 2, 10: 3}]}, "'10' comes after '20' in the schedule"),
        ({"weights": [{0: 1, 20: 0}]}, "weights of all sources are 0 at step 20"),
        ({"weights": [1], "earlier_weights": [(5, [1]), (5, [1])]}, "above 0 that increase"),
        ({"weights": [1], "earlier_weights": [(5, [1, 2])]}, "one for each of the first of"),
        ({"earlier_weights": [(5, [1])]}, "give every source a weight"),
        ({"validation_fraction": 1.5, "split": "train"}, "not between 0 and 1"),
        ({"split": "validation"}, "needs a validation_fraction above 0"),
        ({"max_sequences_in_memory": 1}, "max_sequences_in_memory"),
        ({"memory_budget": 10}, "memory_budget"),
        ({"queue_capacity": 3, "prefetch_batches": 4}, "two names of one setting"),
        ({"skip": ["nothing#0.0"]}, "no such document"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hr.Loader(cache_of(tmp_path), **{"batch_size": BATCH, "sequence_length": LENGTH, **options})
    assert threads() == 0


def test_a_skip_list_on_raw_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(30_000))
    name = f"{tmp_path / 'a.txt'}#1.0"
    with hr.Loader(tmp_path / "a.txt", 2, 8, tokenizer="byte", cache_dir=tmp_path / "raw", skip=[name, name]) as loader:
        assert next(loader).mask is not None
        assert loader.state()["skip"] == [name]


def test_a_failed_restore_changes_nothing(tmp_path: Path) -> None:
    with hr.Loader(cache_of(tmp_path), BATCH, LENGTH) as loader:
        state = loader.state()
        with pytest.raises(UsageError, match="no such document"):
            loader.restore({**state, "skip": ["nothing#0.0"]})
        assert loader.state() == state


def test_numbers_of_any_kind_are_the_same_numbers(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    with (
        hr.Loader(cache, np.int64(BATCH), np.int32(LENGTH), np.int64(7)) as one,
        hr.Loader(cache, BATCH, LENGTH, 7) as two,
    ):
        assert np.array_equal(next(one).inputs, next(two).inputs)
        assert json.dumps(one.state()) == json.dumps(two.state())


def test_a_negative_seed_works_with_a_transform(tmp_path: Path) -> None:
    draws: list[int] = []

    def draw(batch: hr.Batch, rng: np.random.Generator) -> hr.Batch:
        draws.append(int(rng.integers(2**31)))
        return batch

    for _ in range(2):
        with hr.Loader(cache_of(tmp_path), BATCH, LENGTH, -5, prefetch_batches=0, transform=draw) as loader:
            assert next(loader).inputs.shape == (BATCH, LENGTH)
    assert draws[0] == draws[1], "a seed gives the same draws, negative ones too"


def test_a_state_knows_its_text(tmp_path: Path) -> None:
    states = []
    for name in ("hello mill ", "other text "):
        (tmp_path / f"{name[:5]}.txt").write_text(name * 3000)
        cache = hr.prepare([tmp_path / f"{name[:5]}.txt"], tokenizer="byte", out=tmp_path / name[:5])
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            states.append(loader.state())
            if len(states) == 2:
                with pytest.raises(StateError, match="another text"):
                    loader.restore(states[0])


def test_many_shards_need_few_file_descriptors(tmp_path: Path) -> None:
    with hr.Loader(cache_of(tmp_path, 400_000), BATCH, LENGTH) as loader:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(loader.steps_per_epoch):
            next(loader)
        assert len(loader.cache.segments) > 50
        assert len(os.listdir("/proc/self/fd")) < before + 10


def test_a_folder_with_a_manifest_of_its_own_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "manifest.json").write_text('{"name": "my web app"}')
    (tmp_path / "corpus" / "a.txt").write_text(make_text(5000))
    with hr.Loader(tmp_path / "corpus", 2, 8, tokenizer="byte", cache_dir=tmp_path / "raw") as loader:
        assert {Path(trace.spans[0].file).name for trace in loader.explain(0)} == {"a.txt"}


def test_the_queue_counts_the_bytes_of_packed_documents(tmp_path: Path) -> None:
    with hr.Loader(cache_of(tmp_path), BATCH, LENGTH, packing="document", prefetch_batches=4) as loader:
        batch = next(loader)
        assert batch.documents is not None
        assert batch.mask is not None
        arrays = (batch.inputs, batch.targets, batch.documents, batch.mask)
        assert batch.nbytes == sum(array.nbytes for array in arrays)
        assert batch.nbytes == BATCH * loader.row_bytes


def test_a_loader_collected_in_one_of_its_own_threads(tmp_path: Path) -> None:
    """The garbage collector may run the finalizer anywhere, also in a builder."""
    (tmp_path / "a.txt").write_text(make_text(50_000))
    loader = hr.Loader(tmp_path / "a.txt", 2, 8, tokenizer="byte", cache_dir=tmp_path / "raw")
    builder = loader._builder
    assert builder is not None
    closed = threading.Event()
    put = loader.cache.put

    def close_then_put(*arguments: Any) -> None:
        builder.close()
        closed.set()
        put(*arguments)

    loader.cache.put = close_then_put  # type: ignore[method-assign]
    with pytest.raises(hr.HeadraceError):
        for _ in range(10_000):
            next(loader)
    assert closed.wait(10)
    loader.close()
    wait_for(lambda: threads() == 0)


@pytest.mark.parametrize("from_text", [False, True])
def test_an_epoch_is_one_pass_and_resumes_in_its_middle(tmp_path: Path, from_text: bool) -> None:
    (tmp_path / "a.txt").write_text(make_text(3000))
    given: Any = tmp_path / "a.txt"
    if not from_text:
        given = hr.prepare(given, tokenizer="byte", out=tmp_path / "cache")
    options: dict[str, Any] = {"tokenizer": "byte", "cache_dir": tmp_path / "raw"}
    with hr.Loader(given, 4, 32, seed=1, **options) as loader:
        first = list(loader.epoch())
        assert [batch.step for batch in first] == list(range(loader.steps_per_epoch))
        half = loader.steps_per_epoch // 2
        state = {**loader.state(), "step": half}
        second = list(loader.epoch())
        assert [batch.step for batch in second] == list(range(len(first), 2 * len(first)))
    with hr.Loader(given, 4, 32, seed=1, num_workers=1, **options) as loader:
        loader.restore(state)
        rest = list(loader.epoch())
    assert len(rest) == len(first) - half
    for batch, expected in zip(rest, first[half:], strict=True):
        assert np.array_equal(batch.inputs, expected.inputs)


def test_an_epoch_without_a_whole_batch_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(500))
    with (
        hr.Loader(tmp_path / "a.txt", 64, 32, tokenizer="byte", cache_dir=tmp_path / "cache") as loader,
        pytest.raises(hr.HeadraceError, match="smaller batch_size"),
    ):
        next(loader.epoch())
