"""`python benchmarks/lab`: the laboratory's command."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the folder of the package, not the package itself
    from lab.command import main

    sys.exit(main())
