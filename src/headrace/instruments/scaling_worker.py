"""One worker of `headrace scale`: takes a few updates as training would, and answers with what they took.

`python -m headrace.instruments.scaling_worker` runs in each process of a group (distributed/launch.py).
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from headrace.distributed.cores import core_group, stay_on
from headrace.distributed.group import Group, join
from headrace.distributed.launch import end_orphan
from headrace.distributed.replicas import make_replica
from headrace.instruments.rehearsal import comparing_first, random_batch
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.children import answer_questions
from headrace.machine.contention import ProcessorTime
from headrace.machine.facts import cpu_seconds, peak_memory_bytes
from headrace.models.config import ModelConfig
from headrace.models.network import build
from headrace.perf.scaling import ring_bytes
from headrace.training.config import TrainingConfig
from headrace.training.execution import Execution
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.optimizers.related import usual_parts
from headrace.training.step import TrainStep

NUM_ALL_REDUCES = 3


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Take this process's cores and its place in the group, and measure with the others."""
    rank, num_processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    stay_on(core_group(job["cores"], rank, num_processes))
    torch.set_num_threads(job["execution"]["threads"])
    keep_freed_memory()
    group = join(job["timeout_seconds"])
    result = measure(job, group)
    group.wait_for_all("waiting for the others to be measured")
    group.close()
    return result


def measure(job: dict[str, Any], group: Group) -> dict[str, Any]:
    """Time updates of this rank's rows; the first pays for fresh memory and is not counted."""
    model, training = ModelConfig(**job["model"]), TrainingConfig(**job["training"])
    execution = Execution(**job["execution"])
    network = build(model, training.seed)
    gradient_bytes = sum(parameter.nbytes for parameter in network.parameters())
    last_gradient_bytes = network.embedding.weight.nbytes
    replica = make_replica(network, group, job["sharding"])
    optimizer = Optimizer(network, training, usual_parts(training, model.vocab_size))
    step = TrainStep(replica, optimizer, execution, training.gradient_clip)
    num_logits = job["num_logits"]
    presentation = comparing_first(num_logits, model.vocab_size)
    batch = random_batch(model, training.batch_size, training.sequence_length, group.rank, num_logits)
    step(batch, 0.01, presentation)
    steps_s: list[float] = []
    stages: list[dict[str, float]] = []
    began_s, cpu_began_s, processor_began = time.perf_counter(), cpu_seconds(), ProcessorTime.now()
    for _ in range(job["num_steps"]):
        step_began_s = time.perf_counter()
        stages.append(step(batch, 0.01, presentation).seconds.by_stage())
        steps_s.append(time.perf_counter() - step_began_s)
    wall_s = time.perf_counter() - began_s
    return {
        "steps_s": steps_s,
        "stages_s": {stage: sum(seconds[stage] for seconds in stages) / len(stages) for stage in stages[0]},
        "aggregation_s": [seconds["aggregation"] for seconds in stages if "aggregation" in seconds],
        "cpu_cores": (cpu_seconds() - cpu_began_s) / wall_s,
        "taken_percent": ProcessorTime.now().taken_percent_since(processor_began),
        "peak_memory_bytes": peak_memory_bytes(),
        "gradient_bytes": gradient_bytes,
        "last_gradient_bytes": last_gradient_bytes,
        "all_reduce_bytes_per_second": _all_reduce_rate(gradient_bytes, group),
    }


def _all_reduce_rate(num_bytes: int, group: Group) -> float | None:
    """Measure the bytes per second that this rank sends while gradients are averaged and nothing else is done."""
    if group.world_size == 1:
        return None
    import torch.distributed

    gradients = torch.zeros(num_bytes // 4)
    torch.distributed.all_reduce(gradients)
    began_s = time.perf_counter()
    for _ in range(NUM_ALL_REDUCES):
        torch.distributed.all_reduce(gradients)
    seconds = (time.perf_counter() - began_s) / NUM_ALL_REDUCES
    return ring_bytes(group.world_size, num_bytes) / seconds


if __name__ == "__main__":
    answer_questions(answer, count=1, on_orphaned=end_orphan)
