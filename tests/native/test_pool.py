"""The threads of native steps: forked processes, callers at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from headrace.native.engine import NativeStep
from headrace.native.library import why_missing
from tests.native.test_gradients import CASES, arrays_of, gradients, network_of

pytestmark = pytest.mark.skipif(bool(why_missing()), reason="the native library was not built")


def compare_with_a_fork() -> None:
    """Compute a step here and in a fork of this process."""
    network, arrays = network_of(CASES[0]), arrays_of(CASES[0])
    step = NativeStep(network, "float32", 2)
    expected = step(*arrays, 1.0)
    child = os.fork()
    if child == 0:
        os._exit(0 if step(*arrays, 1.0) == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    # In a process of its own: JAX, which other tests import, objects to every fork after it.
    code = "from tests.native.test_pool import compare_with_a_fork; compare_with_a_fork()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_callers_at_the_same_time_take_turns() -> None:
    cases = [CASES[0], CASES[5]]
    networks, arrays = [network_of(case) for case in cases], [arrays_of(case) for case in cases]
    alone = []
    for network, given in zip(networks, arrays, strict=True):
        NativeStep(network, "float32", 2)(*given, 1.0)
        alone.append(gradients(network))
        network.zero_grad()
    steps = [NativeStep(network, "float32", threads) for network, threads in zip(networks, (2, 3), strict=True)]
    with ThreadPoolExecutor(2) as callers:
        list(callers.map(lambda i: [steps[i](*arrays[i], 1.0) and networks[i].zero_grad() for _ in range(20)], (0, 1)))
    for step, network, given, expected in zip(steps, networks, arrays, alone, strict=True):
        step(*given, 1.0)
        torch.testing.assert_close(gradients(network), expected)
