"""The command table. Each command parses, calls a job, and shows the result; `--json` prints it as the last line."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli import display
from headrace.cli.streams import lost_output, steady_streams
from headrace.distributed.launch import end_with_starter, is_joined
from headrace.errors import EXIT_STOPPED, HeadraceError
from headrace.machine.signals import end_on_second_interrupt, on_stop_signals
from headrace.machine.waiting import wait_briefly


@dataclass(frozen=True)
class Command:
    """A command as `headrace --help` lists it, and where the rest of it is: that is imported when it is asked for."""

    help: str
    module: str
    is_heavy: bool = False
    """Whether its module imports PyTorch, which takes so long that it is said first."""
    is_long: bool = False
    """Whether it works for a while, so that it says what it does in plain lines too, and not only in a terminal."""


COMMANDS = {
    "train": Command("Train a model, or continue a run.", "train"),
    "generate": Command("Write text with a trained model.", "generate"),
    "report": Command("Write a page on a run: how good it got, what limited it.", "report", is_heavy=True),
    "watch": Command("Show that page in a browser while the run goes on.", "watch", is_heavy=True),
    "prepare": Command("Tokenise a corpus into a cache.", "corpus"),
    "inspect": Command("Show what a cache holds, check it, or explain a batch.", "corpus"),
    "config": Command("Show the resolved configuration, or what a key means.", "config"),
    "plan": Command("Predict what a run will cost, or propose one for a time.", "plan", is_heavy=True, is_long=True),
    "tune": Command("Measure what would make a run faster.", "tune", is_heavy=True, is_long=True),
    "scale": Command("Measure an update on 1 to all cores.", "scale", is_heavy=True, is_long=True),
    "machine": Command("Show this machine and its measured peaks.", "machine", is_heavy=True, is_long=True),
    "serve": Command("Serve a trained model to OpenAI's clients and to a browser.", "serve", is_heavy=True),
    "export": Command("Write a trained model as a file for llama.cpp and Ollama.", "export", is_heavy=True),
    "push": Command("Upload a trained model to the Hugging Face hub.", "push", is_heavy=True),
    "bench": Command("Compare headrace with its peers, as ratios.", "bench", is_heavy=True, is_long=True),
}


BEGIN = """Pretrain small language models on your own text, on the machine you have.

\b
headrace train            two minutes on Python's own source code, no download
headrace train corpus/    your own text: files, folders, globs
headrace generate         let the newest run write
headrace report           how good it got, where the time went, what to try
"""
"""What `headrace --help` says first; the line with \\b keeps the lines after it as they are."""
SETTINGS = {"help_option_names": ["-h", "--help"], "token_normalize_func": lambda name: name.replace("_", "-")}
"""What all commands share: -h is --help, and --batch_size is --batch-size."""


class LazyCommands(TyperGroup):
    """The commands of the table: listed from it, and imported one at a time, when it is that one's turn."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS:
            is_asked_about = ctx.resilient_parsing or set(args) & set(ctx.help_option_names)
            is_announced = COMMANDS[name].is_heavy and not is_asked_about
            with display.loading(in_plain_lines=COMMANDS[name].is_long) if is_announced else nullcontext():
                self.commands[name] = load_command(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an option that does not exist is answered with the key that it stands for."""
        try:
            return super().invoke(ctx)
        except Exception as problem:
            option = getattr(problem, "option_name", "")
            if option:
                from headrace.cli.keys import key_of_option

                answer = key_of_option(option)
                if answer or not getattr(problem, "possibilities", None):
                    message = getattr(problem, "message", "").removesuffix(".")
                    problem.message = f"{message}.{answer}"  # type: ignore[attr-defined]
                    problem.possibilities = None  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    name="headrace",
    cls=LazyCommands,
    help=BEGIN,
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 stopped by a signal after saving.",
    no_args_is_help=True,
    context_settings=SETTINGS,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _placeholder() -> None:
    """Stand in the list of commands for one that has not been imported."""


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.help)(_placeholder)


def load_command(name: str) -> Any:
    """Import a command of the table, with all its options."""
    module = import_module(f"headrace.cli.commands.{COMMANDS[name].module}")
    whole = getattr(module, "app", None)
    if whole is None:
        whole = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        whole.command(name)(getattr(module, name))
    command = typer.main.get_command(whole)
    command.name = name
    _share_settings(command)
    return command


def _share_settings(command: Any) -> None:
    """Give a command, and those in it, the settings of all commands."""
    command.context_settings = {**command.context_settings, **SETTINGS}
    for inner in getattr(command, "commands", {}).values():
        _share_settings(inner)


class Stopped(BaseException):
    """A request to end this process; finished work stays, and the next start continues from it."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def _stop() -> NoReturn:
    end_on_second_interrupt()
    raise Stopped


def main() -> NoReturn:
    """Run the command line. A user's error becomes one line and an exit code; a traceback means a bug of headrace."""
    wait_briefly()  # before a command imports PyTorch
    steady_streams()
    on_stop_signals(_stop)
    end_with_starter()
    code = _run()
    lost = lost_output()
    if lost is not None:
        display.show_error(f"standard output: cannot be written ({lost.strerror}). Files are not affected.")
        code = code or 1
    if code == EXIT_STOPPED and threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(code)  # do not wait for what these threads are doing
    sys.exit(code)


def _run() -> int:
    """Run the command that the arguments name; return the exit code."""
    try:
        app(prog_name="headrace")
    except SystemExit as leaving:  # how typer ends, also when all went well
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except HeadraceError as problem:
        display.show_error(f"rank {os.environ['RANK']}: {problem}" if is_joined() else str(problem))
        return problem.exit_code
    except Stopped:
        if os.environ.get("RANK", "0") == "0":
            display.show_error("stopped. Finished work is kept: run the same command again to continue.")
        return EXIT_STOPPED
    return 0
