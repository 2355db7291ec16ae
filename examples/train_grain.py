"""Train headrace's own trainer on the batches of a Grain pipeline over headrace's token cache.

    python examples/train_grain.py                                  # the Python standard library: no download
    python examples/train_grain.py corpus/ --out runs/mine --steps 500

For pipelines that are written in Grain already: shuffling, batching and their state are Grain's own. The last line of
stdout is JSON. Needs `pip install 'headrace[grain]'`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import grain

import headrace as hr
from headrace.interop.grain import GrainBatches, GrainSource

LENGTH, BATCH = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-grain"))
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer="bpe:2048", out=options.out / "cache")
    source = GrainSource(cache, sequence_length=LENGTH)  # row k: inputs and targets of window k
    dataset = grain.MapDataset.source(source).shuffle(seed=0).repeat().batch(BATCH, drop_remainder=True)
    config = {
        "data": {"sources": options.corpus, "tokenizer": "bpe:2048", "cache_dir": str(options.out / "cache")},
        "model": {"d_model": 64, "num_layers": 2, "num_heads": 4},
        "training": {"batch_size": BATCH, "max_length": LENGTH, "max_steps": options.steps},
        "run": {"out": str(options.out / "run"), "resume": "auto"},  # the same command goes on where it was killed
    }
    run = hr.train(config, batches=GrainBatches(dataset.to_iter_dataset()))
    print(json.dumps({"steps": run.steps, "loss": run.train_loss}))


if __name__ == "__main__":
    main()
