"""The `training` section of a configuration."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.models.counts import num_candidates
from headrace.sizes import Size

MAX_STEPS = 10**15
MAX_UPDATE_TOKENS = 1 << 30
MAX_THREADS = 4096
MAX_PROMPTS = 16
SHORT_SHARE = 0.5
"""Share of what is left of a run after which windows grow to twice their length, until sequences are whole."""


class TrainingConfig(BaseModel):
    """The settings of training.

    Zero or `auto` means that the value is chosen. How steps are computed is then written into the resolved config.
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    learning_rate: float = Field(default=0.003, gt=0)
    """Peak learning rate. Where the network is chosen for a time limit, so is this."""
    batch_size: int = Field(default=16, ge=1, le=1 << 24)
    """Sequences per update, over all processes. Where the network is chosen for a time limit, so is this."""
    micro_batch_size: int = Field(default=0, ge=0, le=1 << 24)
    """Sequences per forward pass; 0: chosen by a short measurement."""
    max_length: int = Field(default=256, ge=1, le=1 << 24)
    """Tokens per sequence. Where the network is chosen for a time limit, so is this."""
    num_epochs: float = Field(default=0, ge=0, le=1e9)
    """Passes over the training part; 0: no limit. Not given: a run that only time limits ends where more passes hardly
    help. Of the three limits, the first that is reached ends the run."""
    max_steps: int = Field(default=0, ge=0, le=MAX_STEPS)
    """Updates; 0: no limit."""
    max_minutes: float = Field(default=0, ge=0, le=1e9)
    """Minutes from the first step to the end of the run, evaluations and saving included; 0: no limit. The learning
    rate falls so that it ends with them: the time of the last evaluation and save is set aside."""
    short_windows: int = Field(default=0, ge=0, le=1 << 24)
    """Tokens of the windows into which sequences are cut in the first half of the run: short ones are learned sooner.
    Windows double then, and again at each half of what is left, until sequences are whole. It must divide max_length;
    0: sequences stay whole. Where the network is chosen for a time limit, so is this."""
    dropout: float = Field(default=0, ge=0, lt=1)
    """Share of the numbers that each step leaves out at random, of what goes into the blocks and into the head: against
    learning a text by heart. Where it is not given, it follows from how often the text comes round, as weight decay
    does."""
    sampled_tokens: int = Field(default=0, ge=0, le=1 << 24)
    """Tokens of the vocabulary, drawn by how frequent they are, that each update compares its targets with beside the
    tokens of its own batch: much less work where the vocabulary is large. 0: all tokens are compared, as evaluations
    always do. Where the network is chosen for a time limit, so is this."""
    related_tokens: float = Field(default=0, ge=0, le=4)
    """How much tokens learn from others that they share a part with (a piece that both are made of, or a word but for
    case and spaces), such as 0.5: rare tokens are learned sooner. 0: each learns from its own use alone. Where the
    network is chosen for a time limit, so is this."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: orthogonalised momentum for matrices, AdamW for the rest. adamw: AdamW for all."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of matrices. Not given: 0.1 to 2, by how often the text comes round."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay of the gradient average."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay of the squared gradient average."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's momentum."""
    schedule: Literal["cosine", "linear", "wsd"] = "wsd"
    """After the warm-up: cosine or linear decay, or stable and then linear decay (warm-up, stable, decay)."""
    warmup: float = Field(default=0.02, ge=0, lt=1)
    """Share of the run in which the learning rate rises."""
    decay: float = Field(default=0.5, gt=0, le=1)
    """wsd: share of the run in which the learning rate falls."""
    final_learning_rate: float = Field(default=0.02, ge=0, le=1)
    """Learning rate at the end, as a share of the peak."""
    average: float = Field(default=0, ge=0, le=1)
    """Share of the updates so far over which weights are averaged, such as 0.05; the average is what is evaluated and
    saved as the model. 0: the newest weights are."""
    calibrate: bool = False
    """At the limit of a run, multiply the logits by the number for which the loss on the validation text is lowest. Not
    given: where the text comes round often, which makes a network too sure of itself. Not with `average`."""
    gradient_clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0: no limit."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, a third more time."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast where a measurement on this machine shows that it is faster, else float32."""
    matmul: Literal["auto", "default", "onednn"] = "auto"
    """Kernel of float32 products; auto: oneDNN where it is measured to be faster than PyTorch's default."""
    attention: Literal["auto", "fused", "products"] = "auto"
    """auto: batched products, which keep all probabilities, where they are faster than PyTorch's fused kernel."""
    engine: Literal["auto", "torch", "native"] = "auto"
    """Code of forward and backward passes. native: headrace's C++ library, in which each thread computes whole
    sequences; torch: PyTorch's operations; auto: the native library where it is built and measured to be faster."""
    compile: bool = False
    """Try torch.compile too, where there is a C++ compiler, and keep it if it is measured to be faster."""
    threads: int = Field(default=0, ge=0, le=MAX_THREADS)
    """Threads of the computation; 0: one per core."""
    memory_budget: Size = None
    """Most memory of the whole process, such as 850MB: how to compute steps is chosen within it, and a run that needs
    more in every way is refused before its first step."""
    evaluate_every: int = Field(default=0, ge=0, le=MAX_STEPS)
    """Steps between evaluations; 0: chosen, so that those before the end take at most 2% of the run."""
    evaluation_tokens: Annotated[int, Field(ge=0, le=10**15)] | Literal["auto"] = "auto"
    """Tokens of the validation part to evaluate on, from all over it and the same every time; 0: all of it; auto:
    chosen by what evaluating costs, at the end all of it if that should take at most 8% of the run."""
    save_every: int = Field(default=0, ge=0, le=MAX_STEPS)
    """Steps between checkpoints; 0: one a minute, fewer if waiting for them would take more than 1% of the run. The
    last is saved whatever this is."""
    prompts: list[str] = Field(default_factory=list, max_length=MAX_PROMPTS)
    """What samples begin with, one sample for each; empty: `prompt`, or else a few words of the validation text."""
    prompt: str = ""
    """What the sample begins with, where `prompts` is empty."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of weights, order, dropout and samples."""

    @property
    def sequence_length(self) -> int:
        """Tokens per sequence: what the key max_length is called everywhere but in configurations."""
        return self.max_length

    @property
    def given_prompts(self) -> list[str]:
        """What samples begin with, as far as the configuration says it."""
        return self.prompts or ([self.prompt] if self.prompt else [])

    @property
    def tokens_per_update(self) -> int:
        """Tokens that one update trains on, over all processes."""
        return self.batch_size * self.sequence_length

    @property
    def pieces(self) -> int:
        """Windows into which each sequence is cut in the first part of the run; 1: it stays whole."""
        return count_pieces(self.sequence_length, self.short_windows)

    @property
    def windows(self) -> list[tuple[float, int]]:
        """Tokens of the windows that a run sees, one length after the other, each with its share of the run.

        >>> TrainingConfig(max_length=1024, short_windows=256).windows
        [(0.5, 256), (0.25, 512), (0.25, 1024)]
        """
        shares, left, window = [], 1.0, self.short_windows
        while count_pieces(self.sequence_length, window) > 1:
            shares.append((SHORT_SHARE * left, window))
            left, window = (1 - SHORT_SHARE) * left, 2 * window
        return [*shares, (left, self.sequence_length)]

    def window_at(self, progress: float) -> int:
        """Return the tokens of the windows into which sequences are cut at a point of the run; 0: they stay whole.

        >>> config = TrainingConfig(max_length=1024, short_windows=256)
        >>> [config.window_at(progress) for progress in (0.0, 0.49, 0.5, 0.75, 1.0)]
        [256, 256, 512, 0, 0]
        """
        end = 0.0
        for share, window in self.windows[:-1]:
            end += share
            if progress < end:
                return window
        return 0

    @property
    def sets_trained_weights_apart(self) -> bool:
        """Whether checkpoints may hold the weights that training goes on with beside those of the model."""
        return bool(self.average) or self.calibrate

    @property
    def mean_window(self) -> float:
        """Tokens of a window, averaged over a run: what attention costs is in proportion to it."""
        return sum(share * window for share, window in self.windows)

    @property
    def usual_window(self) -> int:
        """Tokens of those windows of a run that are nearest to the mean: what to time a step with.

        >>> TrainingConfig(max_length=1024, short_windows=256).usual_window
        512
        """
        return min((window for _, window in self.windows), key=lambda window: abs(math.log(window / self.mean_window)))

    def num_logits(self, vocab_size: int) -> int:
        """Return how many tokens of the vocabulary an update usually compares each target with."""
        return num_candidates(vocab_size, self.tokens_per_update, self.sampled_tokens)

    @model_validator(mode="after")
    def _check_update(self) -> TrainingConfig:
        if self.tokens_per_update > MAX_UPDATE_TOKENS:
            raise ValueError(
                f"batch_size {self.batch_size:,} times max_length {self.max_length:,} is more than"
                f" {MAX_UPDATE_TOKENS:,} tokens per update"
            )
        if self.calibrate and self.average:
            raise ValueError("an average of weights is not calibrated: set calibrate to false, or average to 0")
        return self


def count_pieces(length: int, window: int) -> int:
    """Return the number of windows into which a sequence is cut; 1 where they do not divide it evenly.

    >>> count_pieces(256, 128), count_pieces(256, 0), count_pieces(64, 128), count_pieces(256, 100)
    (2, 1, 1, 1)
    """
    return length // window if window and length % window == 0 else 1
