"""Sizes and constants that a method's theory chooses for one problem."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.target import Target

Choice = TypeVar("Choice", bound=Callable)


@dataclass(frozen=True)
class TheoryChoices:
    """Functions that compute what a method's theory chooses for one problem; None if it chooses nothing.

    Attributes:
        per_round: from the number of machines and a target to the cohort size of one pass over the machines.
        cohorts: likewise, to the cohort size of each round of one pass in phases.
        rounds: likewise, to the number of rounds with all machines in each.
        smoothing: likewise, and whether every machine takes part once (else in every round), to the strength of the
            envelopes of a non-smooth loss; None if the method needs none.
        min_rounds: the smallest number of rounds of a run.
    """

    per_round: Callable[[int, Target], int] | None = None
    cohorts: Callable[[int, Target], tuple[int, ...]] | None = None
    rounds: Callable[[int, Target], int] | None = None
    smoothing: Callable[[int, Target, bool], float | None] | None = None
    min_rounds: Callable[[], int] | None = None


def require_choice_of(choice: Choice | None, name: str, method: str) -> Choice:
    """Return a function of `TheoryChoices`. Raise Refusal if the theory does not choose that size.

    >>> require_choice_of(TheoryChoices().rounds, "rounds", "NoisySGD")
    Traceback (most recent call last):
    fedprivjax.Refusal: rounds must be given for NoisySGD, whose theory chooses none
    """
    if choice is None:
        raise Refusal(f"{name} must be given for {method}, whose theory chooses none")
    return choice
