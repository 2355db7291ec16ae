"""Train in a plain PyTorch loop on headrace's batches, with a checkpoint and exact resume.

    python examples/train_torch.py                                  # the Python standard library: no download
    python examples/train_torch.py corpus/ --out runs/mine --steps 500

The same command with more steps goes on as if it had never stopped. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from tiny_model import LENGTH, TinyModel

import headrace as hr
from headrace.interop.torch import TorchBatches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-torch"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=25)
    options = parser.parse_args()

    cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer="bpe:2048", out=options.out / "cache")
    torch.manual_seed(0)
    model = TinyModel(cache.tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with hr.Loader(cache, batch_size=16, sequence_length=LENGTH) as loader:
        batches = TorchBatches(loader)  # for a GPU: device="cuda" copies two batches ahead
        checkpoint, first, loss = options.out / "checkpoint.pt", 0, float("nan")
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            batches.load_state_dict(saved["batches"])
            first, loss = saved["step"], saved["loss"]
        for step, batch in zip(range(first + 1, options.steps + 1), batches, strict=False):
            optimizer.zero_grad()
            result = model(batch["inputs"], batch["targets"])
            result.backward()
            optimizer.step()
            if step % options.save_every == 0 or step == options.steps:
                loss = result.item()
                print(f"step {step}: loss {loss:.4f}", flush=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"batches": batches.state_dict(), "step": step, "loss": loss}
                torch.save(state, checkpoint.with_suffix(".saving"))
                os.replace(checkpoint.with_suffix(".saving"), checkpoint)  # whole or not there
    print(json.dumps({"first_step": first, "steps": max(first, options.steps), "loss": loss}))


if __name__ == "__main__":
    main()
