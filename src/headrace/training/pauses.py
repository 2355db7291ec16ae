"""The pauses of a run: when it evaluates, on how many tokens, and when it saves, by settings or by measured costs.

All processes of a group hold the same plan and come to the same decisions: whatever is measured comes from rank 0.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from statistics import median

from headrace.training.config import TrainingConfig
from headrace.training.schedule import Limits, Position

EVALUATING_SHARE = 0.02
"""Largest share of a run for the evaluations before the last one, and for the last one where it is a sample."""
WHOLE_SHARE = 0.08
"""Largest expected share of a run for a last evaluation on the whole part: a tenth, less a margin."""
MEASURING_SHARE = 0.005
"""Share of a run for measuring what evaluating costs; the least that can be measured is measured anyway."""
TEXT_SHARE, LEAST_TEXT_S = 0.005, 0.02
"""Limits of the time for the text at the end of a run: a share of the run, and the seconds that it has anyway. The
texts before it may take as large a share together; one that would have fewer seconds is not written."""
CHEAP_TEXT = 0.25
"""Share of an evaluation's time up to which a whole sample of text comes with it."""
WAITING_SHARE, WRITING_SHARE = 0.01, 0.05
"""Largest shares of the time between saves for waiting for one and for writing it beside training."""
SAVE_SECONDS = 60.0  # between saves, where these shares allow it
LEAST_INTERVAL = 0.1  # of a run, between evaluations
MOST_TOKENS, FEWEST_TOKENS = 50_000, 10_000
"""Limits of the sample of the validation part that is evaluated on before the end."""
CALIBRATING_EVALUATIONS = 3
"""Evaluations on the sample that calibrating takes."""
MEASURED_STEP = 3
"""Steps after which evaluating is measured: the first ones pay for fresh memory."""
RECENT_STEPS = 50
# What a save is expected to take before the first one was measured.
COPIED_PER_S, WRITTEN_PER_S, SEALING_S = 2e9, 3e8, 0.05


@dataclass(frozen=True)
class EvaluationCosts:
    """What evaluating was measured to cost; nothing of it where there is no validation part."""

    token_s: float = 0.0
    """Seconds per token."""
    num_tokens: int | None = None
    """Tokens of the whole validation part; None: not known yet."""
    text_s: float = 0.0
    """Seconds of a sample of text of full length."""


def expected_seconds(config: TrainingConfig, updates_s: float, sample_s: float, whole_s: float) -> float:
    """Estimate the time of all evaluations of a run that does not set at which steps they come.

    `updates_s`: time of all updates; `sample_s`, `whole_s`: time of an evaluation on the largest sample, and on all.

    >>> expected_seconds(TrainingConfig(), updates_s=100.0, sample_s=0.5, whole_s=1.0)
    3.0
    """
    last_s = sample_s
    if config.evaluation_tokens == "auto":
        least_s = sample_s * FEWEST_TOKENS / MOST_TOKENS
        last_s = whole_s if whole_s <= WHOLE_SHARE * updates_s else max(least_s, EVALUATING_SHARE * updates_s)
    calibrating_s = CALIBRATING_EVALUATIONS * sample_s if config.calibrate else 0.0
    return calibrating_s + last_s + min((1 / LEAST_INTERVAL - 1) * sample_s, EVALUATING_SHARE * updates_s)


def saves_before_end(config: TrainingConfig, total_s: float, total_steps: float) -> bool:
    """Return whether a run of this length is expected to save on the way, which takes memory for a copy of its state.

    >>> saves_before_end(TrainingConfig(), 30.0, 100), saves_before_end(TrainingConfig(save_every=50), 30.0, 100)
    (False, True)
    """
    return config.save_every < total_steps if config.save_every else total_s > 1.5 * SAVE_SECONDS


@dataclass(frozen=True)
class Due:
    """What is to be done between two steps."""

    tokens: int | None = None
    """Tokens to evaluate on; 0: the whole part; None: no evaluation."""
    text_s: float = 0.0
    """Most seconds for a sample of text; 0: none."""
    saves: bool = False
    """Whether to save whatever the evaluation says."""
    window: int = 0
    """Tokens of the windows into which the validation text is cut, as the training text is by now; 0: none are cut."""

    @property
    def is_anything(self) -> bool:
        return self.tokens is not None or self.saves


class Pauses:
    """The plan of evaluations and saves of a run, which follows what they cost."""

    def __init__(self, config: TrainingConfig, limits: Limits, position: Position, save_bytes: int = 0) -> None:
        """`save_bytes`: size of a checkpoint, from which its cost is guessed until one was measured."""
        self._config, self._limits, self._position = config, limits, position
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._num_steps = 0
        self._marked_s = self._saved_s = position.elapsed_s
        self._evaluated_at = limits.progress(position.step, position.elapsed_s, position.reserve_s)
        self._costs: EvaluationCosts | None = None
        self._evaluation_s = 0.0
        self._waited_s = save_bytes / COPIED_PER_S
        self._written_s = SEALING_S + save_bytes / WRITTEN_PER_S

    # What happened

    def note_step(self) -> None:
        """Count an update; the position has its time already."""
        self._num_steps += 1
        self._step_seconds.append(self._position.elapsed_s - self._marked_s)
        self._marked_s = self._position.elapsed_s

    def note_costs(self, costs: EvaluationCosts) -> None:
        """Take in what evaluating was measured to cost."""
        self._costs = costs
        self._position.reserve_s = self._reserve_s()

    def forget_costs(self) -> None:
        """Let evaluating be measured again: it is computed in another way from now on."""
        self._costs = None

    def note_pause(self, due: Due, is_saved: bool, evaluation_s: float, saving_s: float, written_s: float) -> None:
        """Count a pause; `saving_s`: time waited for its save; `written_s`: time of writing the newest one beside."""
        self._marked_s = self._position.elapsed_s
        if due.tokens is not None:
            own_text_s = due.text_s if math.isfinite(due.text_s) else 0.0  # a text with a share of its own
            self._evaluation_s = max(0.0, evaluation_s - own_text_s)
            self._evaluated_at = self._progress
            if due.tokens and self._costs is not None:  # steps may be computed faster by now than when it was measured
                num_tokens = min(due.tokens, self._costs.num_tokens or due.tokens)
                self._costs = replace(self._costs, token_s=min(self._costs.token_s, evaluation_s / num_tokens))
        if is_saved:
            self._saved_s, self._waited_s = self._position.elapsed_s, saving_s
        self._written_s = written_s or self._written_s
        self._position.reserve_s = self._reserve_s()

    # What is due

    def needs_costs(self, is_end: bool) -> bool:
        """Return whether evaluating has to be measured now."""
        return self._costs is None and (is_end or self._num_steps >= MEASURED_STEP)

    @property
    def measuring_s(self) -> float:
        """Return the seconds that measuring should take at most."""
        return MEASURING_SHARE * self._total_s

    def due(self) -> Due:
        """Return what is due after the newest step, if it was not the last."""
        is_evaluated = self._is_evaluated()
        return Due(
            tokens=self._sample_tokens() if is_evaluated else None,
            text_s=self._text_s() if is_evaluated else 0.0,
            saves=self._is_saved(),
        )

    def due_at_end(self) -> Due:
        """Return what is due after the last step of a run that reached its limit."""
        text_s = math.inf if self._config.evaluate_every else max(LEAST_TEXT_S, TEXT_SHARE * self._total_s)
        return Due(self._last_tokens(), text_s, saves=True)

    def judged_tokens(self, tokens: int) -> int:
        """Return the tokens to judge an evaluation on `tokens` by: those that the best one so far was judged by."""
        sample_tokens = self._position.sample_tokens
        return tokens if sample_tokens is None or self._config.evaluation_tokens != "auto" else sample_tokens

    @property
    def calibration_tokens(self) -> int:
        """Return the tokens to calibrate on: the sample that evaluations are compared by, unless that is very large."""
        return min(self._sample_tokens() or MOST_TOKENS, MOST_TOKENS)

    @property
    def can_save_best(self) -> bool:
        """Return whether a save would keep within its share of the time, or settings ask for evaluations or saves."""
        config = self._config
        return bool(config.evaluate_every or config.save_every) or self._since_save_s >= self._save_gap_s

    @property
    def _progress(self) -> float:
        position = self._position
        return self._limits.progress(position.step, position.elapsed_s, position.reserve_s)

    @property
    def _total_s(self) -> float:
        """Return the expected time of the whole run."""
        limits, position = self._limits, self._position
        ends = [limits.seconds] if limits.seconds else []
        if limits.steps:
            step_s = median(self._step_seconds) if self._step_seconds else 0.0
            ends.append(position.elapsed_s + max(0, limits.steps - position.step) * step_s)
        return max(min(ends, default=0.0), 1e-9)

    @property
    def _since_save_s(self) -> float:
        return self._position.elapsed_s - self._saved_s

    @property
    def _save_gap_s(self) -> float:
        return max(self._waited_s / WAITING_SHARE, self._written_s / WRITING_SHARE)

    def _is_saved(self) -> bool:
        every, gap_s = self._config.save_every, max(SAVE_SECONDS, self._save_gap_s)
        if every:
            return self._position.step % every == 0
        return self._since_save_s >= gap_s and self._total_s - self._position.elapsed_s >= gap_s / 2

    def _is_evaluated(self) -> bool:
        every = self._config.evaluate_every
        if every:
            return self._position.step % every == 0
        if not self._costs or not self._costs.token_s:
            return False
        interval = max(LEAST_INTERVAL, self._cost_s() / (EVALUATING_SHARE * self._total_s))
        return self._progress >= self._evaluated_at + interval - 1e-9 and self._progress <= 1 - interval / 2

    def _cost_s(self) -> float:
        """Return the time of an evaluation: what the one before took, or what the first is expected to take."""
        return self._evaluation_s or self._seconds_for(self._sample_tokens())

    def _sample_tokens(self) -> int:
        """Return the tokens of an evaluation before the end, which stay the same for the whole run."""
        config, position = self._config, self._position
        if config.evaluation_tokens != "auto":
            return config.evaluation_tokens
        if position.sample_tokens is not None:
            return position.sample_tokens
        if config.evaluate_every:
            return MOST_TOKENS
        affordable = self._tokens_within(LEAST_INTERVAL * EVALUATING_SHARE * self._total_s)
        return min(MOST_TOKENS, max(FEWEST_TOKENS, affordable))

    def _last_tokens(self) -> int:
        config, costs = self._config, self._costs or EvaluationCosts()
        if config.evaluation_tokens != "auto":
            return config.evaluation_tokens
        whole_s = math.inf if costs.num_tokens is None else costs.token_s * costs.num_tokens
        if whole_s <= WHOLE_SHARE * self._total_s:
            return 0
        is_sampled = config.evaluate_every or self._position.sample_tokens is not None
        if is_sampled and costs.num_tokens is None:  # more rows might have to be tokenised first
            return self._sample_tokens()
        # What a run reports at its end should not hang on a few rows: it is as many as the share allows, beside the
        # sample, by which the best is judged.
        sample_tokens = self._sample_tokens() if is_sampled else 0
        return max(1, sample_tokens, self._tokens_within(EVALUATING_SHARE * self._total_s) - sample_tokens)

    def _text_s(self) -> float:
        if self._config.evaluate_every:
            return math.inf
        text_s = self._costs.text_s if self._costs else 0.0
        if text_s <= CHEAP_TEXT * self._seconds_for(self._sample_tokens()):
            return math.inf
        share_s = LEAST_INTERVAL * TEXT_SHARE * self._total_s
        return share_s if share_s >= LEAST_TEXT_S else 0.0

    def _reserve_s(self) -> float:
        """Return the expected time of the last evaluation, during which the last save is written, and of its text."""
        if not self._limits.seconds or self._costs is None:
            return self._position.reserve_s
        last_tokens = self._last_tokens()
        judged_tokens = self.judged_tokens(last_tokens)
        evaluating_s = sum(map(self._seconds_for, {last_tokens, judged_tokens}))
        if self._config.calibrate:
            evaluating_s += CALIBRATING_EVALUATIONS * self._seconds_for(self.calibration_tokens)
        text_s = min(self._costs.text_s, self.due_at_end().text_s)
        return min(max(evaluating_s + text_s, self._written_s), self._limits.seconds / 2)

    def _seconds_for(self, tokens: int) -> float:
        costs = self._costs or EvaluationCosts()
        known = costs.num_tokens
        wanted = known if known is not None and (not tokens or tokens > known) else tokens
        return costs.token_s * (wanted or 0)

    def _tokens_within(self, seconds: float) -> int:
        return int(seconds / self._costs.token_s) if self._costs and self._costs.token_s else 0
