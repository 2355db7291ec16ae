"""`python benchmarks/lab run TABLE`, `list TABLE`, `show TABLE`, `fit FOLDER` and `corpora`: the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from headrace.errors import HeadraceError, UsageError
from headrace.machine.signals import on_stop_signals
from lab import claims
from lab.cell import TrainingProcess
from lab.corpora import RECIPES, TEXTS, Library, default_folder
from lab.law import show_fit
from lab.results import as_json, write_results
from lab.sweep import Sweep
from lab.table import read_table


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the arguments of the command."""
    parser = argparse.ArgumentParser(prog="python benchmarks/lab", description="Compare variants of a recipe.")
    commands = parser.add_subparsers(dest="command", required=True)
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument(
        "--corpora", type=Path, default=None, help="folder of the corpora; default: in the user's cache"
    )
    places.add_argument(
        "--texts", type=Path, default=TEXTS, help=f"folder of shakespeare.txt and others; default: {TEXTS}"
    )
    places.add_argument("--final", action="store_true", help="use the corpus that judges at the end")
    tables = argparse.ArgumentParser(add_help=False)
    tables.add_argument("table", type=Path, help="a table of experiments (.toml, .yaml, .json)")
    tables.add_argument(
        "--out", type=Path, default=None, help="folder of the runs; default: runs/lab/ and the table's name"
    )
    run = commands.add_parser("run", parents=[tables, places], help="run every cell of a table that is not finished")
    run.add_argument("--no-wait", action="store_true", help="end when what is left is being run by other processes")
    commands.add_parser("list", parents=[tables, places], help="list the cells of a table and what became of them")
    commands.add_parser("show", parents=[tables, places], help="write and print the results so far")
    corpora = commands.add_parser("corpora", parents=[places], help="make corpora; without names, list them")
    corpora.add_argument("names", nargs="*", help="corpora to make now")
    laws = commands.add_parser("fit", help="fit the law of the loss and the pace to finished cells")
    laws.add_argument("folders", type=Path, nargs="+", help="folders of runs of one or more tables")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.command == "fit":
            show_fit(options.folders)
            return 0
        library = Library(options.corpora or default_folder(), options.texts, options.final)
        if options.command == "corpora":
            return make_corpora(library, options.names)
        return work(options, library)
    except HeadraceError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    except BrokenPipeError:  # whoever reads has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def make_corpora(library: Library, names: list[str]) -> int:
    """Make these corpora, or list all of them."""
    library.check(names)
    for name in names:
        corpus = library.open(name, _say)
        facts = json.loads((corpus.train.parent / "corpus.json").read_bytes())
        print(
            f"{name}: {facts['bytes']['train']:,} bytes, held out {facts['bytes']['held_out']:,}: {corpus.train.parent}"
        )
    if not names:
        for recipe in RECIPES.values():
            state = "made" if (library.folder / recipe.name / "corpus.json").exists() else "not made yet"
            judge = "; judges at the end, with --final only" if recipe.is_judge else ""
            print(f"{recipe.name:14} {recipe.about}{judge} ({state})")
    return 0


def work(options: argparse.Namespace, library: Library) -> int:
    """Run, list or show a table."""
    table = read_table(options.table)
    out = (options.out or Path("runs") / "lab" / options.table.stem).resolve()
    process = TrainingProcess()
    sweep = Sweep(table, out, library, process, _say, _write, stop=process.stop)
    if options.command == "list":
        return list_cells(sweep)
    if options.command == "run":
        on_stop_signals(process.stop)
        sweep.run(waits=not options.no_wait)
    elif not sweep.results():
        raise UsageError(f"{out}: no cell of this table is finished. Run it: python benchmarks/lab run {options.table}")
    rows = write_results(out, table, sweep.results(), sweep.failures)
    print((out / "results.md").read_text())
    print(f"written: {out}/results.md, .csv, .json, .svg")
    print(json.dumps(as_json(table, rows, sweep.failures)))
    return 1 if sweep.failures else 0


def list_cells(sweep: Sweep) -> int:
    """Print every cell and what became of it."""
    sweep.library.check(sweep.table.corpora)
    for cell in sweep.table.cells:
        place = sweep.place(cell)
        result = place.result()
        holder = claims.holder(place.lab)
        state = f"{result['bits_per_byte']:.4f}" if result else f"running ({holder})" if holder else "not finished"
        print(f"{cell.name}: {state}")
    return 0


def _write(sweep: Sweep) -> None:
    write_results(sweep.out, sweep.table, sweep.results(), sweep.failures)


def _say(line: str) -> None:
    print(line, flush=True)
