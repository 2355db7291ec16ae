"""Train on a token file of another project (here nanoGPT's train.bin) without copying or converting it.

    python examples/train_token_files.py                            # makes a small train.bin first: no download
    python examples/train_token_files.py data/openwebtext/train.bin --tokenizer gpt2 --steps 500

Order, state and packing are those of any headrace cache. Megatron's, datatrove's and OLMo's files are opened in the
same way. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path

import numpy as np
import torch
from tiny_model import LENGTH, TinyModel
from tokenizers import Tokenizer

import headrace as hr
from headrace.interop.token_files import open_token_files
from headrace.interop.torch import TorchBatches


def make_token_file(out: Path) -> tuple[Path, str]:
    """Write a train.bin of some Python files, as nanoGPT's prepare.py does, and return it and its tokenizer."""
    texts = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-c]*.py"))
    cache = hr.prepare(texts, tokenizer="bpe:2048", out=out / "cache")  # only to have a tokenizer
    tokenizer = Tokenizer.from_file(str(cache.path / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    encoded = tokenizer.encode_batch([text.read_text(encoding="utf-8") for text in texts])
    np.concatenate([[*document.ids, end] for document in encoded]).astype(np.uint16).tofile(out / "train.bin")
    return out / "train.bin", str(cache.path / "tokenizer.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tokenizer", help="the one that made the file: a tokenizer.json or a hub name")
    parser.add_argument("--out", type=Path, default=Path("runs/example-token-files"))
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    file, tokenizer = (options.file, options.tokenizer) if options.file else make_token_file(options.out)
    cache = open_token_files(file, tokenizer=tokenizer)  # mapped where it lies
    torch.manual_seed(0)
    model = TinyModel(cache.tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.tensor(float("nan"))
    with hr.Loader(cache, batch_size=16, sequence_length=LENGTH) as loader:
        for batch in TorchBatches(loader, num_steps=options.steps):
            optimizer.zero_grad()
            loss = model(batch["inputs"], batch["targets"])
            loss.backward()
            optimizer.step()
        (ledger,) = loader.ledger()
    print(f"{file}: {ledger}")
    print(json.dumps({"steps": loader.step, "loss": loss.item()}))


if __name__ == "__main__":
    main()
