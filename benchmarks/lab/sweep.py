"""Working through a table: cells that nobody works on are claimed and run, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from lab import claims
from lab.cell import Place, StoppedError, Train, check_request, request_of, run_cell
from lab.corpora import Library
from lab.table import Cell, Table

POLL_S = 2.0


@dataclass
class Sweep:
    """A table, the folder of its runs, and what is known of its cells."""

    table: Table
    out: Path
    library: Library
    train: Train
    say: Callable[[str], None] = lambda line: None
    on_result: Callable[[Sweep], None] = lambda sweep: None
    """Called when the results have changed."""
    failures: dict[str, str] = field(default_factory=dict)
    """What went wrong in this process, by the name of the cell; the next start tries again."""
    stop: Callable[[], None] = lambda: None
    """Called when another process has taken over the cell that this one trains."""

    def place(self, cell: Cell) -> Place:
        return Place(self.out / cell.name)

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all finished cells, in the order of the table."""
        found = (self.place(cell).result() for cell in self.table.cells)
        return [result for result in found if result is not None]

    def unfinished(self) -> list[Cell]:
        """Return the cells that have no result, and have not failed here."""
        return [c for c in self.table.cells if self.place(c).result() is None and c.name not in self.failures]

    def check(self) -> None:
        """Refuse a table whose corpora are not to be used, or whose finished cells were made for another table."""
        self.library.check(self.table.corpora)
        for cell in self.table.cells:
            if (self.place(cell).lab / "request.json").exists():
                corpus = self.library.open(cell.corpus, self.say)
                check_request(self.place(cell), request_of(self.table, cell, corpus))

    def run(self, waits: bool = True) -> None:
        """Run what is left; `waits`: until what others work on is finished too, or left by them."""
        self.check()
        is_told = False
        while left := self.unfinished():
            if any([self._try(cell) for cell in left]):  # noqa: C419 - all of them, not the first that works
                is_told = False
                continue
            if not waits or not self.unfinished():
                break
            if not is_told:
                held = ", ".join(f"{cell.name} ({claims.holder(self.place(cell).lab)})" for cell in self.unfinished())
                self.say(f"waiting for cells that others work on: {held}")
                is_told = True
            time.sleep(POLL_S)
        self.on_result(self)

    def _try(self, cell: Cell) -> bool:
        """Run a cell if nobody else does; return whether it was run."""
        place = self.place(cell)
        if place.result() is not None:
            return False
        claim = claims.take(place.lab, self.stop)
        if claim is None:
            return False
        with claim:
            if place.result() is not None:  # finished between looking and claiming
                return False
            return self._run(cell, place)

    def _run(self, cell: Cell, place: Place) -> bool:
        began = time.perf_counter()
        number = self.table.cells.index(cell) + 1
        title = f"[{number}/{len(self.table.cells)}] {cell.variant} | {cell.corpus} | {cell.budget} | seed {cell.seed}"
        try:
            corpus = self.library.open(cell.corpus, self.say)
            result = run_cell(self.table, cell, corpus, place, self.train)
        except StoppedError:
            raise
        except HeadraceError as problem:
            self.failures[cell.name] = str(problem)
            self.say(f"{title}: failed: {problem}")
            return True
        note = f" ({result['note']})" if result["note"] else ""
        self.say(
            f"{title}: {result['bits_per_byte']:.4f} bits per byte{note}, {result['steps']:,} steps,"
            f" {result['train_seconds']:.1f} s of training, {time.perf_counter() - began:.1f} s in all"
        )
        self.on_result(self)
        return True
