"""Addresses with secrets: remembered for the processes that are started, however many there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.data.corpus.remote import addresses

SEVERAL = """
import os, subprocess, sys
from headrace.data.corpus.remote import addresses

for number in range(300):
    addresses.shown(f"https://host/{number}.txt?signature={'s' * 1000}{number}")
child = "from headrace.data.corpus.remote.addresses import given; print(given('https://host/299.txt'))"
said = subprocess.run([sys.executable, "-c", child], check=True, capture_output=True, text=True).stdout
assert said.strip().endswith("s299"), said
path = os.environ[addresses.GIVEN_VARIABLE].removeprefix("file:")
assert os.stat(path).st_mode & 0o777 == 0o600
print(path)
"""


def test_more_addresses_than_a_variable_holds() -> None:
    ended = subprocess.run([sys.executable, "-c", SEVERAL], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
    assert not os.path.exists(ended.stdout.strip())


def test_a_process_adds_to_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(addresses.GIVEN_VARIABLE, '{"https://host/a.txt": "https://host/a.txt?signature=a"}')
    addresses.shown("https://host/b.txt?signature=b")
    assert addresses.given("https://host/a.txt") == "https://host/a.txt?signature=a"
    assert addresses.given("https://host/b.txt") == "https://host/b.txt?signature=b"
    monkeypatch.setenv(addresses.GIVEN_VARIABLE, "file:/no/such/file")
    assert addresses.given("https://host/a.txt") == "https://host/a.txt"
