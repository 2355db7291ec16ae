"""Run every fault, print one table, and exit with 1 if headrace failed any of them: `python -m tests.faults [WORD...]`.

With words, only the faults whose description contains one of them are run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Importing a module registers its faults; the table has them in this order.
from tests.faults import kills, signals, disks, writers, hostile, encodings, values  # noqa: F401 # isort: skip
from tests.faults.bench import CASES, Case, NotHereError, Workbench

COLOURS = {"ok": "green", "FAILED": "red", "skipped": "yellow"}


def main(words: list[str]) -> int:
    """Run the faults that the words choose, and return the exit code: 0 if headrace stood up to all of them."""
    chosen = [case for case in CASES if not words or any(word in f"{case[0]} {case[1]}" for word in words)]
    console = Console(width=150)
    table = Table("fault", "what is done, and what must come of it", "outcome", "seconds")
    counts = dict.fromkeys(COLOURS, 0)
    for kind, what, case in chosen:
        began = time.monotonic()
        outcome, reason = _outcome_of(case)
        seconds = f"{time.monotonic() - began:.1f}"
        counts[outcome] += 1
        console.print(f"{outcome}: {kind}: {what} ({seconds} s) {reason}", markup=False, highlight=False)
        table.add_row(kind, what, f"[{COLOURS[outcome]}]{outcome}[/]", seconds)
    console.print(table)
    console.print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 0 if counts["ok"] and not counts["FAILED"] else 1


def _outcome_of(case: Case) -> tuple[str, str]:
    """Run one case in a folder of its own; return its outcome, and the reason where it is not "ok"."""
    with tempfile.TemporaryDirectory(prefix="headrace-fault-") as folder:
        workbench = Workbench(Path(folder))
        try:
            case(workbench)
        except NotHereError as reason:
            return "skipped", str(reason)
        except AssertionError as problem:
            return "FAILED", str(problem) or "an assertion of the case"
        except Exception as problem:
            return "FAILED", f"the case itself failed: {problem!r}"
        finally:
            workbench.close()
    return "ok", ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
