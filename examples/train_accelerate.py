"""Train with Accelerate on headrace's batches: one process or several, checkpoints, exact resume.

    python examples/train_accelerate.py                             # the Python standard library: no download
    accelerate launch --num_processes 2 examples/train_accelerate.py corpus/ --out runs/mine --steps 500

Each process makes its own rows of a batch, so any number of processes trains on the same batches, and a run may go on
with another number. The same command with more steps goes on as if it had never stopped. The last line of stdout is
JSON. Needs `pip install 'headrace[accelerate]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny_model import LENGTH, TinyModel

import headrace as hr
from headrace.interop.torch import TorchBatches


def save(accelerator: Accelerator, out: Path, step: int) -> None:
    """Save everything to a folder that has its final name only once it is whole."""
    if accelerator.is_main_process:
        shutil.rmtree(out / "saving", ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(out / "saving"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(out / "saving", out / f"step-{step:08}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-accelerate"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=25)
    options = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    with accelerator.main_process_first():  # the others find it done
        cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer="bpe:2048", out=options.out / "cache")
    model = TinyModel(cache.tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    with hr.Loader(cache, batch_size=16, sequence_length=LENGTH, **place) as loader:
        batches = TorchBatches(loader, device=accelerator.device)
        # Not prepare(…, batches): it would divide the rows of this process among the processes once more.
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(batches)  # save_state and load_state then include their place
        newest = max(options.out.glob("step-*"), default=None)
        if newest is not None:
            accelerator.load_state(str(newest))
        first, loss = loader.step, torch.tensor(float("nan"))
        for step, batch in zip(range(first + 1, options.steps + 1), batches, strict=False):
            optimizer.zero_grad()
            loss = model(batch["inputs"], batch["targets"])
            accelerator.backward(loss)
            optimizer.step()
            if step % options.save_every == 0 or step == options.steps:
                save(accelerator, options.out, step)
                mean = accelerator.reduce(loss.detach(), "mean")
                accelerator.print(f"step {step}: loss {mean.item():.4f}", flush=True)
        mean = accelerator.reduce(loss.detach(), "mean").item()
    figures = {"first_step": first, "steps": max(first, options.steps), "processes": accelerator.num_processes}
    accelerator.print(json.dumps({**figures, "loss": mean}))
    accelerator.end_training()


if __name__ == "__main__":
    main()
