"""The evaluation of a run in its group: rank 0 evaluates and writes text, the others contribute their pieces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from headrace.activity import Activity, ignore
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.replicas import Replica
from headrace.generation.decoding import text_pieces
from headrace.generation.prompts import BETWEEN_SAMPLES, first_prompt
from headrace.generation.sampling import Sampling
from headrace.machine.measure import torch_threads
from headrace.models.network import Network
from headrace.run.session.calibration import LEAST_TOKENS, Calibration, find_factor
from headrace.training.config import TrainingConfig
from headrace.training.evaluate import Evaluation, Evaluator
from headrace.training.loop import Findings
from headrace.training.pauses import FEWEST_TOKENS, MOST_TOKENS, Due, EvaluationCosts

TEXT_TOKENS = 120
FIRST_TEXT_S = 0.1
"""Most seconds for the text of the untrained network, which training waits for."""
ROWS_TO_PROMPT_FROM = 8
MOST_SEEDS = 1 << 63
ENCODER_BYTES = 32_000_000
"""Memory that a tokenizer takes to encode prompts: 31 MB were measured for `bpe:16000`."""


class RunEvaluation:
    """Evaluates a run, and writes text with its network."""

    def __init__(
        self,
        replica: Replica,
        evaluator: Evaluator | None,
        tokenizer: Tokenizer,
        training: TrainingConfig,
        calibration: Calibration,
        activity: Activity = ignore,
        average: Sequence[Tensor] | None = None,
    ) -> None:
        """`evaluator`: None where there is no text to evaluate on, and in all processes but rank 0.

        `average`: weights to evaluate in the place of those that are trained; None: those.
        """
        self._average, self._calibration, self._training = average, calibration, training
        self._replica, self._evaluator, self._tokenizer = replica, evaluator, tokenizer
        texts = evaluator.texts(ROWS_TO_PROMPT_FROM) if evaluator and not training.given_prompts else []
        self.prompts = training.given_prompts or [first_prompt(texts)]
        """What samples begin with, the same for the whole run."""
        self._activity = activity
        self._sampling = Sampling(max_tokens=TEXT_TOKENS, temperature=0.8, top_k=50, seed=training.seed)
        self._text_s = 0.0
        """Seconds of samples of full length; 0 before any was written."""

    def first_text(self, seconds: float) -> str:
        """Return text of the untrained network."""
        self._make_room()
        with self._replica.whole(self._average) as network:
            return self._write(network, seconds) if self._replica.group.is_main else ""

    def first_loss(self) -> float | None:
        """Return the loss of the network that the run begins from; None where there is no text to evaluate on."""
        tokens = self._training.evaluation_tokens
        if tokens == "auto":
            tokens = MOST_TOKENS if self._training.evaluate_every else FEWEST_TOKENS
        evaluation = self.evaluate(Due(tokens=tokens), tokens).evaluation
        return evaluation.loss if evaluation else None

    def measure(self, seconds: float) -> EvaluationCosts:
        """Measure in about this time what evaluating costs; text by its first tokens, unless some was written."""
        self._make_room()
        with self._replica.whole(self._average) as network:
            if not self._replica.group.is_main:
                return EvaluationCosts()
            if not self._text_s:
                self._write(network, seconds / 2)
            if self._evaluator is None:
                return EvaluationCosts(text_s=self._text_s)
            token_s = self._evaluator.measure(network, seconds, self._trained(network))
            return EvaluationCosts(token_s, self._evaluator.num_tokens, self._text_s)

    @property
    def can_calibrate(self) -> bool:
        """Return whether there is enough validation text; known to the process that evaluates."""
        return self._evaluator is not None and self._evaluator.count(MOST_TOKENS) >= LEAST_TOKENS

    def calibrate(self, num_tokens: int) -> None:
        """Calibrate the network on a sample of this size; no update follows."""
        self._activity("calibrating")
        self._make_room()
        factor, calibration = 1.0, self._calibration
        with self._replica.whole() as network:
            if self._evaluator is not None and self.can_calibrate:
                evaluate, replica = self._evaluator, self._trained(network)
                factor, before = find_factor(network, lambda: evaluate(network, num_tokens, replica).loss)
                calibration.num_tokens, calibration.loss_before = num_tokens, before
        calibration.multiply(self._replica.group.from_main(factor, "waiting for rank 0 to calibrate"))

    def evaluate(self, due: Due, judged_tokens: int) -> Findings:
        """Evaluate and write text as it is due; also on the sample of `judged_tokens`, where that is another."""
        self._activity("evaluating")
        self._make_room()
        with self._replica.whole(self._average) as network:
            if not self._replica.group.is_main:
                return Findings()
            text = self._write(network, due.text_s) if due.text_s else None
            if self._evaluator is None or due.tokens is None:
                return Findings(text=text)
            replica = self._trained(network)
            evaluation = judged = self._evaluator(network, due.tokens, replica, due.window)
            if not self._evaluator.is_same(due.tokens, judged_tokens):
                judged = self._evaluator(network, judged_tokens, replica, due.window)
            return Findings(evaluation, judged, text, self._as_before(judged, judged_tokens))

    def _as_before(self, judged: Evaluation, judged_tokens: int) -> Evaluation:
        """Return an evaluation of the weights as they were trained, as all earlier ones are."""
        before = self._calibration.loss_before
        if before is None or self._evaluator is None:
            return judged
        if not self._evaluator.is_same(self._calibration.num_tokens, judged_tokens):
            return judged
        return replace(judged, loss=before, bits_per_byte=judged.bits_per_byte * before / judged.loss)

    def _trained(self, network: Network) -> Replica | None:
        """Return the replica that trains a network; None for one that was put together to be evaluated."""
        return self._replica if network is self._replica.network else None

    def _make_room(self) -> None:
        """Give back memory that only steps need, if evaluating would take too much: as gradients, and an encoder."""
        weights = sum(parameter.nbytes for parameter in self._replica.network.parameters())
        self._replica.make_room(weights + ENCODER_BYTES)

    def _write(self, network: Network, seconds: float) -> str:
        """Return every prompt and its continuation, as far as they come in time."""
        share_s, self._text_s = seconds / len(self.prompts), 0.0
        with torch_threads(1):  # threads that meet after every product of one row cost more than they compute
            samples = [self._continue(network, number, share_s) for number in range(len(self.prompts))]
        if self._replica.memory_limit is not None:
            self._tokenizer.recycle()
        return BETWEEN_SAMPLES.join(samples)

    def _continue(self, network: Network, number: int, seconds: float) -> str:
        """Return a prompt and its continuation, and add what a whole sample would take to what all of them take."""
        began, pieces, prompt = time.perf_counter(), [], self.prompts[number]
        sampling = replace(self._sampling, seed=(self._sampling.seed + number) % MOST_SEEDS)
        for piece in text_pieces(network, self._tokenizer, prompt, sampling):
            pieces.append(piece)
            if time.perf_counter() - began >= seconds:
                break
        self._text_s += (time.perf_counter() - began) * TEXT_TOKENS / max(len(pieces), 1)
        return prompt + "".join(pieces)
