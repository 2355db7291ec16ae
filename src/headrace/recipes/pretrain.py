"""Pretrain: a corpus becomes a trained model, and a run directory that tells how."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from headrace.data.loader import Loader
from headrace.data.sizes import parse_bytes
from headrace.data.sources import as_sources, standard_library
from headrace.data.tokenizers import Tokenizer
from headrace.errors import CheckpointError, HeadraceError, TrainingError, UsageError
from headrace.files import owner_is_gone, owner_tag, write_atomically
from headrace.generation.generate import Sampling, generate
from headrace.machine.allocator import keep_freed_memory
from headrace.machine.facts import cpu_seconds, environment, memory_bytes, peak_memory_bytes
from headrace.machine.peak import measure_peak_flops
from headrace.models.counts import count
from headrace.models.network import build
from headrace.recipes.config import Config, Layers
from headrace.recipes.presets import PRESETS
from headrace.training.checkpoint import (
    Checkpoints,
    check_disk_space,
    checkpoint_bytes,
    load_optimizer,
    load_weights,
    read_state,
)
from headrace.training.evaluate import Evaluation, Evaluator
from headrace.training.loop import STAGES, BatchStream, Loop, Position, StepInfo, as_metrics
from headrace.training.optimizer import Optimizer
from headrace.training.schedule import Limits
from headrace.training.step import TrainStep, choose_micro_batch

Hook = Callable[[StepInfo], None]
DEFAULT_MINUTES = 10.0
SAMPLE_TOKENS = 120


@dataclass
class Run:
    """What a run did; also what `train --json` prints."""

    folder: Path
    parameters: int
    steps: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    tokens_per_second: float = 0.0
    train_loss: float | None = None
    first_loss: float | None = None
    validation_loss: float | None = None
    validation_bits_per_byte: float | None = None
    data_wait_percent: float = 0.0
    percent_of_peak: float | None = None
    peak_memory_bytes: int = 0
    cpu_cores: float = 0.0
    skipped_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went; sums to train_seconds."""
    first_sample: str = ""
    last_sample: str = ""
    was_stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["run"] = str(values.pop("folder"))
        return values


def train(
    config: Config | dict[str, Any] | None = None,
    hooks: Iterable[Hook] = (),
    batches: BatchStream | None = None,
    **overrides: Any,
) -> Run:
    """Train a model; from a notebook as from the command line.

    `batches` are trained on instead of the loader's own (a Grain pipeline: `interop.grain.GrainBatches`); the data
    section of the configuration still says what the tokenizer and the validation text are.

    >>> run = train({"data": {"sources": ["corpus.txt"]}, "training": {"max_minutes": 5}})   # doctest: +SKIP
    >>> run = train(**{"training.max_steps": 100})                                            # doctest: +SKIP
    """
    if not isinstance(config, Config):
        layers = Layers()
        if not config and not overrides:
            layers.add(PRESETS["demo"](), "preset demo")
        layers.add(config or {}, "the call")
        layers.add(overrides, "the call")
        config = layers.build()
    with Pretraining(config, batches=batches) as pretraining:
        for info in pretraining.steps():
            for hook in hooks:
                hook(info)
        return pretraining.run


class Pretraining:
    """All parts of a run, wired."""

    def __init__(
        self,
        config: Config,
        should_stop: Callable[[], bool] = lambda: False,
        batches: BatchStream | None = None,
    ) -> None:
        self._given_batches = batches
        self.config = config.model_copy(deep=True)
        self._should_stop = should_stop
        keep_freed_memory()
        if self.config.training.threads:
            torch.set_num_threads(self.config.training.threads)
        else:
            self.config.training.threads = torch.get_num_threads()
        self.folder = self._choose_folder()
        self._closers: list[Callable[[], None]] = []
        try:
            self._lock()
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pretraining:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._closers:
            self._closers.pop()()

    # Setting up

    def _choose_folder(self) -> Path:
        if self.config.run.out:
            return Path(self.config.run.out)
        return Path("runs") / time.strftime("%Y%m%d-%H%M%S")

    def _lock(self) -> None:
        """One living process per run directory."""
        lock = self.folder / "run.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if lock.exists() and not owner_is_gone(lock.read_text()):
                raise TrainingError(f"{self.folder}: a living process is training here. Choose another --out.")
            write_atomically(lock, owner_tag().encode())
        except OSError as problem:
            raise TrainingError(f"{self.folder}: cannot be written ({problem.strerror}).") from None
        self._closers.append(lambda: lock.unlink(missing_ok=True))

    def _open(self) -> None:
        config = self.config
        checkpoints = Checkpoints(self.folder / "checkpoints")
        resume_from = checkpoints.last() if config.run.resume else None
        if config.run.resume is True and resume_from is None:
            raise CheckpointError(f"{self.folder}: no checkpoint to resume from.")
        if resume_from is None and (self.folder / "metrics.jsonl").exists():
            raise UsageError(f"{self.folder}: holds a run already. Resume it with --resume, or choose another --out.")
        self.loader = self._make_loader("train")
        self._closers.append(self.loader.close)
        self._batches: BatchStream = self._given_batches or self.loader
        self.tokenizer = self.loader.cache.tokenizer
        _complete_model(config, self.tokenizer)
        state = read_state(resume_from) if resume_from else None
        if state is not None:
            _check_resumable(config, state)
        self.network = build(config.model, config.training.seed)
        check_disk_space(self.folder, 2 * checkpoint_bytes(self.network))
        self.counts = count(config.model, config.training.max_length)
        self.run = Run(self.folder, self.counts.num_parameters)
        self.optimizer = Optimizer(self.network, config.training)
        position = Position()
        if state is not None and resume_from is not None:
            load_weights(resume_from, self.network)
            load_optimizer(resume_from, self.optimizer)
            self._batches.restore(state["loader"])
            position = Position(**state["position"])
        self._choose(state)
        self._evaluator = self._make_evaluator()
        training = config.training
        step = TrainStep(
            self.network, self.optimizer, training.micro_batch_size, training.gradient_clip, training.precision
        )
        self._checkpoints = checkpoints
        limits = self._limits()
        if not training.evaluate_every:
            training.evaluate_every = max(1, (limits.steps or 1000) // 10) if limits.seconds is None else 200
        training.save_every = training.save_every or training.evaluate_every
        self.loop = Loop(training, limits, self._batches, step, position, self._evaluate, self._save, self._should_stop)
        dtype = torch.bfloat16 if training.precision == "bfloat16" else torch.float32
        self.peak_flops = state["peak_flops"] if state else measure_peak_flops(dtype)
        self._begin_folder(position)

    def _make_loader(self, part: str) -> Loader:
        data, training = self.config.data, self.config.training
        sources = as_sources(list(data.sources) or standard_library())
        is_split = data.validation_fraction > 0 and not data.validation_sources
        if part == "validation" and data.validation_sources:
            sources = as_sources(list(data.validation_sources))
        budget = parse_bytes("data.memory_budget", data.memory_budget) if data.memory_budget else None
        tokenizer: str | Tokenizer = data.tokenizer
        if not tokenizer:
            tokenizer = f"bpe:{self.config.model.vocab_size or 4096}"
            data.tokenizer = tokenizer
        is_validation = part == "validation"
        if is_validation:
            tokenizer = self.tokenizer
        return Loader(
            self.loader.cache if is_validation and is_split else sources,
            batch_size=training.batch_size,
            sequence_length=training.max_length,
            seed=training.seed,
            num_workers=data.num_workers,
            prefetch_batches=0 if is_validation else data.prefetch_batches,
            queue_capacity=None if is_validation else data.queue_capacity,
            max_sequences_in_memory=data.max_sequences_in_memory,
            memory_budget=budget,
            shuffle=data.shuffle and not is_validation,
            packing=data.packing,
            split=part if is_split else "all",  # type: ignore[arg-type]
            validation_fraction=data.validation_fraction if is_split else 0.0,
            tokenizer=tokenizer,
            cache_dir=data.cache_dir or None,
        )

    def _make_evaluator(self) -> Evaluator | None:
        data = self.config.data
        if not data.validation_fraction and not data.validation_sources:
            return None
        with self._make_loader("validation") as loader:
            training = self.config.training
            return Evaluator(loader, self.tokenizer, training.evaluation_tokens, training.precision)

    def _limits(self) -> Limits:
        training = self.config.training
        steps = [training.max_steps] if training.max_steps else []
        if training.num_epochs:
            per_epoch = self.loader.steps_per_epoch
            if per_epoch == 0:
                raise UsageError("the corpus is smaller than one batch: choose a smaller training.batch_size")
            steps.append(max(1, round(training.num_epochs * per_epoch)))
        seconds = 60 * training.max_minutes or None
        if not steps and seconds is None:
            training.max_minutes = DEFAULT_MINUTES
            seconds = 60 * DEFAULT_MINUTES
        return Limits(min(steps) if steps else None, seconds)

    def _choose(self, state: dict[str, Any] | None) -> None:
        """Precision and micro-batch by measurement; on resume, what was chosen before: else it could not be exact."""
        training = self.config.training
        if state is not None:
            chosen = state["chosen"]
            training.precision, training.micro_batch_size = chosen["precision"], chosen["micro_batch_size"]
            training.gradient_checkpointing = chosen["gradient_checkpointing"]
            torch.set_num_threads(chosen["threads"])
            self.network.checkpoint_blocks = training.gradient_checkpointing
            return
        self.network.checkpoint_blocks = training.gradient_checkpointing
        budget = parse_bytes("training.memory_budget", training.memory_budget) if training.memory_budget else None
        batch = next(self.loader)
        self.loader.seek(0)
        if training.precision == "auto":
            size = training.micro_batch_size or min(2, training.batch_size)
            times = {p: min(self._time(batch, size, p) for _ in range(3)) for p in ("float32", "bfloat16")}
            training.precision = "bfloat16" if times["bfloat16"] < 0.9 * times["float32"] else "float32"
        if training.micro_batch_size:
            if training.batch_size % training.micro_batch_size:
                near = training.batch_size // max(1, round(training.batch_size / training.micro_batch_size))
                raise UsageError(
                    f"training.micro_batch_size {training.micro_batch_size} does not divide batch_size"
                    f" {training.batch_size}; try {near}"
                )
            return
        reserve = 8 * self.counts.num_parameters  # what the optimizer will add

        def fits() -> bool:
            return budget is None or memory_bytes() + reserve < 0.97 * budget

        training.micro_batch_size = choose_micro_batch(
            training.batch_size, lambda size: self._time(batch, size, training.precision), fits
        )

    def _time(self, batch: Any, micro_batch_size: int, precision: str) -> float:
        """Seconds per sequence of a forward and backward pass, over a few micro-batches."""
        from headrace.data.batch import Batch

        rows = slice(0, max(micro_batch_size, min(4, len(batch.inputs)) // micro_batch_size * micro_batch_size))
        documents = None if batch.documents is None else batch.documents[rows]
        mask = None if batch.mask is None else batch.mask[rows]
        part = Batch(0, batch.inputs[rows], batch.targets[rows], documents, mask)
        step = TrainStep(self.network, self.optimizer, micro_batch_size, 0.0, precision)
        began = time.perf_counter()
        step.accumulate(part, {"forward": 0.0, "backward": 0.0})
        seconds = (time.perf_counter() - began) / len(part.inputs)
        self.network.zero_grad(set_to_none=True)
        return seconds

    # Running

    def steps(self) -> Iterable[StepInfo]:
        """Train, keeping the run directory up to date; then complete `run`."""
        run, position = self.run, self.loop.position
        first_tokens, first_elapsed = position.tokens, position.elapsed_s
        cpu_began, began = cpu_seconds(), time.perf_counter()
        totals = dict.fromkeys(STAGES, 0.0)
        waits: list[float] = []
        if position.step == 0:
            run.first_sample = self._sample()
            self._write_sample(0, run.first_sample)
        flops = self.counts.training_flops_per_token
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics:
            for info in self.loop.steps():
                for stage, seconds in info.seconds.items():
                    totals[stage] += seconds
                waits.append(info.seconds["data wait"] / max(info.step_s, 1e-9))
                run.first_loss = info.loss if run.first_loss is None else run.first_loss
                run.train_loss = info.loss
                elapsed = info.elapsed_s - first_elapsed
                run.tokens_per_second = (info.tokens - first_tokens) / max(elapsed, 1e-9)
                working = totals["forward"] + totals["backward"] + totals["optimizer"] + totals["data wait"]
                speed = (info.tokens - first_tokens) / max(working, 1e-9)
                run.percent_of_peak = 100 * speed * flops / self.peak_flops
                if info.evaluation is not None:
                    run.validation_loss = info.evaluation.loss
                    run.validation_bits_per_byte = info.evaluation.bits_per_byte
                if info.sample:
                    run.last_sample = info.sample
                    self._write_sample(info.step, info.sample)
                extra = {"tokens_per_second": round(run.tokens_per_second, 1), "memory_bytes": memory_bytes()}
                metrics.write(json.dumps(as_metrics(info, extra)) + "\n")
                metrics.flush()
                run.steps, run.tokens, run.train_seconds = info.step, info.tokens, info.elapsed_s
                run.data_wait_percent = 100 * sorted(waits)[len(waits) // 2]
                yield info
        run.was_stopped = self.loop.was_stopped
        self._write_ledger()
        run.skipped_steps = position.bad_steps
        wall = time.perf_counter() - began
        run.seconds = {**totals, "other": max(0.0, wall - sum(totals.values()))}
        run.peak_memory_bytes = peak_memory_bytes()
        run.cpu_cores = (cpu_seconds() - cpu_began) / max(wall, 1e-9)
        write_atomically(self.folder / "summary.json", json.dumps(run.as_json(), indent=1).encode())

    def _write_ledger(self) -> None:
        """What becomes of every token in a pass; known once the whole corpus is tokenised."""
        if self.loader.cache.is_complete:
            ledgers = [asdict(ledger) for ledger in self.loader.ledger()]
            write_atomically(self.folder / "ledger.json", json.dumps(ledgers, indent=1).encode())

    def _evaluate(self) -> tuple[Evaluation | None, str]:
        evaluation = None
        if self._evaluator is not None:
            evaluation = self._evaluator(self.network, self.config.training.micro_batch_size)
        return evaluation, self._sample()

    def _sample(self) -> str:
        training = self.config.training
        prompt = [int(token) for token in self.tokenizer.encode(training.prompt)] if training.prompt else []
        sampling = Sampling(max_tokens=SAMPLE_TOKENS, temperature=0.8, top_k=50, seed=training.seed)
        end = self.tokenizer.end_of_text_id
        ids = [row[0] for row in generate(self.network, prompt, sampling, end)]
        return training.prompt + self.tokenizer.decode(
            [i for i in ids if i is not None and i < self.tokenizer.vocab_size]
        )

    def _save(self, is_best: bool) -> None:
        training = self.config.training
        chosen = {
            "precision": training.precision,
            "micro_batch_size": training.micro_batch_size,
            "gradient_checkpointing": training.gradient_checkpointing,
            "threads": torch.get_num_threads(),
        }
        state = {
            "position": asdict(self.loop.position),
            "loader": self._batches.state(),
            "chosen": chosen,
            "config": self.config.model_dump(),
            "peak_flops": self.peak_flops,
            "environment": environment(),
        }
        self._checkpoints.save(self.loop.position.step, self.network, self.optimizer, self.tokenizer, state, is_best)

    # The run directory

    def _begin_folder(self, position: Position) -> None:
        write_atomically(self.folder / "config.json", json.dumps(self.config.model_dump(), indent=1).encode())
        facts = {**environment(), "peak_flops": self.peak_flops}
        write_atomically(self.folder / "environment.json", json.dumps(facts, indent=1).encode())
        _keep_metrics_before(self.folder / "metrics.jsonl", position.step)
        _point_last(self.folder)

    def _write_sample(self, step: int, text: str) -> None:
        with open(self.folder / "samples.txt", "a", encoding="utf-8") as file:
            file.write(f"--- step {step} ---\n{text}\n\n")


def _complete_model(config: Config, tokenizer: Tokenizer) -> None:
    """Fill in what depends on the data, and refuse what does not fit together."""
    model = config.model
    if model.vocab_size and model.vocab_size < tokenizer.vocab_size:
        raise UsageError(
            f"model.vocab_size {model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} tokens"
        )
    model.vocab_size = model.vocab_size or tokenizer.vocab_size
    model.context = model.context or config.training.max_length
    if config.training.max_length > model.context:
        raise UsageError(
            f"training.max_length {config.training.max_length} is above the model's context {model.context}"
        )


def _check_resumable(config: Config, state: dict[str, Any]) -> None:
    """A changed model is refused by name; the tokenizer and the data are checked by the loader's state."""
    saved = state["config"]
    before, now = saved["data"]["tokenizer"], config.data.tokenizer
    if before != now:
        raise CheckpointError(f"data.tokenizer was {before!r} in the run and is {now!r} now: other tokens.")
    for key, value in saved["model"].items():
        mine = getattr(config.model, key)
        if mine != value:
            raise CheckpointError(f"model.{key} was {value!r} in the run and is {mine!r} now: not the same model.")
    for key in ("optimizer", "batch_size", "max_length", "seed"):
        before, now = saved["training"][key], getattr(config.training, key)
        if before != now:
            raise CheckpointError(f"training.{key} was {before!r} in the run and is {now!r} now.")


def _keep_metrics_before(path: Path, step: int) -> None:
    """After a resume, lines of steps that will be done again are dropped."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            continue  # the torn last line of a killed run
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())


def _point_last(folder: Path) -> None:
    """runs/last is the newest run of its folder."""
    link = folder.parent / "last"
    if link.is_symlink() or not link.exists():
        temporary = folder.parent / f"{owner_tag()}~last.tmp"
        try:
            temporary.symlink_to(folder.name)
            os.replace(temporary, link)
        except OSError as problem:
            raise HeadraceError(f"{link}: cannot be made ({problem.strerror}).") from None
