"""`headrace train` as a cell runs it: the same command, which stops and saves when the laboratory is gone."""

from __future__ import annotations

import os
import signal

from headrace.cli.main import main
from headrace.machine.children import when_orphaned

if __name__ == "__main__":
    when_orphaned(lambda: os.kill(os.getpid(), signal.SIGTERM))
    main()
