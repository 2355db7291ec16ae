"""Run a script several times: its libraries are imported once, and each run is a process of its own.

    python tests/example_runs.py SCRIPT '[["--steps", "3"], ["--steps", "6"]]'

After the output of each run comes a line END_OF_RUN. It ends with the exit code of the first run that fails.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys

END_OF_RUN = "--- end of a run ---"


def run_all(script: str, runs: list[list[str]]) -> int:
    sys.path[0] = os.path.dirname(script)  # as Python has it for a script
    if hasattr(os, "fork"):
        runpy.run_path(script)  # under a name other than __main__: only its imports and definitions
    for arguments in runs:
        code = _run_forked(script, arguments) if hasattr(os, "fork") else _run_started(script, arguments)
        print(END_OF_RUN, flush=True)
        if code:
            return code
    return 0


def _run_forked(script: str, arguments: list[str]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    raise SystemExit(0)


def _run_started(script: str, arguments: list[str]) -> int:
    return subprocess.run([sys.executable, script, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], json.loads(sys.argv[2])))
