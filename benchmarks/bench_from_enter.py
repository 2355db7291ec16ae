"""From Enter to the result: whole commands, timed from outside.

A plain PyTorch script (`plain_gpt.py`: GPT-2 shape, 2,000 steps of AdamW) and `headrace train --preset
shakespeare-char` with all its defaults get the same training text and the same held-out text (the last tenth), in fresh
folders: nothing is tokenised or remembered from an earlier run. What each saved is then judged here, on the whole
held-out text in the same windows; judging is not timed. headrace must end at a loss that is not above the script's, in
at most a sixth of its time. The sides take turns; the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from plain_gpt import CONTEXT, PlainGpt
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGET, GOAL = 1 / 6, 1 / 8


def full_loss(logits_of: Callable[[Tensor], Tensor], tokens: Tensor) -> float:
    """Return the mean loss over the whole text in windows of the context that both sides were trained with."""
    rows = tokens[: (len(tokens) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    total = 0.0
    with torch.no_grad():
        for part in rows.split(64):
            logits = logits_of(part[:, :-1])
            total += float(cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    return total / (rows.shape[0] * CONTEXT)


def timed(command: list[str], folder: Path) -> float:
    """Return the wall time of a command whose caches all live in an empty folder."""
    environment = {**os.environ, "HEADRACE_CACHE": str(folder / "cache")}
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds


def plain_side(train: Path, held_out: Path, folder: Path) -> tuple[float, float]:
    """Run the plain script; return its wall time and the loss of what it saved."""
    weights = folder / "plain.safetensors"
    script = Path(__file__).with_name("plain_gpt.py")
    seconds = timed([sys.executable, str(script), str(train), str(held_out), str(weights)], folder)
    with safe_open(weights, "pt") as file:
        table = {character: number for number, character in enumerate(json.loads(file.metadata()["characters"]))}
    network = PlainGpt(len(table))
    network.load_state_dict(load_file(weights))
    return seconds, full_loss(network, torch.tensor([table[c] for c in held_out.read_text()]))


def headrace_side(train: Path, held_out: Path, folder: Path, more: list[str]) -> tuple[float, float]:
    """Run `headrace train` with its defaults; return its wall time and the loss of its best checkpoint."""
    out = folder / "run"
    command = [str(Path(sys.executable).with_name("headrace")), "train", "--preset", "shakespeare-char", str(train)]
    seconds = timed(
        [*command, f"data.validation_sources=[{json.dumps(str(held_out))}]", "--out", str(out), *more], folder
    )
    checkpoint = out / "checkpoints" / "best"
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokens = AutoTokenizer.from_pretrained(checkpoint)(held_out.read_text(), return_tensors="pt").input_ids[0]
    return seconds, full_loss(lambda rows: model(rows).logits, tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default=str(Path(__file__).resolve().parents[2] / "shared/data/shakespeare.txt"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("more", nargs="*", help="KEY=VALUE for headrace, to try something; none is the promise")
    options = parser.parse_args()
    text = Path(options.text).read_text()
    pairs = []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train, held_out = folder / "train.txt", folder / "held_out.txt"
            train.write_text(text[: int(0.9 * len(text))])
            held_out.write_text(text[int(0.9 * len(text)) :])
            plain_s, plain_loss = plain_side(train, held_out, folder)
            own_s, own_loss = headrace_side(train, held_out, folder, options.more)
        pairs.append({"plain_s": plain_s, "plain_loss": plain_loss, "headrace_s": own_s, "headrace_loss": own_loss})
        print(
            f"plain script {plain_s:.1f} s, loss {plain_loss:.4f}; headrace {own_s:.1f} s, loss {own_loss:.4f}",
            flush=True,
        )
    share = statistics.median(pair["headrace_s"] / pair["plain_s"] for pair in pairs)
    gain = statistics.median(pair["plain_loss"] - pair["headrace_loss"] for pair in pairs)
    passed = share <= TARGET and gain >= 0
    result = {"benchmark": "from_enter", "share_of_time": share, "target": TARGET, "goal": GOAL, "nats_below": gain}
    print(json.dumps({**result, "passed": passed, "pairs": pairs}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
