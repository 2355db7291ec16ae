"""Ends that must not lose work: outputs that go away, disks and limits that are full, signals at any time."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.data.batch import Assembler
from headrace.data.cache import build, tokenise
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.sources import as_sources
from headrace.data.tokens.encoders import ByteEncoder
from headrace.data.tokens.tokenizers import load_tokenizer
from headrace.errors import HeadraceError
from headrace.run.config import Layers
from headrace.run.directory import MetricsFile
from headrace.run.pretraining import Pretraining
from headrace.run.session.corpus_files import CorpusFiles
from tests.conftest import make_text
from tests.run import tiny_run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(make_text(20_000))
    return tmp_path / "corpus.txt"


def pretraining(corpus: Path, out: Path, **changes: Any) -> Pretraining:
    layers = Layers()
    layers.add(tiny_run.settings(corpus, out, **changes), "the test")
    return Pretraining(layers.build())


def headrace(*arguments: str, shell: str = 'exec "$@"', **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, which a shell starts: `preexec_fn` would fork this process, where JAX may have threads."""
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, text=True, timeout=120, check=False, **options)


def train_arguments(corpus: Path, out: Path, **changes: Any) -> list[str]:
    values = tiny_run.settings(corpus, out, **changes)
    return ["train", *(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items())]


@pytest.mark.parametrize("how", ["closed", "full"])
def test_training_does_not_need_anybody_to_tell(corpus: Path, tmp_path: Path, how: str) -> None:
    arguments = train_arguments(corpus, tmp_path / "run")
    if how == "closed":
        done = headrace(*arguments, "--json", shell='exec "$@" >&- 2>&-')
        assert done.returncode == 0
    else:
        with open("/dev/full", "w") as full:
            done = headrace(*arguments, "--json", stdout=full, stderr=full)
        assert done.returncode == 1, "what was asked for on stdout is not there"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 12
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 12
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


def test_full_output_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        done = headrace("config", "--preset", "demo", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == (
        "error: standard output: cannot be written (No space left on device). Files are not affected.\n"
    )


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = headrace("config", "--preset", "demo", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_shows_what_it_can() -> None:
    code = """
import sys
from headrace.cli import display
from headrace.cli.streams import steady_streams
steady_streams()
display.out.print("loss 5.1 → 4.2, é, \\udc80")
display.err.print("▁▂▃")
sys.stdout.write("水車\\n")
"""
    environment = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("iso-8859-1") == "loss 5.1 ? 4.2, é, \\x80\n??\n"
    assert done.stderr == b"???\n"


def test_metrics_hold_whole_lines_only(tmp_path: Path) -> None:
    """A limit in the middle of a line, as on a disk that is full: Python has SIGXFSZ ignored, so this is an error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsFile(tmp_path / "metrics.jsonl") as metrics:
        metrics.write("a" * 50 + "\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (80, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                metrics.write("b" * 50 + "\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        metrics.write("c\n")
    assert (tmp_path / "metrics.jsonl").read_text() == "a" * 50 + "\nc\n"


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_records_that_cannot_be_written_do_not_end_training(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretraining(corpus, tmp_path / "run") as training:
        monkeypatch.setattr(MetricsFile, "write", no_space)
        monkeypatch.setattr(training.folder, "add_sample", no_space)
        assert len(list(training.steps())) == 12
    said = [
        f"{tmp_path / 'run' / name}: cannot be written (No space left on device)"
        for name in ("samples.txt", "metrics.jsonl")
    ]
    assert [warning.partition(". Training goes on")[0] for warning in training.run.warnings] == said
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


def test_a_removed_tensorboard_folder_does_not_end_training(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pretraining(corpus, tmp_path / "run", **{"run.tensorboard": True}) as training:
        for info in training.steps():
            if info.step == 2:
                shutil.rmtree(tmp_path / "run" / "tensorboard")
    assert training.run.steps == 12
    assert len(training.run.warnings) == 1
    assert "tensorboard: cannot be written (somebody has removed it)" in training.run.warnings[0]


def test_a_limit_on_file_sizes_is_one_message(corpus: Path, tmp_path: Path) -> None:
    shell = 'ulimit -f 80; exec "$@"'  # blocks of 512 bytes
    done = headrace(*train_arguments(corpus, tmp_path / "run"), stderr=subprocess.PIPE, shell=shell)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "would be larger than a file may be here. Raise the limit (`ulimit -f unlimited`)." in said
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))


def test_the_corpus_is_described_after_the_checkpoint_is_safe(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise HeadraceError("corpus.json: the disk is full")

    monkeypatch.setattr(CorpusFiles, "write_when_known", fails)
    with pretraining(corpus, tmp_path / "run") as training, pytest.raises(HeadraceError, match="the disk is full"):
        list(training.steps())
    assert (tmp_path / "run" / "checkpoints" / "last" / "state.json").exists()


class Asked(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def interrupt() -> Any:
    """Have an exception raised in the main thread by a signal, after a moment."""

    def ask(_signal: int, _frame: object) -> None:
        raise Asked

    before = signal.signal(signal.SIGALRM, ask)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_the_wait_for_a_tokenizer_that_is_being_learned(interrupt: Callable[[], None]) -> None:
    """Learning happens in native code, where Python's signal handlers are not called."""
    gate = threading.Event()

    def documents() -> Any:
        yield b"the mill wheel turns " * 100
        gate.wait()  # as native code that does not return; but this can be let go

    interrupt()
    with pytest.raises(Asked):
        load_tokenizer("bpe:300", documents)
    assert not gate.is_set()
    gate.set()


def test_closing_a_builder_does_not_wait_for_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment may take minutes with a slow tokenizer; a piece of it takes a moment."""
    (tmp_path / "corpus.txt").write_text(make_text(200_000))
    is_working, may_go_on = threading.Event(), threading.Event()
    num_pieces = 0

    def encode(self: ByteEncoder, pieces: list[bytes]) -> Any:
        nonlocal num_pieces
        num_pieces += 1
        is_working.set()
        may_go_on.wait()
        return original(self, pieces)

    original = ByteEncoder.encode
    monkeypatch.setattr(ByteEncoder, "encode", encode)
    encode_documents = tokenise.encode_documents
    monkeypatch.setattr(tokenise, "encode_documents", lambda *arguments: encode_documents(*arguments, nbytes=1000))
    cache = open_or_create(as_sources(tmp_path / "corpus.txt"), "byte", tmp_path / "cache")
    with build.Builder(cache, num_workers=1) as builder:
        is_working.wait()
        builder._stopping.set()
        may_go_on.set()
    assert num_pieces <= 2
    assert builder.failure is None
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_a_stop_while_waiting_for_text_saves_and_ends(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is not there for as long as its segment is tokenised."""
    released = threading.Event()
    original = Assembler.batches

    def batches(self: Assembler, step: int, count: int) -> Any:
        if step >= 3:
            released.wait()
        return original(self, step, 1 if step < 3 else count)

    layers = Layers()
    layers.add(tiny_run.settings(corpus, tmp_path / "run", **{"data.prefetch_batches": 1}), "the test")
    asked = threading.Event()
    with Pretraining(layers.build(), asked.is_set) as training:
        monkeypatch.setattr(Assembler, "batches", batches)
        training.loader.seek(0)
        for info in training.steps():
            if info.step == 3:
                asking = threading.Timer(0.3, asked.set)  # while the fourth batch is waited for
                asking.start()
        released.set()
    assert training.run.was_stopped
    state = json.loads((tmp_path / "run" / "checkpoints" / "last" / "state.json").read_text())
    assert state["step"] == state["loader"]["step"] == 3


def test_sigterm_while_tokenising_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(make_text(1_000_000) * 30)
    arguments = ["prepare", str(tmp_path / "corpus.txt"), "--tokenizer", "bpe:500", "--out", str(tmp_path / "cache")]
    with subprocess.Popen([sys.executable, "-m", "headrace", *arguments], stderr=subprocess.PIPE, text=True) as child:
        while not list(tmp_path.glob("cache/tmp/*/tokens")):
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 3
    assert "Traceback" not in said
    assert said.endswith("error: stopped. Finished work is kept: run the same command again to continue.\n")
    assert not list(tmp_path.glob("cache/tmp/*"))


def test_a_run_that_ends_before_its_way_to_compute_is_chosen_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tiny_run.fresh_corpus(tmp_path, monkeypatch)
    is_open = {f"training.{name}": "auto" for name in ("precision", "matmul", "attention", "engine")}
    is_open |= {"training.micro_batch_size": 0, "training.threads": 0}
    tiny_run.train_until(corpus, "run", **{"training.max_steps": 1}, **is_open)
    written = json.loads((tmp_path / "run" / "config.json").read_bytes())["training"]
    assert {f"training.{name}": written[name] for name in ("precision", "matmul", "attention", "engine")} == {
        key: value for key, value in is_open.items() if value == "auto"
    }
    more = {"training.max_steps": 2, "run.resume": True}
    with Pretraining(tiny_run.configured(corpus, "run", **{**is_open, **more})) as resumed:
        assert not resumed.computing.is_final, "it goes on choosing"
