"""Make the pictures of docs/images from a real run of two minutes: the terminal as SVG, and the report as PNG.

    make pictures TEXT=shakespeare.txt

The run is started as a user would start it, in a terminal that pyte emulates: so the pictures show what people see, and
this script knows nothing of how the screen is drawn.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text
from selenium import webdriver

COLUMNS, ROWS = 100, 38
FRAME_S, PAUSE_S = 0.5, 0.02
SHOWN_AT = 0.7
"""The share of the run after which the picture of the live display is taken."""
RUN = "runs/shakespeare"
LIMITS = ("training.max_steps=0", "training.max_minutes=2")
PAGE_WIDTH = 1120
SHOWN_UNTIL = "return Math.ceil(document.querySelector('#loss').getBoundingClientRect().bottom + 18)"
LARGEST_BYTES = 250_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a small text, such as all of Shakespeare's plays")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / given.text.name
        shutil.copyfile(given.text, text)
        arguments = ["train", "--preset", "shakespeare-char", text.name, *LIMITS, "--out", RUN]
        frames = run_in_terminal(arguments, Path(folder))
        for name, frame in (("run.svg", frames[int(SHOWN_AT * len(frames))]), ("result.svg", frames[-1])):
            (out / name).write_text(as_svg(frame, "headrace " + " ".join(arguments)), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "headrace", "report", RUN], cwd=folder, check=True)
        photograph((Path(folder) / RUN / "report.html").as_uri(), out)
    for picture in sorted(out.iterdir()):
        size = picture.stat().st_size
        print(f"{picture}: {size:,} bytes")
        assert size <= LARGEST_BYTES, f"{picture} is too large for a repository"


def run_in_terminal(arguments: list[str], folder: Path) -> list[pyte.Screen]:
    """Run headrace in an emulated terminal; return its screen about twice a second, and at the end."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    command = [sys.executable, "-m", "headrace", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment | size, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    frames, taken_s = [], time.monotonic()
    while True:
        if select.select([ours], [], [], PAUSE_S)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # how Linux says that the other side was closed
                break
        elif time.monotonic() - taken_s >= FRAME_S:  # between two drawings, not in the middle of one
            frames.append(deepcopy(screen))
            taken_s = time.monotonic()
    os.close(ours)
    if process.wait():
        raise SystemExit("the run failed:\n" + "\n".join(screen.display))
    return [*frames, screen]


def as_svg(screen: pyte.Screen, command: str) -> str:
    """Draw a screen without the empty lines at its end, under the command that was typed."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115 - as long as the script
    lines = [_line(screen.buffer[row]) for row in range(ROWS)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    console.print(Text.assemble(("$ ", "bold green"), command), soft_wrap=False)
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop")
    # The fonts of the template would come from a server: the reader's own serves as well.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="headrace"), flags=re.DOTALL)


def _line(cells: Any) -> Text:
    line = Text()
    for column in range(COLUMNS):
        cell = cells[column]
        line.append(cell.data, Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold))
    line.rstrip()
    return line


def _colour(name: str) -> str | None:
    """Return rich's name of a colour that pyte found."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return re.sub("^bright", "bright_", name).replace("brown", "yellow")


def photograph(url: str, out: Path) -> None:
    """Take a picture of the beginning of a report, down to its chart of the loss, in light and in dark."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        screen = {"width": PAGE_WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(url)
        screen["height"] = browser.execute_script(SHOWN_UNTIL)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            browser.save_screenshot(str(out / f"report-{scheme}.png"))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
