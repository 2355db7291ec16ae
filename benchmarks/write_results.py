"""Measure on this machine the work behind figures that were reported elsewhere, and write docs/results.md.

python benchmarks/write_results.py docs/results.md              # everything, under 20 minutes
python benchmarks/write_results.py docs/results.md --page-only  # only the page, from runs/results/results.json

What it teaches: how headrace does on equal shapes, batches and sequence lengths. Machines differ, so a ratio here is
of two machines as well as of two programs; the page says so. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corpora import SHARED, write_text
from results_page import page

FOLDER = Path("runs/results")
MINUTES = 0.25
"""Minutes of each training run that is measured for its speed."""
SIZES = {"599 sequences": 599, "5,000 sequences": 5_000, "20,000 sequences": 20_000}
"""Sizes of the corpora of the prefetching table: below, within and above what was reported."""
PRESETS = "demo shakespeare-char prototype quality production wiki development gpt2-small".split()
GPT2 = "model.arch=gpt2 training.optimizer=adamw"
# Runs of the reported shapes: as GPT-2 with AdamW, the network and optimizer nearest to what was trained there.
RUNS = {
    "wiki-gpt2": f"--preset wiki {GPT2}",
    "wiki-gpt2-float32": f"--preset wiki {GPT2} training.precision=float32",
    "wiki-gpt2-batch-32": f"--preset wiki {GPT2} training.batch_size=32",
    "wiki-gpt2-850MB": f"--preset wiki {GPT2} training.memory_budget=850MB",
    "wiki-gpt2-vocabulary-50000": f"--preset wiki {GPT2} model.vocab_size=50000 training.max_length=128",
    "development-gpt2": f"--preset development {GPT2}",
    "prototype-gpt2": f"--preset prototype {GPT2}",
    "quality-gpt2": f"--preset quality {GPT2}",
    "production-gpt2": f"--preset production {GPT2}",
}
SMALL = f"{GPT2} model.d_model=128 model.num_heads=4 model.num_layers=2 training.batch_size=8 training.max_length=128"
CHARACTERS = (
    f"{GPT2} model.d_model=128 model.num_heads=8 model.num_layers=4 data.tokenizer=char training.batch_size=32"
    " training.max_length=64 training.max_steps=1000 training.learning_rate=0.0003 training.prompt=ROMEO:"
)


def headrace(arguments: str) -> dict[str, Any]:
    """Run one headrace command with --json and return its result, the command and its seconds."""
    command = f"headrace {arguments}"
    print(f"{time.strftime('%H:%M:%S')} {command}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    words = [sys.executable, "-m", "headrace", *arguments.split(), "--json"]
    usage = os.times()
    done = subprocess.run(words, capture_output=True, text=True)
    after = os.times()
    result: dict[str, Any] = {"command": command, "seconds": time.perf_counter() - began}
    result["user_s"] = after.children_user - usage.children_user
    result["system_s"] = after.children_system - usage.children_system
    if done.returncode:
        return {**result, "error": done.stderr.strip().splitlines()[-1:] or ["no message"]}
    return {**result, "result": json.loads(done.stdout.splitlines()[-1])}


def measure(text: Path, characters: Path, folder: Path) -> dict[str, Any]:
    """Do all the work of the page."""
    timed = f"training.max_minutes={MINUTES}"
    results: dict[str, Any] = {"machine": headrace("machine")}
    results["runs"] = {
        name: headrace(f"train {text} {how} {timed} --out {folder}/{name}") for name, how in RUNS.items()
    }
    results["presets"] = {}
    for name in PRESETS:
        corpus = characters if name == "shakespeare-char" else text
        limit = "" if name == "shakespeare-char" else timed
        results["presets"][name] = headrace(f"train {corpus} --preset {name} {limit} --out {folder}/preset-{name}")
    results["characters"] = headrace(f"train {characters} {CHARACTERS} --out {folder}/characters")
    results["prefetching"] = {}
    for name, sequences in SIZES.items():
        corpus = write_text(folder / f"{sequences}.txt", sequences * 128 * 4)
        for depth in ("0", "4", "auto"):
            how = f"{SMALL} data.prefetch_batches={depth} training.num_epochs=2 training.max_minutes=0.2"
            results["prefetching"][f"{name}, {depth}"] = headrace(
                f"train {corpus} {how} --out {folder}/prefetch-{sequences}-{depth}"
            )
    results["scale"] = headrace(f"scale {characters} {CHARACTERS} --repeats 2")
    sizes = "--batch-size 256,512,1024 --num-batches 100 --megabytes 50"
    results["loaders"] = headrace(f"bench loaders {sizes} --only headrace --only grain --only tf.data --only torch")
    results["tokenize"] = headrace("bench tokenize --megabytes 10")
    return results


def main() -> None:
    target = Path(sys.argv[1])
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "results.json"
    began = time.perf_counter()
    if "--page-only" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HEADRACE_CACHE"] = f"{folder}/user-cache"  # nothing is remembered from before
            text = write_text(Path(folder) / "text.txt", 20 << 20)
            shakespeare = SHARED / "shakespeare.txt"
            characters = shakespeare if shakespeare.exists() else write_text(Path(folder) / "characters.txt", 1 << 20)
            kept.write_text(json.dumps(measure(text, characters, Path(folder)), indent=1))
    results = json.loads(kept.read_text()) if kept.exists() else {}
    target.write_text(page(results), encoding="utf-8")
    print(json.dumps({"page": str(target), "seconds": round(time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
