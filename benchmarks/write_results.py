"""Measure on this machine the work behind figures that were reported elsewhere, and write docs/results.md.

python benchmarks/write_results.py docs/results.md                # everything, half an hour
python benchmarks/write_results.py docs/results.md runs presets   # these parts again, the others as they were
python benchmarks/write_results.py docs/results.md --page-only    # only the page, from runs/results/results.json

What it teaches: how headrace does on equal shapes, batches and sequence lengths. Machines differ, so a ratio here is
of two machines as well as of two programs; the page says so. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import SHARED, write_text
from results_page import page

FOLDER = Path("runs/results")
MINUTES, MINUTES_OF_LARGE = 0.25, 1.0
"""Minutes of each training run that is measured for its speed; more where a step takes seconds."""
LARGE = ("wiki", "production", "quality", "gpt2-small")
"""Presets whose steps take a second or more: the first ones are spent on choosing how to compute them."""
SIZES = {"599 sequences": 599, "5,000 sequences": 5_000, "20,000 sequences": 20_000}
"""Sizes of the corpora of the prefetching table: below, within and above what was reported."""
PRESETS = "demo shakespeare-char prototype quality production wiki development gpt2-small".split()
GPT2 = "model.arch=gpt2 training.optimizer=adamw"
# Runs of the reported shapes: as GPT-2 with AdamW, the network and optimizer nearest to what was trained there.
RUNS = {
    "wiki-gpt2": f"--preset wiki {GPT2}",
    "wiki-gpt2-float32": f"--preset wiki {GPT2} training.precision=float32",
    "wiki-gpt2-batch-32": f"--preset wiki {GPT2} training.batch_size=32",
    # With Muon: with AdamW, whose state is 75 MB larger, this budget is refused.
    "wiki-gpt2-850MB": "--preset wiki model.arch=gpt2 training.memory_budget=850MB",
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


def timed(how: str) -> str:
    """Return the limit of a run that is measured for its speed."""
    is_large = any(f"--preset {name}" in how for name in LARGE)
    return f"training.max_minutes={MINUTES_OF_LARGE if is_large else MINUTES}"


def measure_runs(text: Path, characters: Path, folder: Path) -> dict[str, Any]:
    return {name: headrace(f"train {text} {how} {timed(how)} --out {folder}/{name}") for name, how in RUNS.items()}


def measure_presets(text: Path, characters: Path, folder: Path) -> dict[str, Any]:
    results = {}
    for name in PRESETS:
        corpus, how = (characters, "") if name == "shakespeare-char" else (text, timed(f"--preset {name}"))
        results[name] = headrace(f"train {corpus} --preset {name} {how} --out {folder}/preset-{name}")
    return results


def measure_prefetching(text: Path, characters: Path, folder: Path) -> dict[str, Any]:
    results = {}
    for name, sequences in SIZES.items():
        corpus = write_text(folder / f"{sequences}.txt", sequences * 128 * 4)
        for depth in ("0", "4", "auto"):
            how = f"{SMALL} data.prefetch_batches={depth} training.num_epochs=2 training.max_minutes=0.2"
            results[f"{name}, {depth}"] = headrace(f"train {corpus} {how} --out {folder}/prefetch-{sequences}-{depth}")
    return results


LOADERS = "--batch-size 256,512,1024 --num-batches 100 --megabytes 50 --only headrace --only grain --only tf.data"
PARTS: dict[str, Callable[[Path, Path, Path], dict[str, Any]]] = {
    "machine": lambda text, characters, folder: headrace("machine"),
    "runs": measure_runs,
    "presets": measure_presets,
    "characters": lambda text, characters, folder: headrace(
        f"train {characters} {CHARACTERS} --out {folder}/characters"
    ),
    "prefetching": measure_prefetching,
    "scale": lambda text, characters, folder: headrace(f"scale {characters} {CHARACTERS} --repeats 2"),
    "loaders": lambda text, characters, folder: headrace(f"bench loaders {LOADERS} --only torch"),
    "tokenize": lambda text, characters, folder: headrace("bench tokenize --megabytes 10"),
}
"""The parts of the page, and how each is measured: on a text, on one of characters, in a folder."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts to measure; none: all")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "results.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADRACE_CACHE"] = f"{folder}/user-cache"  # nothing is remembered from before
        text = write_text(Path(folder) / "text.txt", 20 << 20)
        shakespeare = SHARED / "shakespeare.txt"
        characters = shakespeare if shakespeare.exists() else write_text(Path(folder) / "characters.txt", 1 << 20)
        for name in [] if options.page_only else options.parts or PARTS:
            results[name] = PARTS[name](text, characters, Path(folder))
            kept.write_text(json.dumps(results, indent=1))
    options.target.write_text(page(results), encoding="utf-8")
    print(json.dumps({"page": str(options.target), "seconds": round(time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
