"""A plan: the predicted cost of a run, as `plan` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.perf.flops import Work
from headrace.perf.memory import MemoryParts
from headrace.perf.predict import Bound
from headrace.training.execution import Execution


@dataclass
class Plan:
    """The predicted cost of a run; also what `plan --json` prints."""

    work: Work
    """FLOPs and parameters of an update."""
    execution: Execution
    step_seconds: dict[str, float] | None
    """Seconds of an update by stage; None if the model is too large to rehearse on this machine."""
    tokens_per_second: float | None
    step_s: float | None
    """Seconds of an update, or of making its batch where that takes longer."""
    data_s: float | None
    """Seconds to make a batch, by all workers, while the one before is trained on; None if unknown."""
    evaluation_s: float | None
    """Seconds of one evaluation on training.evaluation_tokens, or on the largest sample that would be chosen."""
    epoch_s: float | None
    total_s: float | None
    """Seconds of the whole run with its evaluations, without samples and checkpoints."""
    total_steps: int | None
    memory: MemoryParts
    free_memory_bytes: int
    corpus_bytes: int
    corpus_tokens: int
    cache_bytes: int
    checkpoint_bytes: int
    free_disk_bytes: int
    """Free space where the run would be written."""
    bound: Bound
    mixture: str = ""
    """Weights of the sources, with their schedules in steps; empty if all text is one corpus."""
    assumptions: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    """Changes that would make the run fit, if it does not."""

    @property
    def headroom_bytes(self) -> int:
        """Return the memory that would be left; negative if memory is missing."""
        return self.free_memory_bytes - self.memory.total

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0

    def as_json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(self).items() if key not in ("work", "memory")}
        counts = self.work.counts
        return {
            "parameters": counts.num_parameters,
            "parameters_by_part": counts.parameters,
            "flops_by_part": self.work.flops,
            "memory_bytes": self.memory.total,
            "memory_by_part": self.memory.as_dict(),
            "headroom_bytes": self.headroom_bytes,
            "fits": self.fits,
            **values,
        }
