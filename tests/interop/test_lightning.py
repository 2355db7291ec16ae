"""The real Lightning: its trainer stops in the middle of an epoch and goes on, with the data module and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.data.corpus.scale import use_scale
from headrace.errors import UsageError
from headrace.interop.lightning import data_module
from headrace.interop.torch import TorchBatches
from tests.conftest import SMALL, make_text

lightning = pytest.importorskip("lightning", reason="pip install 'headrace[lightning]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning

BATCH, LENGTH, FRACTION = 4, 16, 0.2
Inputs = list[np.ndarray[Any, Any]]


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """The smallest language model, which notes what it is trained and evaluated on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(300, 300)
        self.seen: Inputs = []
        self.evaluated: Inputs = []

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.embedding(batch["inputs"])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.append(batch["inputs"].numpy())
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.evaluated.append(batch["inputs"].numpy())
        self.log("validation_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(out: Path, max_steps: int, **options: Any) -> Any:
    return lightning.Trainer(
        max_steps=max_steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=out, num_sanity_val_steps=0, **options,
    )  # fmt: skip


def expected(cache: hr.Cache, count: int, **options: Any) -> Inputs:
    with hr.Loader(cache, BATCH, LENGTH, **options) as loader:
        return [next(loader).inputs for _ in range(count)]


def test_batches_without_a_data_module_stop_and_resume(cache: hr.Cache, tmp_path: Path) -> None:
    def fit(max_steps: int, resume_from: Path | None) -> Inputs:
        module = Module()
        with hr.Loader(cache, BATCH, LENGTH) as loader:
            trainer = make_trainer(tmp_path, max_steps)
            trainer.fit(module, TorchBatches(loader, num_steps=20), ckpt_path=resume_from)
            trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        return module.seen

    seen = fit(6, None) + fit(12, tmp_path / "stopped.ckpt")
    np.testing.assert_array_equal(seen, expected(cache, 12))


@pytest.mark.parametrize("stop", [1, 4, 5, 7, 10], ids=lambda stop: f"stopped at {stop}")
def test_the_data_module_goes_on_in_the_middle_and_at_the_end_of_an_epoch(
    cache: hr.Cache, tmp_path: Path, stop: int
) -> None:
    def fit(max_steps: int, resume_from: Path | None = None) -> tuple[Inputs, torch.Tensor]:
        module = Module()
        data = data_module(cache, BATCH, LENGTH, num_steps=5)  # an epoch of 5 steps
        trainer = make_trainer(tmp_path, max_steps)
        trainer.fit(module, data, ckpt_path=resume_from)
        trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        return module.seen, module.embedding.weight.detach()

    first, _ = fit(stop)
    second, weights = fit(12, tmp_path / "stopped.ckpt")
    np.testing.assert_array_equal(first + second, expected(cache, 12))
    _, unbroken = fit(12)
    assert torch.equal(weights, unbroken)


def test_an_epoch_is_one_pass_and_the_next_has_another_order(cache: hr.Cache, tmp_path: Path) -> None:
    module, data = Module(), data_module(cache, 32, LENGTH)
    with hr.Loader(cache, 32, LENGTH) as loader:
        length = loader.steps_per_epoch
        whole = [next(loader).inputs for _ in range(2 * length)]
    make_trainer(tmp_path, -1, max_epochs=2, reload_dataloaders_every_n_epochs=1).fit(module, data)
    np.testing.assert_array_equal(module.seen, whole)


def test_another_fit_goes_on(cache: hr.Cache, tmp_path: Path) -> None:
    module, data = Module(), data_module(cache, BATCH, LENGTH)
    make_trainer(tmp_path, 3).fit(module, data)
    make_trainer(tmp_path, 3).fit(module, data)
    np.testing.assert_array_equal(module.seen, expected(cache, 6))


def test_validation_is_the_same_rows_each_time_and_none_of_training(cache: hr.Cache, tmp_path: Path) -> None:
    module = Module()
    data = data_module(cache, BATCH, LENGTH, validation_fraction=FRACTION, validation_tokens=10 * LENGTH)
    make_trainer(tmp_path, 4, val_check_interval=2).fit(module, data)
    half = len(module.evaluated) // 2
    assert half >= 2
    for before, after in zip(module.evaluated[:half], module.evaluated[half:], strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(module.seen, expected(cache, 4, split="train", validation_fraction=FRACTION))
    with hr.Loader(cache, BATCH, LENGTH, split="validation", validation_fraction=FRACTION) as loader:
        rows = np.concatenate([sample.batch.inputs for sample in loader.sample(10 * LENGTH) if sample.batch])
    np.testing.assert_array_equal(np.concatenate(module.evaluated[:half]), rows)


class Place:
    """What the data module asks a trainer: which of how many processes this is."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.distributed_sampler_kwargs = {"rank": rank, "num_replicas": world_size}


def test_each_process_gets_its_share(cache: hr.Cache) -> None:
    shares, evaluated = [], []
    for rank in range(2):
        data = data_module(cache, BATCH, LENGTH, validation_fraction=FRACTION, validation_tokens=11 * LENGTH)
        data.trainer = Place(rank, 2)
        batches = iter(data.train_dataloader())
        shares.append([next(batches)["inputs"].numpy() for _ in range(5)])
        evaluated.append([batch["inputs"].numpy() for batch in data.val_dataloader()])
        data.teardown()
    whole = expected(cache, 5, split="train", validation_fraction=FRACTION)
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), whole)
    assert [len(batch) for batch in evaluated[0]] == [len(batch) for batch in evaluated[1]]
    with hr.Loader(cache, BATCH, LENGTH, split="validation", validation_fraction=FRACTION) as loader:
        rows = np.concatenate([sample.batch.inputs for sample in loader.sample(11 * LENGTH) if sample.batch])
    together = np.concatenate([*evaluated[0], *evaluated[1]])
    np.testing.assert_array_equal(together, rows[: len(together)])
    assert len(rows) - len(together) <= 1


def test_text_is_tokenised_when_lightning_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(make_text(20_000))
    module = Module()
    data = data_module(tmp_path / "text.txt", BATCH, LENGTH, tokenizer="bpe:300", cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with use_scale(SMALL):
        make_trainer(tmp_path, 3).fit(module, data)
        np.testing.assert_array_equal(module.seen, expected(hr.Cache.open(tmp_path / "cache"), 3))
        again = data_module(str(tmp_path / "cache"), BATCH, LENGTH)
        np.testing.assert_array_equal(next(iter(again.train_dataloader()))["inputs"].numpy(), module.seen[0])
        again.teardown()


def test_a_pass_of_no_whole_batch_is_named(cache: hr.Cache) -> None:
    with pytest.raises(UsageError, match="give num_steps"):
        data_module(cache, 1000, 1000).train_dataloader()


def test_options_of_text_decide_how_it_is_tokenised(tmp_path: Path) -> None:
    for name, text in (("a.txt", "one<|endoftext|>" * 50), ("b.txt", make_text(2_000))):
        (tmp_path / name).write_text(text)
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    options = {"special_tokens_in_text": "special", "deduplicate": "exact", "weights": [1, 1]}
    module = data_module(paths, BATCH, LENGTH, tokenizer="byte", cache_dir=tmp_path / "cache", num_steps=2, **options)
    module.setup()
    assert module.cache.tokenizer.special_tokens_in_text == "special"
    assert len(module.cache.sources) == 2
    assert len(list(module.train_dataloader())) == 2
    module.teardown()
