"""Train with Ray Train on headrace's batches: two workers, and a run that goes on when one of them dies.

    python examples/train_ray.py                                    # the Python standard library: no download
    python examples/train_ray.py corpus/ --out runs/mine --steps 500 --workers 2
    python examples/train_ray.py --kill-at 40                       # kill a worker at that step, and see it go on

Each worker makes its own rows of a batch, so any number of workers trains on the same batches. When a worker dies, Ray
starts the workers again, and they go on from the last checkpoint with exactly the batch after it. The last line of
stdout is JSON. Needs `pip install 'headrace[ray]'`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from tiny_model import LENGTH, TinyModel

import headrace as hr
from headrace.interop.torch import TorchBatches


def make_loader(cache: str, rank: int, world_size: int) -> hr.Loader:
    """Return the loader of one worker. All map the same files: a cache in a shared folder serves any number."""
    return hr.Loader(cache, batch_size=16, sequence_length=LENGTH, rank=rank, world_size=world_size)


def train_worker(config: dict[str, Any]) -> None:
    """Train in one worker, from the last checkpoint that Ray has."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    torch.manual_seed(0)
    network = TinyModel(config["vocab_size"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    with make_loader(config["cache"], rank, context.get_world_size()) as loader:
        batches = TorchBatches(loader, device=ray.train.torch.get_device())
        first, checkpoint = 0, ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder) / "state.pt", weights_only=True)
            network.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            batches.load_state_dict(saved["batches"])
            first = saved["step"]
        model = ray.train.torch.prepare_model(network)
        for step, batch in zip(range(first + 1, config["steps"] + 1), batches, strict=False):
            if step == config["kill_at"] and rank == 1 and checkpoint is None:
                ray.train.get_all_reported_checkpoints()  # wait until Ray knows of them: steps here take milliseconds
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
            optimizer.zero_grad()
            loss = model(batch["inputs"], batch["targets"])
            loss.backward()
            optimizer.step()
            if step % config["save_every"] == 0 or step == config["steps"]:
                state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"batches": batches.state_dict(), "step": step}
                report(rank, state, {"step": step, "first_step": first, "loss": loss.item()})


def report(rank: int, state: dict[str, Any], figures: dict[str, Any]) -> None:
    """Give Ray the figures, and from the first worker a checkpoint: the weights and the state are those of all."""
    if rank != 0:
        ray.train.report(figures)
        return
    figures["weights"] = hashlib.sha256(b"".join(t.numpy().tobytes() for t in state["model"].values())).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report(figures, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/example-ray"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-at", type=int, default=0, help="kill the second worker at this step, once")
    options = parser.parse_args()

    out = options.out.resolve()  # Ray's workers have another working directory
    cache = hr.prepare(options.corpus or hr.standard_library(), tokenizer="bpe:2048", out=out / "cache")
    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1")  # this machine alone; a cluster: address="auto"
    trainer = ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={
            "cache": str(cache.path),
            "vocab_size": cache.tokenizer.vocab_size,
            "steps": options.steps,
            "save_every": options.save_every,
            "kill_at": options.kill_at,
        },
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
        run_config=ray.train.RunConfig(
            name="ray",  # a run of this name goes on from its last checkpoint
            storage_path=str(out),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    figures = trainer.fit().metrics
    ray.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
