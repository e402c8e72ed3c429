"""The catalogue of planted faults, whoever must see them.

A *leak* tells an adversary more than is claimed; a *law fault* spoils the noise, whether or not that tells anything.
"""

import numpy as np
from cases import POOL, SHARES
from faults import messages, noise
from faults.claims import (
    largest_gradient,
    largest_increment,
    of_each_round,
    of_halves,
    of_messages,
    of_rule,
    of_sampler,
)
from faults.federations import CLIP, TARGET
from faults.leaks import AUDITS
from faults.row import LAW, LEAK, Drawn, Fault, Held, Numbers
from laws import factor_path, path, standing_covariance, tree_covariance

from fedprivjax import (
    DPMu2,
    NoisyMinibatchSGD,
    NoisySGD,
    Uniform,
    UserSGD,
)
from fedprivjax.noise import Fresh, choose
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.plan.samplers import Replacement, Subset

# ---- laws of noise

ROUNDS, ALPHA = 12, 0.2
SCHEDULE = Uniform(5, 2).draw(ROUNDS, np.random.default_rng(9))
STANDARD = np.random.default_rng(1).uniform(0.5, 2.0, SCHEDULE.participants.shape)
STANDING = choose(SCHEDULE, STANDARD, 1, "materialised", cancel=True)
SERVERS = np.linspace(0.5, 2.0, ROUNDS).astype(np.float32)


def drawn(change, kind, faulty, right, covariance):
    return Fault(change, kind, "law", Drawn(faulty, covariance), Drawn(right, covariance))


def cancelling(change, mechanism):
    covariance = standing_covariance(STANDARD, SCHEDULE)
    wrong = mechanism(STANDING.inputs, STANDING.machines)
    return drawn(change, LAW, lambda: path(wrong), lambda: path(STANDING), covariance)


def of_tree(change, kind, factor):
    def noise(one):
        return lambda: factor_path(one, ROUNDS, ALPHA)

    return drawn(change, kind, noise(factor), noise(Tree()), tree_covariance(ROUNDS, ALPHA))


LAWS = {
    "nothing taken back": cancelling("the old noise is not subtracted", noise.NothingTakenBack),
    "another's taken back": cancelling("another machine's noise is subtracted", noise.AnothersTakenBack),
    "never renewed": cancelling("the first noise is subtracted for ever", noise.FirstKept),
    "drawn anew": cancelling("the cancelled noise is drawn anew, not the stored one", noise.DrawnAnew),
    "one key of the server": drawn(
        "a server's key used in every round",
        LEAK,
        lambda: path(noise.OneServerDraw(SERVERS)),
        lambda: path(Fresh(SERVERS)),
        np.diag(SERVERS.astype(float) ** 2),
    ),
    "nodes drawn anew": of_tree("a node's noise is drawn anew at each use", LAW, noise.NodesDrawnAnew()),
    "a level missing": of_tree("nodes of two rounds have no noise", LEAK, noise.WithoutALevel()),
}


def moved(change, faulty, right, largest):
    def numbers(protocol):
        def claimed():
            problem, plan, _ = largest(protocol)
            return protocol.event(problem, plan).sensitivity

        return Numbers(claimed, lambda: largest(protocol)[2])

    return Fault(change, LEAK, "sensitivity", numbers(faulty), numbers(right))


SILENT = {"noise_std": 1.0, "step_size": 0.1}
BRUTE = {
    "G for S": moved(
        "S taken as G instead of G + 2LD", messages.GradientsOnly(**SILENT), DPMu2(**SILENT), largest_increment
    ),
    "clipped a little above": moved(
        "clipped where the norm is above 1.05 C",
        messages.ClippedAbove(clip=CLIP, **SILENT),
        NoisySGD(clip=CLIP, **SILENT),
        largest_gradient,
    ),
    "clipped by coordinate": moved(
        "coordinates clipped, the norm accounted for",
        messages.ClippedByCoordinate(clip=CLIP / 2, **SILENT),
        NoisySGD(clip=CLIP / 2, **SILENT),
        largest_gradient,
    ),
}


def accounted(change, numbers, faulty, right):
    def of(one):
        return Numbers(lambda: numbers(one)[0], lambda: numbers(one)[1])

    return Fault(change, LEAK, "accountant", of(faulty), of(right))


ACCOUNTED = {
    "exposure above 1": accounted(
        "a budget spread with exposure above 1, calibrated as if it were 1",
        of_messages,
        noise.OverSpent(**TARGET),
        DPMu2(**TARGET),
    ),
    "δ in every round": accounted("δ used whole in every round", of_each_round, True, False),
    "another sampler's": accounted(
        "samples with replacement counted as subsets", of_sampler, Subset(5), Replacement(5)
    ),
    "a rule believed": accounted("the claim of the rule paper_moments", of_rule, "paper_moments", "accountant"),
    "half of it for the whole": accounted(
        "each of two halves of the noise taken for all of it", of_halves, noise.OneHalf, UserSGD
    ),
}

# ---- the contract


def held(change, kind, faulty, right, fails, problem=POOL):
    return Fault(change, kind, "contract", Held(faulty, fails, problem), Held(right, fails, problem))


SHUFFLED = {"noise_std": 0.4, "batch": 1, "trust": "shuffler", "step_size": 0.7}
SEEN, NOISY = "seen as the trust model says", "the noise has its law"
CONTRACT = {
    "senders named": held(
        "a shuffler keeps the order of senders",
        LEAK,
        messages.SendersNamed(**SHUFFLED),
        NoisyMinibatchSGD(**SHUFFLED),
        SEEN,
        SHARES,
    ),
    "no noise on messages": held(
        "noise in the aggregate alone", LEAK, messages.OwnNoiseForgotten(**TARGET), NoisySGD(**TARGET), SEEN
    ),
    "a quiet trajectory": held(
        "4/5 of the noise in the aggregate", LAW, noise.QuietTrajectory(**TARGET), DPMu2(**TARGET), NOISY
    ),
}

FAULTS = {**AUDITS, **LAWS, **BRUTE, **ACCOUNTED, **CONTRACT}
