"""executions.json: how the steps of a run were computed where that changed, so that a resume repeats them."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.training.choosing import Piece
from headrace.training.execution import Execution

EXECUTIONS = "executions.json"


class ExecutionLog(BaseModel):
    """The ways of the steps that were computed while choosing, and later changes of the number of threads.

    It is written before a step is computed that differs from the one before it.
    """

    model_config = ConfigDict(extra="ignore")

    steps: dict[int, list[Piece]] = Field(default_factory=dict)
    """The rows of each of these steps, in order, and the execution that computed them."""
    final: Execution | None = None
    """The execution of all steps after them; null while it was still being chosen."""
    threads: dict[int, int] = Field(default_factory=dict)
    """Threads by the first step that was computed with them, where other programs made a run change them."""

    @classmethod
    def read(cls, folder: Path) -> ExecutionLog:
        """Read the log of a run directory; one that is missing or damaged is empty."""
        try:
            return cls.model_validate_json((folder / EXECUTIONS).read_bytes())
        except (OSError, ValidationError):
            return cls()

    def after(self, step: int) -> list[list[Piece]]:
        """Return the ways of the steps that follow this one without a gap."""
        following = []
        while step + 1 in self.steps:
            step += 1
            following.append(self.steps[step])
        return following

    def threads_after(self, step: int) -> dict[int, int]:
        """Return the changes of threads that come after this step."""
        return {first: threads for first, threads in self.threads.items() if first > step}
