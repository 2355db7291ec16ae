"""What a loader does where it used to hang, end without a word, or take one text for another."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import StateError, UsageError, WorkerError
from tests.conftest import make_text

pytestmark = pytest.mark.usefixtures("small_scale")

BATCH, LENGTH = 4, 16


@pytest.fixture
def cache(tmp_path: Path) -> hr.Cache:
    (tmp_path / "a.txt").write_text(make_text(30_000))
    return hr.prepare([tmp_path / "a.txt"], tokenizer="byte", out=tmp_path / "cache")


# Failures


@pytest.mark.parametrize("fails_in", ["transform", "gather"])
@pytest.mark.parametrize(("num_workers", "prefetch"), [(3, 2), (1, 64)])
def test_a_failure_reaches_the_consumer_after_the_batches_before_it(
    cache: hr.Cache, fails_in: str, num_workers: int, prefetch: int
) -> None:
    """With a deep queue a worker makes up to 16 batches at a time."""

    def fail_at_seven(batch: hr.Batch, rng: np.random.Generator) -> hr.Batch:
        if batch.step == 7:
            raise ValueError("no batch 7")
        return batch

    transform = fail_at_seven if fails_in == "transform" else None
    options: dict[str, Any] = {"num_workers": num_workers, "prefetch_batches": prefetch, "transform": transform}
    with hr.Loader(cache, BATCH, LENGTH, **options) as loader:
        if fails_in == "gather":
            batches = loader._order.assembler.batches

            def broken(step: int, count: int) -> list[hr.Batch]:
                if step <= 7 < step + count:
                    raise ValueError("no batch 7")
                return batches(step, count)

            loader._order.assembler.batches = broken  # type: ignore[method-assign]
        assert [next(loader).step for _ in range(7)] == list(range(7))
        for _ in range(2):
            with pytest.raises(ValueError, match="no batch 7"):
                next(loader)
        loader.seek(8)
        assert next(loader).step == 8


@pytest.mark.parametrize("prefetch", [0, 4])
def test_stop_iteration_in_a_transform_is_an_error_with_its_place(cache: hr.Cache, prefetch: int) -> None:
    numbers = iter(range(3))

    def take_one(batch: hr.Batch, rng: np.random.Generator) -> hr.Batch:
        next(numbers)
        return batch

    steps = []
    with (
        hr.Loader(cache, BATCH, LENGTH, num_workers=1, prefetch_batches=prefetch, transform=take_one) as loader,
        pytest.raises(WorkerError, match=r"StopIteration at step \d \(.*test_loader_hardship\.py:\d+\)"),
    ):
        steps += [batch.step for batch in itertools.islice(loader, 100)]


# Threads and processes


def run_in_child(work: Callable[[], int]) -> int:
    """Fork, and return the child's exit code; -1 if it hangs."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_in_use_says_so_after_a_fork(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, prefetch_batches=2) as loader:
        next(loader)

        def work() -> int:
            try:
                for _ in range(10):
                    next(loader)
            except UsageError as problem:
                loader.close()  # joins no thread that is not there
                return 7 if "forked" in str(problem) else 8
            return 0

        assert run_in_child(work) == 7
        assert next(loader).step == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_has_no_threads_yet_works_after_a_fork(cache: hr.Cache, prefetch: int) -> None:
    with hr.Loader(cache, BATCH, LENGTH, prefetch_batches=prefetch) as loader:

        def work() -> int:
            steps = [next(loader).step for _ in range(10)]
            loader.close()
            return 0 if steps == list(range(10)) else 1

        assert run_in_child(work) == 0
        assert next(loader).step == 0


@pytest.mark.parametrize("prefetch", [0, 4])
def test_threads_that_share_a_loader_get_each_batch_once(cache: hr.Cache, prefetch: int) -> None:
    steps: list[int] = []
    with hr.Loader(cache, BATCH, LENGTH, prefetch_batches=prefetch) as loader:

        def take() -> None:
            for _ in range(200):
                steps.append(next(loader).step)  # noqa: PERF401 - shared with the other threads

        threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert not any(thread.is_alive() for thread in threads)
    assert sorted(steps) == list(range(800))


# State


def test_a_state_knows_all_of_its_text(tmp_path: Path) -> None:
    """Not only what the first block is made of."""
    text = make_text(100_000)
    states, loaders = [], []
    for name, changed in (("one", text), ("two", text[:-3000] + text[-3000:].swapcase())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(changed)
        cache = hr.prepare([tmp_path / name / "a.txt"], tokenizer="byte", out=tmp_path / f"{name}-cache")
        loaders.append(hr.Loader(cache, BATCH, LENGTH))
        states.append(loaders[-1].state())
    loaders[0].restore(states[0])
    with pytest.raises(StateError, match="another text"):
        loaders[1].restore(states[0])
    for loader in loaders:
        loader.close()


def test_a_state_taken_while_tokenising_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(make_text(100_000))
    options: dict[str, Any] = {"tokenizer": "byte"}
    with hr.Loader(tmp_path / "a.txt", BATCH, LENGTH, **options, cache_dir=tmp_path / "one") as loader:
        next(loader)
        early = loader.state()
        expected = [next(loader) for _ in range(50)]
        late = loader.state()
    assert 0 < early["segments"] <= late["segments"]
    with hr.Loader(tmp_path / "a.txt", BATCH, LENGTH, **options, cache_dir=tmp_path / "two") as loader:
        loader.restore(early)
        assert all(np.array_equal(next(loader).inputs, batch.inputs) for batch in expected)
        loader.restore(late)


def test_a_state_of_another_version_says_what_to_do(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader, pytest.raises(StateError, match=r"version 1; .* start a new one"):
        loader.restore({**loader.state(), "version": 1})
