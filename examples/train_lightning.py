"""Train with Lightning on headrace's data module: one process or several, checkpoints in mid-epoch, exact resume.

    python examples/train_lightning.py                              # the Python standard library: no download
    python examples/train_lightning.py corpus/ --out runs/mine --steps 500
    python examples/train_lightning.py --devices 2                  # two processes: the same batches, half of each

The same command with more steps goes on as if it had never stopped. The last line of stdout is JSON. Needs
`pip install 'headrace[lightning]'`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_model import LENGTH, TinyModel
from torch import Tensor

import headrace as hr
from headrace.interop.lightning import data_module

VOCABULARY = 2048


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = TinyModel(VOCABULARY)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        loss = self.network(batch["inputs"], batch["targets"])
        self.log("loss", loss, prog_bar=True, sync_dist=True)  # the mean over processes
        return loss

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.log("validation_loss", self.network(batch["inputs"], batch["targets"]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-lightning"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--devices", type=int, default=1, help="processes, of which each trains on its rows of a batch")
    options = parser.parse_args()

    lightning.seed_everything(0)
    data = data_module(
        options.corpus or hr.standard_library(),
        batch_size=16,
        sequence_length=LENGTH,
        tokenizer=f"bpe:{VOCABULARY}",
        cache_dir=options.out / "cache",
        validation_fraction=0.1,
        validation_tokens=8192,
    )
    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="cpu",  # "auto" takes what there is
        devices=options.devices,
        val_check_interval=options.save_every,
        check_val_every_n_epoch=None,  # count the batches above over epochs
        num_sanity_val_steps=0,
        callbacks=[
            ModelCheckpoint(options.out / "checkpoints", every_n_train_steps=options.save_every, save_last=True)
        ],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), data, ckpt_path="last")  # a warning says so if there is no checkpoint yet
    if trainer.is_global_zero:
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        print(json.dumps({"steps": trainer.global_step, "processes": trainer.world_size, **figures}))


if __name__ == "__main__":
    main()
