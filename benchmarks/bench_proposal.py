"""Whether `headrace plan --minutes M` proposes a config that is hard to beat in those minutes, and expects its loss.

Teaches: how good a proposal from a few short runs is. The proposal and some alternatives, around it and away from it,
are trained for the same time, one after the other, each in a process of its own, and judged at the end (not at the best
on the way) by their bits per byte of the last twentieth of the text, which none of them sees: the validation part of a
run is another stretch of the text for every tokenizer. The interval that was promised should contain the proposal's
result. Run it on a quiet machine; for each text it takes (1 + grid) x M minutes, and the time of the proposal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

TARGET = 1.03
CONTAINED = 0.8  # of the intervals that should contain the result
HELD_OUT = 0.05
TEXT = Path(__file__).resolve().parents[2] / "shared/data/wikitext2-valid.txt"
Overrides = dict[str, object]


def alternatives(config: dict[str, Any]) -> dict[str, Overrides]:
    """Return alternatives to a proposal, the most promising first; the last one is the default configuration."""
    model, training = config["model"], config["training"]
    width, layers, vocab, batch = model["d_model"], model["num_layers"], model["vocab_size"], training["batch_size"]
    narrow, wide = (max(32, round(width * factor / 32) * 32) for factor in (0.6, 1.6))
    return {
        "larger": _shape(wide, layers + 1),
        "smaller": _shape(narrow, max(1, layers - 1)),
        "half the vocabulary": {"data.tokenizer": f"bpe:{max(257, vocab // 2)}", "model.vocab_size": 0},
        "half the batch": {"training.batch_size": max(1, batch // 2)},
        "defaults": {
            **_shape(256, 4), "data.tokenizer": "bpe:4096", "model.vocab_size": 0, "model.context": 256,
            "training.max_length": 256, "training.short_windows": 0, "training.batch_size": 16,
        },
    }  # fmt: skip


def _shape(width: int, layers: int) -> Overrides:
    return {"model.d_model": width, "model.num_heads": 0, "model.d_ff": 0, "model.num_layers": layers}


def headrace(*arguments: object) -> dict[str, Any]:
    """Run a command in a process of its own, and return its JSON."""
    command = [sys.executable, "-m", "headrace", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def hold_out(text: Path, folder: Path) -> tuple[Path, Path]:
    """Cut a text at the line where its last twentieth begins; return the files of both parts."""
    content = text.read_bytes()
    cut = content.index(b"\n", int((1 - HELD_OUT) * len(content))) + 1
    parts = folder / f"text{text.suffix}", folder / f"held_out{text.suffix}"
    for path, part in zip(parts, (content[:cut], content[cut:]), strict=True):
        path.write_bytes(part)
    return parts


def train(plan: Path, name: str, overrides: Overrides) -> dict[str, Any]:
    changes = {**overrides, "training.evaluation_tokens": 0}
    out = plan.parent / name.replace(" ", "-")
    run = headrace("train", plan, "--out", out, *(f"{key}={value}" for key, value in changes.items()))
    row = {
        "config": name,
        "parameters": run["parameters"],
        "tokens": run["tokens"],
        "minutes": run["train_seconds"] / 60,
        "train_loss": run["train_loss"],
        "bits_per_byte": run["validation_bits_per_byte"],
        "overrides": overrides,
    }
    print(
        f"{name:<20} {row['parameters'] / 1e6:>9.2f}M {row['tokens'] / 1e6:>8.2f}M {row['minutes']:>8.2f}"
        f" {row['bits_per_byte']:>14.4f}",
        flush=True,
    )
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="+", default=[TEXT])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--grid", type=int, default=5, help="how many alternatives, at most 5")
    options = parser.parse_args()
    found = [try_text(text, options.minutes, options.grid) for text in options.texts]
    num_contained = sum(one["is_contained"] for one in found)
    print(f"{num_contained} of {len(found)} intervals contain the result; {CONTAINED:.0%} are asked for")
    passed = all(one["ratio"] <= TARGET for one in found) and num_contained >= CONTAINED * len(found)
    result = {"benchmark": "proposal", "target": TARGET, "contained": num_contained, "passed": passed}
    print(json.dumps({**result, "minutes": options.minutes, "texts": found}))
    return 0 if passed else 1


def try_text(text: Path, minutes: float, num_alternatives: int) -> dict[str, Any]:
    """Train the proposal for a text and alternatives to it; return how they compare."""
    with tempfile.TemporaryDirectory() as temporary:
        plan = Path(temporary) / "plan.yaml"
        known, held_out = hold_out(text, Path(temporary))
        proposal = headrace("plan", known, f"data.validation_sources={held_out}", "--minutes", minutes, "--out", plan)
        config = yaml.safe_load(plan.read_text())
        shape = {key: config["model"][key] for key in ("d_model", "num_layers", "vocab_size")}
        low, high = proposal["bits_per_byte_interval"]
        print(f"{text}: planned in {proposal['planning_seconds']:.0f} s: {shape}, expected {low:.3f} to {high:.3f}")
        print(f"{'config':<20} {'parameters':>10} {'tokens':>9} {'minutes':>8} {'bits per byte':>14}")
        grid = {"proposal": {}, **dict(list(alternatives(config).items())[:num_alternatives])}
        rows = [train(plan, name, overrides) for name, overrides in grid.items()]
    best, own = min(rows, key=lambda row: row["bits_per_byte"]), rows[0]["bits_per_byte"]
    ratio = own / best["bits_per_byte"]
    print(f"the proposal ends at {ratio:.3f} x the best ({best['config']}); {TARGET} x is allowed")
    return {
        "text": str(text), "ratio": ratio, "best": best["config"], "is_contained": low <= own <= high, "rows": rows,
        "proposal": proposal,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
