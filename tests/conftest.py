"""Fixtures: a data engine shrunk so that a few kilobytes show what gigabytes would, and small corpora."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.data.corpus.scale import Scale, use_scale
from headrace.machine.waiting import wait_briefly

wait_briefly()  # before a test imports PyTorch: machines that test are seldom quiet

# What a process ignores, its children ignore: under nohup, or in the background of a script, runs could not be stopped.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):  # Windows has no SIGHUP
    if signal.getsignal(getattr(signal, name, signal.SIGINT)) is signal.SIG_IGN:
        signal.signal(getattr(signal, name), usual)

WORDS = """the mill wheel turns water stone grain flour river channel headrace sluice gate stream token batch corpus
    model naïve Ærø 水車 мельница it's we'll don't 3.14 1,024 x = y + 1; (a) [b] {c} — … \U0001f33e""".split()


@pytest.fixture(autouse=True)
def steady_threads() -> Iterator[None]:
    """Leave the number of threads as it was: runs set it."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what runs remember out of the user's cache, and what is in there out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("user-cache")))
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))  # read when trackio is imported
        yield


@pytest.fixture(autouse=True, scope="session")
def disk_that_need_not_keep_up() -> Iterator[None]:
    """Do not wait until files are on the disk, which only a power cut could show, and which takes long.

    `tests/test_durable.py` proves that headrace asks for it, and processes that tests start do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def machine_measured_once() -> Iterator[None]:
    """Measure the rates of the machine once, and remember them as if it were quiet.

    What other programs disturbed is not remembered, so on a busy machine every run would measure for seconds.
    """
    import torch

    from headrace.run import environment, machine

    def once(measure: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[Any, Any] = {}

        def measured(*arguments: Any) -> Any:
            key = (*arguments, torch.get_num_threads())
            if key not in known:
                known[key] = measure(*arguments)
            return known[key]

        return measured

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "is_disturbed", lambda _: False)
        patch.setattr(environment, "measure_peak_flops", once(environment.measure_peak_flops))
        patch.setattr(environment, "measure_memory_bandwidth", once(environment.measure_memory_bandwidth))
        whole = once(machine.measure)
        patch.setattr(machine, "measure", lambda *arguments: replace(whole(*arguments), taken_percent=0.0))
        yield


SAMPLE_LENGTH = "headrace.run.session.evaluation.TEXT_TOKENS"


@pytest.fixture(autouse=True, scope="session")
def short_samples() -> Iterator[None]:
    """Have runs write a few words at each evaluation instead of many: they would take a third of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SAMPLE_LENGTH, 12)
        yield


@pytest.fixture
def whole_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs write samples as long as those of users: longer than the context of a tiny network."""
    monkeypatch.setattr(SAMPLE_LENGTH, 120)


SMALL = Scale(
    segment_bytes=4096,
    group_bytes=2048,
    group_minimum_bytes=512,
    boundary_window_bytes=1024,
    split_bytes=256,
    first_block_bytes=16384,
    largest_window_block_bytes=32768,
    largest_packed_block_bytes=32768,
    permuted_rows=64,
    token_segment_tokens=2000,
    token_cut_window_tokens=500,
)
"""Segments of 4 KiB, blocks from 16 KiB: a corpus of 100 KB has many of both."""


@pytest.fixture
def small_scale() -> Iterator[None]:
    with use_scale(SMALL):
        yield


def make_text(num_bytes: int, seed: int = 0) -> str:
    """Return sentences, lines and paragraphs of mixed words, some beyond ASCII: about this many bytes of UTF-8."""
    rng = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < num_bytes:
        sentence = " ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + rng.choice(
            [".", "!", "", ".", ".\n", "\n\n", " "]
        )
        parts.append(sentence)
        size += len(sentence.encode())
    return "".join(parts)


@pytest.fixture
def three_sources(tmp_path: Path) -> list[dict[str, object]]:
    """A mixture of one large text, lines of JSON, and a folder of small files."""
    import json

    root = tmp_path / "corpus"
    (root / "small").mkdir(parents=True)
    (root / "large.txt").write_text(make_text(60_000, seed=1))
    with open(root / "lines.jsonl", "w") as file:
        for number in range(300):
            file.write(json.dumps({"text": make_text(random.Random(number).randint(1, 200), seed=number)}) + "\n")
    for number in range(40):
        (root / "small" / f"{number:03}.md").write_text(make_text(number * 40 + 1, seed=100 + number))
    return [
        {"path": str(root / "large.txt"), "weight": 0.5},
        {"path": str(root / "lines.jsonl"), "weight": 0.3},
        {"path": str(root / "small"), "weight": 0.2},
    ]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `headrace ARGUMENTS` in this process, and returns exit code, stdout and stderr."""
    from headrace.cli import display
    from headrace.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        monkeypatch.setattr(display.out, "_file", None)
        with pytest.raises(SystemExit) as leaving:
            main()
        captured = capsys.readouterr()
        return int(leaving.value.code or 0), captured.out, captured.err

    return run
