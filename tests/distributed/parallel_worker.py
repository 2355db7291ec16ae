"""One rank of a test: trains case after case in one group, and writes down which rows it saw.

Argument: a JSON file with a list of {"settings": {...}, "stop_at": step or null}. A stop is asked for by the last rank.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.distributed import group as groups
from headrace.distributed.launch import end_with_starter
from headrace.distributed.pieces import local
from headrace.run import environment
from headrace.run import pretraining as pretrain
from headrace.run.config import Layers
from headrace.training.showing.presentation import Presentation, TokenBatch
from headrace.training.step import TrainStep


def _quick(*_: Any) -> float:
    """Instead of measuring the machine for every case."""
    return 1e9


def train(settings: dict[str, Any], stop_at: int | None = None, is_asking: bool = True) -> list[list[str]]:
    """Hashes of the rows of every update, of this rank."""
    rows: list[list[str]] = []
    update = TrainStep.__call__

    def recorded(self: TrainStep, batch: TokenBatch, factor: float, shown: Presentation) -> Any:
        whole = zip(batch.inputs, batch.targets, strict=True)
        rows.append([hashlib.sha256(row.tobytes() + target.tobytes()).hexdigest()[:16] for row, target in whole])
        return update(self, batch, factor, shown)

    layers = Layers()
    layers.add(settings, "the test")
    done = 0

    def should_stop() -> bool:
        return stop_at is not None and is_asking and done + 1 >= stop_at

    with (
        patch.object(TrainStep, "__call__", recorded),
        patch.object(environment, "measure_peak_flops", _quick),
        patch.object(environment, "measure_memory_bandwidth", _quick),
        pretrain.Pretraining(layers.build(), should_stop) as pretraining,
    ):
        for info in pretraining.steps():
            done = info.step
        _write_state_bytes(pretraining)
    return rows


def _write_state_bytes(pretraining: pretrain.Pretraining) -> None:
    """What this process keeps of the optimizer's state."""
    states = [state for rule in pretraining.optimizer.rules for state in rule.state.values()]
    held = [local(value) for state in states for value in state.values()]
    path = pretraining.folder.path / f"state-bytes-{pretraining.group.rank}.json"
    path.write_text(json.dumps(sum(tensor.nbytes for tensor in held)))


def main() -> None:
    end_with_starter()
    group = groups.join(60)
    groups.Joined.close = groups.Group.close  # type: ignore[method-assign]
    pretrain.join = lambda _timeout: group
    for case in json.loads(Path(sys.argv[1]).read_text()):
        rows = train(case["settings"], case["stop_at"], is_asking=group.rank == group.world_size - 1)
        out = Path(case["settings"]["run.out"])
        (out / f"rows-{len(rows)}-{group.rank}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
