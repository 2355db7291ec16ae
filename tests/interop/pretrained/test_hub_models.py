"""Hub names where a model or a tokenizer is expected: downloaded by the real huggingface_hub from a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.data.tokens.tokenizers import load_tokenizer
from headrace.errors import HeadraceError
from headrace.run.saved_model import load_trained
from tests.interop.hub_stand_in import COMMIT, Hub, hub_stand_in
from tests.interop.pretrained.tiny_models import TEXT, make_model, save_model
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the neighbours


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = save_model(tmp_path_factory.mktemp("pushed"), make_model("llama"), max_shard_size="20KB")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_files: dict[str, bytes]) -> Iterator[Hub]:
    with hub_stand_in() as stand_in:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", stand_in.address)
        template = f"{stand_in.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 1)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 1)
        monkeypatch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 1)
        monkeypatch.setattr("time.sleep", lambda _: None)  # between huggingface_hub's own attempts
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "user-cache"))
        monkeypatch.chdir(tmp_path)
        stand_in.files = dict(model_files)
        yield stand_in


def test_generate_and_export_take_a_hub_name(hub: Hub, tmp_path: Path, command: Command) -> None:
    code, out, err = command("generate", "me/mine", "--prompt", "the", "--max-tokens", "3", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["run"] == "me/mine"
    downloads = [request for request in hub.requests if request.startswith("GET") and "safetensors" in request]
    assert all(f"/resolve/{COMMIT}/" in request for request in downloads), "all files come from one commit"
    number = len([request for request in hub.requests if request.startswith("GET")])
    pytest.importorskip("gguf")
    code, out, err = command("export", "me/mine@main", "--gguf")
    assert code == 0, err
    assert (tmp_path / "gguf" / "mine-f32.gguf").exists()
    assert len([request for request in hub.requests if request.startswith("GET")]) == number, "nothing comes twice"


def test_a_run_begins_from_a_hub_name(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(TEXT)
    values = settings(tmp_path / "corpus.txt", tmp_path / "run", **{"training.max_steps": 2})
    kept = {key: value for key, value in values.items() if not key.startswith(("model.", "data.tok"))}
    run = hr.train(**kept, **{"model.init": "me/mine"})
    start = run.continues_from
    assert start is not None and (start.model, start.kind, start.revision) == ("me/mine", "hub", COMMIT)
    hub.status = 404
    again = hr.train(**{**kept, "model.init": "me/mine", "run.resume": True, "training.max_steps": 3})
    assert again.steps == 3


def test_hf_endpoint_is_honoured(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
    arguments = ("generate", "me/mine", "--prompt", "the", "--max-tokens", "2")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the")
    assert hub.requests


def test_a_tokenizer_by_its_hub_name(hub: Hub) -> None:
    found = load_tokenizer("me/mine", lambda: iter(()))
    assert found.vocab_size == 300 and found.spec == "me/mine"


def test_what_is_in_the_cache_needs_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    load_trained("me/mine")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert load_trained("me/mine").name == "mine"
    assert not hub.requests
    with pytest.raises(
        HeadraceError, match=r"other/model: config.json not downloaded: it is not in the local hub cache"
    ):
        load_trained("other/model")


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "answers 401: no such public repository"), (403, "answers 403"), (404, "answers 404"), (500, "answers 500")],
)
def test_a_hub_that_refuses_is_one_message(hub: Hub, command: Command, status: int, message: str) -> None:
    hub.status = status
    code, out, err = command("generate", "me/mine", "--prompt", "a")
    assert (code, out) == (1, "")
    assert "me/mine: config.json not downloaded: the hub" in err and message in err
    assert "Traceback" not in err


def test_a_hub_that_never_answers_and_one_that_cuts(hub: Hub, command: Command, tmp_path: Path) -> None:
    hub.cut_after = 1000
    code, _, err = command("generate", "me/mine", "--prompt", "a")
    assert code == 1 and "not downloaded" in err and "Traceback" not in err
    assert not list((tmp_path / "hub-cache").rglob("*.safetensors"))
    hub.cut_after, hub.status = 0, 0
    code, _, err = command("serve", "you/other")
    assert code == 1
    assert f"{hub.address} cannot be reached or does not answer" in err


def test_repositories_without_what_is_needed(hub: Hub) -> None:
    def refused(message: str, **changes: Any) -> None:
        before = dict(hub.files)
        for name, content in changes.items():
            hub.files[name.replace("_json", ".json").replace("_bin", ".bin")] = content
        with pytest.raises(HeadraceError, match=message):
            load_trained("me/mine")
        hub.files = before

    weights = {name: content for name, content in hub.files.items() if "safetensors" in name}
    hub.files = {name: content for name, content in hub.files.items() if name not in weights}
    refused("holds pickled weights only", pytorch_model_bin=b"\x80")
    assert not [request for request in hub.requests if request.startswith("GET") and "bin" in request]
    refused("no model.safetensors and no model.safetensors.index.json")
    with pytest.raises(HeadraceError, match="no such public repository"):
        load_trained("me/nothing")
