"""Damaged and hostile checkpoints: refused by name, nothing is touched, and a whole one is offered."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import headrace as hr
from headrace.errors import CheckpointError
from headrace.jobs.train import train
from headrace.training.restore import file_hash
from tests.run.tiny_run import change_state, contents

Command = Callable[..., tuple[int, str, str]]


Tensors = dict[str, torch.Tensor]


def forge(checkpoint: Path, name: str, change: Callable[[Tensors], Any]) -> None:
    """Change a file of tensors as somebody would who can make checksums."""
    tensors = load_file(checkpoint / name)
    change(tensors)
    save_file(tensors, checkpoint / name)
    change_state(checkpoint, lambda state: state["files"].update({name: file_hash(checkpoint / name)}))


def damage(run: Path, how: str) -> None:
    last = run / "checkpoints" / "step-00000012"
    if how == "dangling":
        shutil.rmtree(last)
    elif how == "link outside":
        (run / "checkpoints" / "last").unlink()
        (run / "checkpoints" / "last").symlink_to(run.parent)
    else:
        data = bytearray((last / how).read_bytes())
        data[len(data) // 2] ^= 1
        (last / how).write_bytes(data)


@pytest.mark.parametrize("resume", [True, "auto"])
@pytest.mark.parametrize(
    "how",
    [
        "dangling", "link outside", "state.json", "config.json", "model.safetensors",
        "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json",
    ],
)  # fmt: skip
def test_damage_offers_an_older_checkpoint_and_touches_nothing(
    command: Command, run: Path, values: dict[str, Any], how: str, resume: bool | str
) -> None:
    damage(run, how)
    before = contents(run)
    with pytest.raises(CheckpointError) as refusal:
        train(**{**values, "run.resume": resume})
    assert contents(run) == before
    message = str(refusal.value)
    assert "prepare" not in message
    whole = run / "checkpoints" / ("step-00000012" if how == "link outside" else "step-00000008")
    offer = f"headrace train --resume {whole}"
    assert offer in message
    if resume == "auto" and how in ("dangling", "state.json"):
        code, _, err = command(*offer.split()[1:], "training.max_steps=14")
        assert code == 0, err


def test_nothing_is_offered_where_nothing_is_whole(run: Path, values: dict[str, Any]) -> None:
    shutil.rmtree(run / "checkpoints" / "step-00000008")
    damage(run, "state.json")
    with pytest.raises(CheckpointError, match="no other checkpoint that is whole"):
        train(**values)


def shrink(tensors: Tensors) -> None:
    name = next(name for name in tensors if name.endswith("exp_avg"))
    tensors[name] = tensors[name].flatten()[:1].clone()


def rename(tensors: Tensors) -> None:
    name = min(tensors)
    tensors["another"] = tensors.pop(name)


def drop(tensors: Tensors) -> None:
    del tensors[min(tensors)]


def retype(kind: torch.dtype) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({min(tensors): tensors[min(tensors)].to(kind)})


def fill(value: float, suffix: str = "") -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = next(name for name in sorted(tensors) if name.endswith(suffix))
        tensors[name].view(-1)[-1] = value

    return change


HOSTILE: list[tuple[str, Callable[[Tensors], Any], str]] = [
    ("optimizer.safetensors", shrink, r"exp_avg is \(1,\) instead of \(32,\)"),
    ("optimizer.safetensors", rename, "no tensor"),
    ("optimizer.safetensors", drop, "no tensor"),
    ("optimizer.safetensors", lambda tensors: tensors.update(more=torch.zeros(2)), "unknown tensor more"),
    ("optimizer.safetensors", retype(torch.int8), "is of type I8"),
    ("optimizer.safetensors", fill(math.nan), "not finite"),
    ("optimizer.safetensors", fill(-1.0, ".exp_avg_sq"), "negative"),
    ("model.safetensors", rename, "no tensor"),
    ("model.safetensors", retype(torch.int8), "is of type I8, not F32"),
    ("model.safetensors", retype(torch.bool), "is of type BOOL, not F32"),
    ("model.safetensors", fill(math.nan), "not finite"),
    ("model.safetensors", fill(math.inf), "not finite"),
]


@pytest.mark.parametrize(("name", "change", "message"), HOSTILE)
def test_tensors_that_do_not_belong_are_refused(
    run: Path, values: dict[str, Any], name: str, change: Callable[[Tensors], Any], message: str
) -> None:
    forge(run / "checkpoints" / "step-00000012", name, change)
    before = contents(run)
    with pytest.raises(CheckpointError, match=message) as refusal:
        train(**values)
    assert f"{name}: " in str(refusal.value)
    assert contents(run) == before, "nothing is cut before all was read"


@pytest.mark.parametrize("change", [retype(torch.int8), fill(math.nan)])
def test_generate_refuses_them_too(command: Command, run: Path, change: Callable[[Tensors], Any]) -> None:
    forge(run / "checkpoints" / "step-00000008", "model.safetensors", change)
    code, _, err = command("generate", run)
    assert code == 1
    assert "model.safetensors: " in err
    change_state(run / "checkpoints" / "step-00000012", lambda state: state["config"]["model"].update(d_model=8192))
    code, _, err = command("generate", run / "checkpoints" / "last")
    assert code == 1
    assert "fewer weights" in err


def remove_outside(state: dict[str, Any]) -> None:
    state["files"]["../../config.json"] = "0"


@pytest.mark.parametrize(
    "change",
    [
        remove_outside,
        lambda state: state.update(files=[]),
        lambda state: state.update(files={}),
        lambda state: state.pop("position"),
        lambda state: state["position"].update(step=-3),
        lambda state: state["position"].update(tokens="many"),
        lambda state: state["execution"].update(micro_batch_size=0),
        lambda state: state["execution"].update(threads=10**9),
        lambda state: state["execution"].update(precision="float8"),
        lambda state: state.update(execution=None),
        lambda state: state.update(config={"model": {"d_model": "wide"}}),
        lambda state: state.update(peak_flops=[]),
        lambda state: state.update(loader=7),
        lambda state: state.update(processes=0),
    ],
)
def test_a_state_that_no_run_leaves_is_refused(
    run: Path, values: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change_state(run / "checkpoints" / "step-00000012", change)
    before = contents(run)
    with pytest.raises(hr.HeadraceError, match="step-00000012"):
        train(**values)
    assert contents(run) == before
