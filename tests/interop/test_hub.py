"""Pushing a run to a stand-in for the hub on localhost, by the real huggingface_hub."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import headrace as hr
from headrace.interop import hub as hub_module
from tests.conftest import make_text
from tests.interop.hub_stand_in import Hub, hub_stand_in
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the neighbours


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pushed")
    (folder / "secret").mkdir()
    (folder / "secret" / "poems.txt").write_text(make_text(20_000))
    changes = {"training.max_steps": 2, "training.evaluate_every": 2}
    hr.train(**settings(folder / "secret" / "poems.txt", folder / "mine", **changes))
    return folder / "mine"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_stand_in() as stand_in:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", stand_in.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
        monkeypatch.setattr(hub_module, "ANSWER_S", 1.0)
        yield stand_in


def test_a_run_is_pushed_with_its_card(hub: Hub, run: Path, tmp_path: Path, command: Command) -> None:
    transformers = pytest.importorskip("transformers")
    code, out, err = command("push", run, "me/mine", "--license", "mit", "--private", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == {
        "run": str(run), "repo": "me/mine", "address": f"{hub.address}/me/mine"
    }  # fmt: skip
    assert hub.created.get("private") is True or hub.created.get("visibility") == "private"
    assert set(hub.files) == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    check_card(hub.files["README.md"].decode(), run)


def check_card(card: str, run: Path) -> None:
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata)["license"] == "mit"
    summary = json.loads((run / "summary.json").read_text())
    assert f"{summary['validation_loss']:.4f}" in text
    assert "| text | poems.txt |" in text
    assert "secret" not in text
    for heading in ("Data", "Recipe", "Losses", "Hardware", "A sample of its text"):
        assert f"## {heading}\n" in text


def test_a_licence_is_never_guessed(hub: Hub, run: Path, command: Command) -> None:
    for arguments in ((), ("--license", "my own!")):
        code, _, err = command("push", run, "me/mine", *arguments)
        assert code == 2
        assert "give the licence of the model" in err
    assert not hub.created


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "Log in with `hf auth login`"), (403, "may not write there"), (404, "no such owner"), (500, "answers 500")],
)
@pytest.mark.parametrize("fails_at", ["", "lfs", "commit"])
def test_a_hub_that_refuses_is_one_message(
    hub: Hub, run: Path, command: Command, status: int, message: str, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between huggingface_hub's own attempts
    hub.status, hub.fails_at = status, fails_at
    code, out, err = command("push", run, "me/mine", "--license", "mit")
    assert code == 1
    assert out == ""
    assert "me/mine: not uploaded: the hub answers" in err
    assert message in err
    assert "Traceback" not in err
    assert not hub.files


def test_a_hub_that_never_answers(hub: Hub, run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER_S", 0.1)
    hub.status = 0
    code, _, err = command("push", run, "me/mine", "--license", "mit")
    assert code == 1
    assert f"{hub.address} cannot be reached or does not answer" in err


def test_a_hub_that_is_not_there(run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        code, _, err = command("push", run, "me/mine", "--license", "mit")
    assert code == 1
    assert "cannot be reached" in err


def test_what_cannot_be_pushed(run: Path, tmp_path: Path, command: Command) -> None:
    assert command("push", run, "a/b/c", "--license", "mit")[0] == 2
    assert command("push", tmp_path / "nothing", "me/mine", "--license", "mit")[0] == 1


def test_an_older_checkpoint_does_not_claim_the_last_losses(hub: Hub, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "mine", symlinks=True)
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    (tmp_path / "mine" / "summary.json").write_text(json.dumps({**summary, "steps": 99}))
    from headrace.jobs.push import push

    push(tmp_path / "mine", "me/mine", "mit")
    assert "## Losses" not in hub.files["README.md"].decode()
