"""Mixtures that change: weights over steps become phases over rows.

A plan is a mixture with its schedule, in force from some step on. A loader has one plan; a run whose mixture was
changed has several, and each is laid out as if it were never cut short, so that no later plan moves a row of an earlier
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from headrace.data.corpus.weights import pieces, weight_at
from headrace.data.order.mixture import Mixture, Phase, Shares, as_shares
from headrace.errors import UsageError
from headrace.files import digest

Weights = Sequence[float | dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """The weights of the sources from a step on: numbers, or schedules that count steps from the start of the run."""

    first_step: int
    weights: Weights
    """One for each of the sources that there are from this step on."""
    is_mixture: bool = True
    """False: there is one source, which was given no weight."""

    def phases(self, batch_size: int, num_sources: int) -> list[Phase]:
        """Return the phases of this plan as if no other came after it; sources without a weight have no share."""
        changes = [pieces(weight) for weight in self.weights]
        none = (Fraction(0),) * (num_sources - len(changes))
        edges = {edge for source in changes for piece in source for edge in (piece.start, piece.stop)}
        steps = [self.first_step, *sorted(edge for edge in edges if edge > self.first_step)]

        def shares(step: int, is_end: bool = False) -> Shares:
            weights = [weight_at(source, step, is_end=is_end) for source in changes]
            if not any(weights):
                where = f"just before step {step:,}" if is_end else f"at step {step:,}"
                raise UsageError(f"the weights of all sources are 0 {where}: give one of them a weight above 0 there.")
            return as_shares(weights) + none

        lines = [
            Phase(start * batch_size, shares(start), shares(stop, is_end=True), (stop - start) * batch_size)
            for start, stop in pairwise(steps)
        ]
        last = shares(steps[-1])
        return [*lines, Phase(steps[-1] * batch_size, last, last)]

    @property
    def is_steady(self) -> bool:
        """Return whether the weights never change."""
        return not any(isinstance(weight, dict) and list(weight) != ["0"] for weight in self.weights)

    def weights_at_start(self) -> list[float]:
        """Return the weights at the first step."""
        return [
            float(weight_at(pieces(weight), self.first_step)) if isinstance(weight, dict) else weight
            for weight in self.weights
        ]


def make_mixture(plans: Sequence[Plan], batch_size: int, seed: int) -> Mixture:
    """Return the mixture of plans that follow one another."""
    num_sources = max(len(plan.weights) for plan in plans)
    phases: list[Phase] = []
    for plan, following in pairwise([*plans, None]):
        assert plan is not None
        end = None if following is None else following.first_step * batch_size
        phases += [phase for phase in plan.phases(batch_size, num_sources) if end is None or phase.first_row < end]
    return Mixture(phases, seed)


def plans_before(plans: Sequence[Plan], step: int) -> list[Plan]:
    """Return the plans that the batches before a step were made by; at step 0, the first."""
    return [plan for plan in plans if plan.first_step < max(step, 1)]


def mark_of(plans: Sequence[Plan], batch_size: int) -> str:
    """Return a short hash of plans: equal marks stand for equal rows.

    It is part of saved states: another hash of the same plans would refuse them.
    """
    if len(plans) == 1 and plans[0].is_steady:
        return (
            digest(repr([float(weight) for weight in plans[0].weights_at_start()]))[:8] if plans[0].is_mixture else ""
        )
    lines = []
    for plan in plans:
        lines.append(f"plan {plan.first_step}")
        for phase in plan.phases(batch_size, len(plan.weights)):
            shares, final = (" ".join(map(str, some)) for some in (phase.shares, phase.final_shares))
            lines.append(f"{phase.first_row} {phase.num_rows}: {shares}; {final}")
    return digest("plans-1", *lines)[:8]


def older_mark_of(plans: Sequence[Plan]) -> str:
    """Return the hash that earlier versions wrote for weights given as whole numbers; empty for all others."""
    weights = plans[0].weights_at_start() if len(plans) == 1 and plans[0].is_steady else [0.5]
    return digest(repr([int(weight) for weight in weights]))[:8] if all(w == int(w) for w in weights) else ""
