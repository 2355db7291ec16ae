"""Write docs/reference/: every command with its options and output, every configuration key with type and meaning.

python tools/write_reference.py            write the pages
python tools/write_reference.py --check    fail if they are not what would be written

Options and keys come from the code. Outputs come from docs/reference/outputs/, where tools/record_outputs.py puts what
the commands really printed.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from headrace.cli.keys import describe_key
from headrace.cli.main import COMMANDS, load_command
from headrace.data.corpus.sources import Source
from headrace.run.config import ALIASES, SECTIONS
from headrace.run.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
OUTPUTS = REFERENCE / "outputs"
WRITTEN = "<!-- Written by tools/write_reference.py: change the code, not this page. -->"
KEYS_BEGIN = f"""# Configuration keys

{WRITTEN}

Set a key in a YAML, TOML or JSON file, or as `section.key=value` on the command line; `headrace config KEY` explains it
in the terminal, and `headrace config` shows every value and where it came from. Precedence: default < preset < file <
`key=value`. An unknown key is an error that names the nearest right one.

The environment variable `HEADRACE_QUICK=1` makes every run 3 steps of at most 4 x 64 tokens, whatever these keys say:
use it to try out commands.
"""
COMMANDS_BEGIN = f"""# Commands

{WRITTEN}

Every command has `--help` and `--json` (one JSON object as the last line of stdout). Exit codes: 0 done, 1 failed, 2
wrong usage or configuration, 3 stopped by a signal after saving. Outputs below are from real runs on two
cores that other programs used too: they show what is printed, not how fast it is.
"""


def cell(text: str) -> str:
    """Return text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def keys_page() -> str:
    lines = [KEYS_BEGIN]
    for section, kind in SECTIONS.items():
        lines += [f"## {section}", "", cell((kind.__doc__ or "").strip().split("\n\n")[0]), ""]
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for name in kind.model_fields:
            key = describe_key(f"{section}.{name}")
            lines.append(f"| `{key.name}` | {cell(key.type)} | `{key.default}` | {cell(key.meaning)} |")
        lines.append("")
    lines += [
        "## Fields of a source",
        "",
        "What an entry of `data.sources` may set, when it is written as a mapping.",
        "",
    ]
    lines += ["| field | default | meaning |", "| --- | --- | --- |"]
    for name, field in Source.model_fields.items():
        default = "" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
        lines.append(f"| `{name}` | {default} | {cell(field.description or '')} |")
    lines += ["", "## Other names", "", "| accepted | means |", "| --- | --- |"]
    lines += [f"| `{alias}` | `{name}` |" for alias, name in ALIASES.items()]
    lines += ["", "## Presets", "", "| preset | what it is | sets |", "| --- | --- | --- |"]
    for name, preset in PRESETS.items():
        sets = [f"{section}.{key}={value}" for section, values in preset().items() for key, value in values.items()]
        about = (inspect.getdoc(preset) or "").split("\n\n")[0].removeprefix("Return ")
        lines.append(f"| `{name}` | {cell(about)} | {', '.join(f'`{one}`' for one in sets)} |")
    return "\n".join(lines) + "\n"


def options_table(command: Any) -> list[str]:
    """Return a table of the arguments and options of one command."""
    lines = ["| argument or option | default | meaning |", "| --- | --- | --- |"]
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        name = (parameter.metavar or parameter.name.upper()) if is_argument else ", ".join(parameter.opts)
        default = "" if parameter.default in (None, False, "", []) else f"`{parameter.default}`"
        meaning = cell(getattr(parameter, "help", "") or "")
        lines.append(f"| `{cell(name)}` | {default} | {meaning} |")
    return [*lines, ""]


def about(command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    return [text, ""]


def output(name: str) -> list[str]:
    """Return what a command printed when it was recorded; nothing where it never was."""
    path = OUTPUTS / f"{name}.txt"
    return ["```text", path.read_text(encoding="utf-8").rstrip(), "```", ""] if path.exists() else []


def commands_page() -> str:
    lines = [COMMANDS_BEGIN]
    for name in COMMANDS:
        command = load_command(name)
        lines += [f"## headrace {name}", "", *about(command)]
        inner = getattr(command, "commands", None)
        if inner:
            for sub, part in inner.items():
                lines += [
                    f"### headrace {name} {sub}",
                    "",
                    *about(part),
                    *options_table(part),
                    *output(f"{name}-{sub}"),
                ]
        else:
            lines += [*options_table(command), *output(name)]
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[Path, str]:
    """Return the text of every generated page."""
    return {REFERENCE / "configuration.md": keys_page(), REFERENCE / "commands.md": commands_page()}


def main() -> None:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"not up to date: {names}. Run: python tools/write_reference.py")
        return
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")


if __name__ == "__main__":
    main()
