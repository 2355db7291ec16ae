"""Run every command once on a small text and keep what it printed in docs/reference/outputs/.

python tools/record_outputs.py TEXT [NAME...]      # all commands take about five minutes; names: only these

tools/write_reference.py then puts them on the page of commands.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

OUTPUTS = Path(__file__).resolve().parents[1] / "docs" / "reference" / "outputs"
COLUMNS = "100"
SMALL = "training.max_steps=150"
EXAMPLES = {
    "prepare": "prepare shakespeare.txt --tokenizer bpe:1000 --out cache",
    "inspect": "inspect cache",
    "train": f"train --preset shakespeare-char shakespeare.txt {SMALL} --out runs/mine",
    "generate": "generate runs/mine --prompt ROMEO: --max-tokens 120",
    "export": "export runs/mine --gguf --type f16",
    "push": "push runs/mine me/shakespeare --license mit",  # to what HF_ENDPOINT names, with HF_TOKEN
    "config": "config data.prefetch_batches training.max_minutes",
    "machine": "machine",
    "plan": "plan --preset shakespeare-char shakespeare.txt",
    "tune": "tune --preset shakespeare-char shakespeare.txt --minutes 1",
    "scale": "scale --preset shakespeare-char shakespeare.txt",
    "report": "report runs/mine",
    "watch": "watch runs/mine",
    "serve": "serve runs/mine",
    "bench-loaders": "bench loaders shakespeare.txt --megabytes 20 --only headrace --only torch",
    "bench-train": "bench train shakespeare.txt --preset prototype --only headrace --only pytorch",
    "bench-tokenize": "bench tokenize shakespeare.txt --only headrace --only tokenizers",
}

SERVERS = {"serve", "watch"}
"""Commands that go on until Ctrl-C, which they get after SERVER_SECONDS."""
SERVER_SECONDS = 12
NEEDS = {"inspect": "prepare", **dict.fromkeys(("generate", "export", "push", "report", "watch", "serve"), "train")}
"""Commands that need what another has written: it is run first, and not recorded unless it was named too."""


def record(name: str, folder: Path) -> None:
    """Keep the command and the output of one example, run in the folder."""
    lines = run(name, folder)
    shown = lines if len(lines) <= 45 else [*lines[:20], "…", *lines[-24:]]
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    (OUTPUTS / f"{name}.txt").write_text("\n".join([f"$ headrace {EXAMPLES[name]}", *shown]) + "\n", encoding="utf-8")
    print(name, flush=True)


def run(name: str, folder: Path) -> list[str]:
    """Run one example in the folder; return the lines that it printed."""
    command = [sys.executable, "-m", "headrace", *EXAMPLES[name].split()]
    environment = {**os.environ, "COLUMNS": COLUMNS, "TERM": "dumb"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        try:
            out, err = process.communicate(timeout=SERVER_SECONDS if name in SERVERS else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    if process.returncode and name not in SERVERS:
        sys.exit(f"headrace {EXAMPLES[name]}: {err[-2000:]}")
    return [line.rstrip() for line in (err + out).splitlines()]


def main() -> None:
    wanted = sys.argv[2:] or list(EXAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(sys.argv[1], Path(folder) / "shakespeare.txt")
        os.environ["HEADRACE_CACHE"] = f"{folder}/user-cache"
        for need in sorted({NEEDS[name] for name in wanted if name in NEEDS} - set(wanted)):
            run(need, Path(folder))
        for name in wanted:
            record(name, Path(folder))


if __name__ == "__main__":
    main()
