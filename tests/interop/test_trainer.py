"""The real `Trainer` of transformers: stopped and resumed, it sees no batch twice and none missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.errors import StateError, UsageError
from headrace.interop.trainer import STATE_FILE, TrainerRows, resume_callback

transformers = pytest.importorskip("transformers", reason="pip install 'headrace[trainer]'")
pytest.importorskip("accelerate", reason="pip install 'headrace[trainer]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate

BATCH, LENGTH, STEPS, STOP = 4, 16, 50, 20


class Run:
    """A tiny GPT-2 in `Trainer`, and the batches that reach it."""

    def __init__(self, cache: hr.Cache, out: Path, with_callback: bool, stop: int = STEPS, **options: Any) -> None:
        self.cache, self.out, self.with_callback, self.stop, self.options = cache, out, with_callback, stop, options
        self.seen: list[np.ndarray[Any, Any]] = []
        self.targets: list[np.ndarray[Any, Any]] = []

    def train(self, resume: bool = False) -> float:
        config = transformers.GPT2Config(
            vocab_size=300, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        model.register_forward_pre_hook(self._note, with_kwargs=True)
        arguments = {
            "output_dir": str(self.out), "max_steps": STEPS, "per_device_train_batch_size": BATCH,
            "remove_unused_columns": False, "save_steps": STOP, "logging_steps": 1, "report_to": [], "use_cpu": True,
            "disable_tqdm": True, "ignore_data_skip": self.with_callback, **self.options,
        }  # fmt: skip
        with hr.Loader(self.cache, BATCH, LENGTH) as loader:
            trainer = transformers.Trainer(
                model,
                transformers.TrainingArguments(**arguments),
                train_dataset=TrainerRows(loader),
                callbacks=[stop_at(self.stop), *([resume_callback(loader)] if self.with_callback else [])],
            )
            trainer.train(resume_from_checkpoint=resume or None)
        return [line["loss"] for line in trainer.state.log_history if "loss" in line][-1]

    def _note(self, _: Any, __: Any, values: dict[str, torch.Tensor]) -> None:
        self.seen.append(values["input_ids"].numpy())
        self.targets.append(values["shift_labels"].numpy())


def stop_at(step: int) -> Any:
    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step >= step

    return Stop()


def expected(cache: hr.Cache, count: int) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    with hr.Loader(cache, BATCH, LENGTH) as loader:
        batches = [next(loader) for _ in range(count)]
    return [batch.inputs for batch in batches], [batch.targets for batch in batches]


@pytest.mark.parametrize("with_callback", [True, False], ids=["callback", "data skip of Trainer"])
def test_trainer_stops_and_resumes(cache: hr.Cache, tmp_path: Path, with_callback: bool) -> None:
    unbroken = Run(cache, tmp_path / "unbroken", with_callback)
    loss = unbroken.train()
    first = Run(cache, tmp_path / "broken", with_callback, stop=STOP)
    first.train()
    second = Run(cache, tmp_path / "broken", with_callback)
    assert second.train(resume=True) == pytest.approx(loss, rel=1e-4)
    inputs, targets = expected(cache, STEPS)
    np.testing.assert_array_equal(first.seen + second.seen, inputs)
    np.testing.assert_array_equal(first.targets + second.targets, targets)


def test_accumulation_counts_batches(cache: hr.Cache, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "save_steps": 3, "max_steps": 6}
    first = Run(cache, tmp_path / "run", True, stop=3, **options)
    first.train()
    assert json.loads((tmp_path / "run" / "checkpoint-3" / STATE_FILE).read_text())["step"] == 6
    second = Run(cache, tmp_path / "run", True, **options)
    second.train(resume=True)
    np.testing.assert_array_equal(first.seen + second.seen, expected(cache, 12)[0])


def test_wrong_arguments_are_named(cache: hr.Cache, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ignore_data_skip=True"):
        Run(cache, tmp_path / "a", True, ignore_data_skip=False).train()
    with pytest.raises(UsageError, match="make per_device_train_batch_size the loader's batch_size"):
        Run(cache, tmp_path / "b", True, per_device_train_batch_size=3).train()


def test_a_lost_state_is_named(cache: hr.Cache, tmp_path: Path) -> None:
    options = {"save_steps": 2, "max_steps": 4}
    Run(cache, tmp_path, True, stop=2, **options).train()
    (tmp_path / "checkpoint-2" / STATE_FILE).unlink()
    with pytest.raises(StateError, match=STATE_FILE):
        Run(cache, tmp_path, True, **options).train(resume=True)


def test_masked_targets_are_left_out(cache: hr.Cache) -> None:
    with hr.Loader(cache, BATCH, LENGTH, packing="document") as loader:
        row = next(iter(TrainerRows(loader)))
        loader.seek(0)
        batch = next(loader)
    assert batch.mask is not None
    np.testing.assert_array_equal(row["shift_labels"].numpy() == -100, ~batch.mask[0])
    np.testing.assert_array_equal(row["labels"][1:].numpy(), row["shift_labels"][:-1].numpy())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_documents_of_a_row_do_not_see_each_other(tmp_path: Path, attention: str) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"line {n} of the river\n" for n in range(300)))
    source = hr.Source(path=str(tmp_path / "lines.txt"), document="line")
    cache = hr.prepare([source], tokenizer="byte", out=tmp_path / "cache")
    with hr.Loader(cache, BATCH, 64, packing="document") as loader:
        batch = next(loader)
        loader.seek(0)
        rows = [row for row, _ in zip(TrainerRows(loader), range(BATCH), strict=False)]
    assert batch.documents is not None
    number = next(n for n in range(BATCH) if batch.documents[n].max() > 1)
    row, documents = rows[number], batch.documents[number]
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=64, n_embd=16, n_layer=2, n_head=2, attn_implementation=attention, use_cache=False,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()  # without a cache, as Trainer sets it
    given = transformers.default_data_collator([row])
    with torch.no_grad():
        together = model(**given).logits[0]
        for document in range(1, int(documents.max()) + 1):
            where = torch.from_numpy(np.flatnonzero(documents == document))
            alone = model(row["input_ids"][where][None]).logits[0]
            torch.testing.assert_close(together[where], alone, atol=1e-5, rtol=1e-4)
