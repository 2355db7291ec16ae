"""Machine: what this machine is, and what it was measured to do."""

from __future__ import annotations

from typing import Any

from headrace.run.machine import know_machine


def machine(fresh: bool = False) -> dict[str, Any]:
    """Return hardware, remembered or new measurements, and what is free now."""
    return know_machine(fresh).as_json()
