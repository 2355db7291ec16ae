"""JAX: sharded global arrays with the loader's order and state, and a whole training script that resumes exactly."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.interop.jax import jax_batches
from tests.conftest import make_text

jax = pytest.importorskip("jax", reason="pip install 'headrace[jax]'")
pytestmark = [pytest.mark.usefixtures("eight_devices"), pytest.mark.filterwarnings("ignore")]  # of jax

BATCH, LENGTH = 16, 32
TIMEOUT_S = 300  # of a whole run of the example, which takes a few seconds: a hang ends the test, not the suite
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_jax.py"


def make_mesh(*sizes: int) -> Any:
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(devices, ("data", "model")[: len(sizes)])


def expected(cache: hr.Cache, count: int) -> list[np.ndarray[Any, Any]]:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        return [next(loader).inputs for _ in range(count)]


@pytest.mark.parametrize("num_devices", [1, 8])
def test_global_batches_are_those_of_the_loader(cache: hr.Cache, num_devices: int) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = jax_batches(loader, make_mesh(num_devices))
        seen = [next(batches) for _ in range(5)]
    for batch, inputs in zip(seen, expected(cache, 5), strict=True):
        assert batch["inputs"].dtype == np.int32 and batch["inputs"].committed
        assert batch["inputs"].sharding.num_devices == num_devices
        assert {shard.data.shape for shard in batch["inputs"].addressable_shards} == {(BATCH // num_devices, LENGTH)}
        np.testing.assert_array_equal(np.asarray(batch["inputs"]), inputs)
        np.testing.assert_array_equal(np.asarray(batch["targets"])[:, :-1], inputs[:, 1:])


@pytest.mark.parametrize(
    "spec", [("data", "model"), (("data", "model"),), (None, "model"), ("model",), ()], ids=lambda spec: str(spec)
)
def test_any_spec_gives_the_same_global_array(cache: hr.Cache, spec: tuple[Any, ...]) -> None:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batch = next(jax_batches(loader, make_mesh(4, 2), jax.sharding.PartitionSpec(*spec)))
    np.testing.assert_array_equal(np.asarray(batch["inputs"]), expected(cache, 1)[0])


def test_the_default_mesh_is_all_devices(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, packing="document") as loader:
        batch = next(jax_batches(loader))
    assert set(batch) == {"inputs", "targets", "mask", "documents"}
    assert batch["mask"].sharding.num_devices == 8


def test_restoring_at_every_step_gives_the_whole_tail(cache: hr.Cache) -> None:
    whole = expected(cache, 6)
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = jax_batches(loader, prefetch_batches=3)
        states = []
        for _ in range(6):
            states.append(json.loads(json.dumps(batches.state())))
            next(batches)
        for step, state in enumerate(states):
            batches.restore(state)
            assert batches.step == step
            tail = [np.asarray(next(batches)["inputs"]) for _ in range(step, 6)]
            np.testing.assert_array_equal(tail, whole[step:])


def test_what_does_not_fit_is_named(cache: hr.Cache) -> None:
    spec = jax.sharding.PartitionSpec
    with hr.Loader(cache, 10, LENGTH) as loader:
        with pytest.raises(UsageError, match=r"batch_size 10 does not divide among the 8 devices.* use 8 or 16"):
            jax_batches(loader)
        with pytest.raises(UsageError, match=r"no axis 'rows'; its axes are \['data'\]"):
            jax_batches(loader, make_mesh(2), spec("rows"))
        with pytest.raises(UsageError, match="two dimensions"):
            jax_batches(loader, make_mesh(2), spec(None, None, "data"))
    with (
        hr.Loader(cache, BATCH, LENGTH, rank=1, world_size=2) as loader,
        pytest.raises(UsageError, match=r"rank 1 of 2 makes rows 8 to 15.*jax.process_index\(\)"),
    ):
        jax_batches(loader)


PROCESS = """
import sys, jax, numpy as np
import headrace as hr
from headrace.interop.jax import jax_batches

rank, address, cache = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(address, num_processes=2, process_id=rank)
with hr.Loader(cache, 16, 32) as loader:
    whole = [next(loader).inputs for _ in range(3)]
with hr.Loader(cache, 16, 32, rank=jax.process_index(), world_size=jax.process_count()) as loader:
    batches = jax_batches(loader)
    for inputs in whole:
        batch = next(batches)["inputs"]
        assert batch.shape == (16, 32) and not batch.is_fully_addressable and len(batch.addressable_shards) == 4
        for shard in batch.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), inputs[shard.index])
"""


def test_two_processes_make_one_global_array(cache: hr.Cache) -> None:
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    commands = [[sys.executable, "-c", PROCESS, str(rank), address, str(cache.path)] for rank in range(2)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_example_killed_and_resumed_ends_with_the_same_loss(tmp_path: Path) -> None:
    pytest.importorskip("optax", reason="pip install 'headrace[jax]'")
    corpus = tmp_path / "text.txt"
    corpus.write_text(make_text(60_000))

    def command(out: str) -> list[str]:
        options = ["--tokenizer", "bpe:300", "--steps", "9", "--save-every", "3", "--cpu-devices", "8"]
        return [sys.executable, str(EXAMPLE), str(corpus), "--out", str(tmp_path / out), *options]

    def complete(out: str) -> dict[str, Any]:
        done = subprocess.run(command(out), capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    with subprocess.Popen(command("killed"), stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        first_line = process.stdout.readline()
        process.kill()
        watchdog.cancel()
    assert first_line.startswith("step 3:")
    unbroken, resumed = complete("unbroken"), complete("killed")
    assert unbroken == resumed
    assert unbroken["steps"] == 9 and unbroken["devices"] == 8
