"""Catalogue of the planted faults of all detectors.

A *leak* reveals more to an adversary than claimed. A *noise fault* changes the noise, with or without a leak.
"""

from dataclasses import replace

import jax
import numpy as np
from cases import POOL, SHARES
from faults import clients, messages, noise
from faults.claims import (
    largest_gradient,
    largest_increment,
    largest_pair,
    largest_release,
    of_bits,
    of_each_round,
    of_epochs,
    of_halves,
    of_infinite_losses,
    of_messages,
    of_rule,
    of_sampler,
    of_server,
    of_steps,
    of_sums,
    of_supports,
)
from faults.federations import CLIP, TARGET
from faults.leaks import AUDITS, ENCODED
from faults.row import LEAK, NOISE, Drawn, Fault, Held, Numbers
from neighbours import KEY
from noise_distributions import SAMPLES, factor_path, path, standing_covariance, tree_covariance
from restating import planted

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    FedAvg,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    ReducedTreeMomentum,
    Scaffold,
    TreeMomentum,
    Uniform,
    draw_plan,
    linear_problem,
)
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.encoders import Quantiser
from fedprivjax.method.private_mean import GaussianMean
from fedprivjax.method.round import flat_rows
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.noise import Fresh, choose
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.plan.samplers import LocalEpochs, Replacement, Subset
from fedprivjax.privacy.accountants.binomial.vector import mass_outside
from fedprivjax.privacy.accountants.dp_accounting_backend import symmetric_grid
from fedprivjax.privacy.calibration import calibrate

# ---- distributions of noise

ROUNDS, ALPHA = 12, 0.2
SCHEDULE = Uniform(5, 2).draw(ROUNDS, np.random.default_rng(9))
STANDARD = np.random.default_rng(1).uniform(0.5, 2.0, SCHEDULE.participants.shape)
STEPS = (3, 4)  # machines, and local steps of each
STANDING = choose(SCHEDULE, STANDARD, 1, "materialised", cancel=True)
SERVERS = np.linspace(0.5, 2.0, ROUNDS).astype(np.float32)


def drawn(change, kind, faulty, right, covariance):
    return Fault(change, kind, "distribution", Drawn(faulty, covariance), Drawn(right, covariance))


def cancelling(change, mechanism):
    covariance = standing_covariance(STANDARD, SCHEDULE)
    wrong = mechanism(STANDING.inputs, STANDING.machines)
    return drawn(change, NOISE, lambda: path(wrong), lambda: path(STANDING), covariance)


def of_tree(change, kind, factor, right=Tree()):  # noqa: B008
    def noise(one):
        return lambda: factor_path(one, ROUNDS, ALPHA)

    return drawn(change, kind, noise(factor), noise(right), tree_covariance(ROUNDS, ALPHA, right.restart))


def of_walks(protocol):
    """Return the end points of local steps of noise alone, for three machines and four steps: [machines, numbers]."""
    problem = linear_problem(np.zeros((*STEPS, SAMPLES)), np.zeros(STEPS, int), Logistic())
    plan = draw_plan(problem, Full(STEPS[0]), 1, sampler=protocol.minibatches)
    at = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    state = protocol.init(problem, plan.size, KEY)
    noise = protocol.noise((), (KEY, np.ones(STEPS[0], np.float32)), None)[1]
    return flat_rows(problem, protocol.rounds.messages(problem, state, at, noise, KEY))


def walked(change, faulty, right):
    covariance = STEPS[1] * np.eye(STEPS[0])
    return drawn(change, LEAK, lambda: of_walks(faulty), lambda: of_walks(right), covariance)


ADAPTIVE = {"local_epochs": 1, "step_size": 1.0, "unit": "machine", "noise_std": 2.0}
COUNT_NOISE = 3.0


def of_counts(change):
    """Return the noise in the sum of the bits, as the change of an adaptive clip shows it: [1, samples]."""
    protocol = change(FedAvg(update_clip=AdaptiveClip(start=CLIP, count_noise=COUNT_NOISE), **ADAPTIVE))
    problem = linear_problem(np.zeros((3, 1, 1)), np.zeros((3, 1), int), Logistic())
    plan = draw_plan(problem, Full(3), 1, sampler=protocol.minibatches)
    ready = calibrate(protocol, problem, plan)
    at, state = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan)), ready.init(problem, plan.size, KEY)

    def one(drawn):
        noise = ready.noise((), drawn, None)[1]
        after = ready.rounds.serve(problem, state.server, (np.zeros(1), 0.0), 3.0, at, noise, KEY)
        return -3 / ready.privacy.update_clip.rate * jax.numpy.log(after.clip / state.server.clip)

    return np.asarray(jax.vmap(one)(jax.random.normal(KEY, (SAMPLES, 2))), np.float64)[None]


WALK = {"noise_std": 1.0, "step_size": 1.0, "clip": CLIP, "batch": STEPS[1], "sampler": "disjoint"}
QUIET = {**clients.RECORD, "noise_std": 1.0}  # two steps
DISTRIBUTIONS = {
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
    "nodes drawn anew": of_tree("a node's noise is drawn anew at each use", NOISE, noise.NodesDrawnAnew()),
    "nothing stays": of_tree(
        "a finished tree's noise is dropped", LEAK, noise.NothingStays(restart=4), Tree(restart=4)
    ),
    "a level missing": of_tree("nodes of two rounds have no noise", LEAK, noise.WithoutALevel()),
    "one key of local steps": walked(
        "a round's key in every local step", planted(LocalSGD(**WALK), noise.ONE_KEY_OF_STEPS), LocalSGD(**WALK)
    ),
    "one order of epochs": drawn(
        "the order of the first round's local epochs in all rounds",
        NOISE,
        lambda: clients.places(clients.OneOrder(1, 1), SAMPLES),
        lambda: clients.places(LocalEpochs(1, 1), SAMPLES),
        np.eye(3),
    ),
    "one key of a machine and its encoder": drawn(
        "an encoder with the key of the machine's noise",
        NOISE,
        lambda: clients.keys_of_encoders(clients.key_of_the_client, SAMPLES),
        lambda: clients.keys_of_encoders(jax.random.fold_in, SAMPLES),
        np.eye(2),
    ),
    "a bit without noise": drawn(
        "the count that adapts the clip has no noise",
        LEAK,
        lambda: of_counts(lambda method: planted(method, messages.BIT_WITHOUT_NOISE)),
        lambda: of_counts(lambda method: method),
        np.full((1, 1), COUNT_NOISE**2),
    ),
    "a control without noise": drawn(
        "a control variate sent without noise",
        LEAK,
        lambda: clients.controls(clients.QUIET_CONTROL(**QUIET), SAMPLES),
        lambda: clients.controls(Scaffold(**QUIET), SAMPLES),
        np.eye(3) / 2,
    ),
}


def moved(change, faulty, right, largest):
    def numbers(protocol):
        def claimed():
            problem, plan, _ = largest(protocol)
            return calibrate(protocol, problem, plan).event(problem, plan).sensitivity

        return Numbers(claimed, lambda: largest(protocol)[2])

    return Fault(change, LEAK, "sensitivity", numbers(faulty), numbers(right))


def adaptive(change, faulty):
    faulty, right = (FedAvg(update_clip=kind(start=CLIP), **ADAPTIVE) for kind in (faulty, AdaptiveClip))
    return moved(change, faulty, right, largest_pair)


SILENT = {"noise_std": 1.0, "step_size": 0.1}
SUMMED = {**SILENT, "clip": CLIP, "trust": "server"}
BRUTE = {
    "G for S": moved(
        "S taken as G instead of G + 2LD",
        planted(DPMu2(**SILENT), messages.GRADIENTS_ONLY),
        DPMu2(**SILENT),
        largest_increment,
    ),
    "clipped a little above": moved(
        "clipped where the norm is above 1.05 C",
        planted(NoisySGD(clip=CLIP, **SILENT), messages.CLIPPED_ABOVE),
        NoisySGD(clip=CLIP, **SILENT),
        largest_gradient,
    ),
    "clipped by coordinate": moved(
        "coordinates clipped, the norm accounted for",
        planted(NoisySGD(clip=CLIP / 2, **SILENT), messages.CLIPPED_BY_COORDINATE),
        NoisySGD(clip=CLIP / 2, **SILENT),
        largest_gradient,
    ),
    "slots counted": moved(
        "a server's sum over the slots of a round, where fewer machines come",
        planted(DPMu2(**SUMMED), messages.SLOTS_COUNTED),
        DPMu2(**SUMMED),
        largest_release(lambda state: state.memory.q),
    ),
    "a round's own number": moved(
        "a server's sum over those who come, accounted for over their mean number",
        planted(TreeMomentum(alpha=0.5, **SUMMED), messages.OWN_NUMBER),
        TreeMomentum(alpha=0.5, **SUMMED),
        largest_release(lambda state: state.memory.momentum),
    ),
    "z for z_Δ": adaptive(
        "the updates' noise multiplier is that of the pair with the bits", messages.MultiplierOfUpdates
    ),
    "noise of the first clip": adaptive(
        "the same noise in all rounds under an adaptive clip", messages.NoiseOfTheFirstClip
    ),
}


def of_clients(change, numbers, faulty, right):
    def of(one):
        return Numbers(lambda: numbers(one)[0], lambda: numbers(one)[1])

    return Fault(change, LEAK, "sensitivity", of(faulty), of(right))


UPDATES = {**clients.MACHINE, "noise_std": 1e-9}
BRUTE |= {
    "a machine's C for 2C": of_clients(
        "a replaced machine is said to move its update by C",
        clients.largest_update,
        planted(FedAvg(**UPDATES), clients.HALF_THE_MOVE),
        FedAvg(**UPDATES),
    ),
    "the cohort's own number": of_clients(
        "clipped updates divided by the number of machines that came, accounted for over their mean number",
        clients.largest_update,
        planted(FedAvg(**UPDATES), clients.OWN_COHORT),
        FedAvg(**UPDATES),
    ),
    "the last batch's own length": of_clients(
        "the last batch of an epoch divided by its own length",
        clients.largest_step,
        planted(FedAvg(**clients.RECORD), clients.OWN_LENGTH),
        FedAvg(**clients.RECORD),
    ),
}


def accounted(change, numbers, faulty, right):
    def of(one):
        return Numbers(lambda: numbers(one)[0], lambda: numbers(one)[1])

    return Fault(change, LEAK, "accountant", of(faulty), of(right))


def whole_epochs(problem, plan):
    """Return the plan with the number of a machine's epochs rounded down."""
    return replace(plan, planned_uses=plan.schedule.total // problem.partition_table.sizes)


FACTORED = {**SILENT, "clip": CLIP, "noise_schedule": ((0.5, 0.0, 0.0), (0.2, 0.9, 0.0), (0.1, 0.3, 0.8))}
DRIFTING = {"noise_std": 1.0, "batch": 9, "alpha": 0.5, "reset_rate": 0.25, "step_size": 0.02, "step_scale": 5.0}
ACCOUNTED = {
    "exposure above 1": accounted(
        "a budget spread with exposure above 1, calibrated as if it were 1",
        of_messages,
        planted(DPMu2(**TARGET), noise.OVER_SPENT),
        DPMu2(**TARGET),
    ),
    "δ in every round": accounted("δ used whole in every round", of_each_round, True, False),
    "another sampler's": accounted(
        "samples with replacement counted as subsets", of_sampler, Subset(5), Replacement(5)
    ),
    "a rule believed": accounted("the claim of the rule paper_moments", of_rule, "paper_moments", "accountant"),
    "half of it for the whole": accounted(
        "each of two halves of the noise taken for all of it",
        of_halves,
        lambda method: planted(method, noise.ONE_HALF),
        lambda method: method,
    ),
    "the first message's norm": accounted(
        "correlated noise for the norm of the factor's first column",
        of_sums,
        planted(DPMu2(**FACTORED), noise.OF_THE_FIRST_MESSAGE),
        DPMu2(**FACTORED),
    ),
    "a step without its factor": accounted(
        "drift accounted for without the factor on the step",
        of_steps,
        noise.STEP_WITHOUT_ITS_FACTOR(**DRIFTING),
        ReducedTreeMomentum(**DRIFTING),
    ),
    "one release's support": accounted(
        "the probability outside the noise's support added to δ once instead of per release",
        of_supports,
        lambda *noise: mass_outside(*noise) / 4,
        mass_outside,
    ),
    "infinite losses dropped": accounted(
        "infinite losses left out of δ",
        of_infinite_losses,
        lambda loss: symmetric_grid(loss)._replace(infinite=0.0),
        symmetric_grid,
    ),
    "bits rounded down": accounted(
        "a larger cohort's share of the noise bits rounded down", of_bits, noise.floored_bits, BitMean._totals
    ),
    "epochs rounded down": accounted(
        "uses of a record over planned epochs rounded down", of_epochs, whole_epochs, lambda problem, plan: plan
    ),
    "noise of those who send": accounted(
        "a server's noise that shrinks with dropouts", of_server, noise.of_those_who_send, GaussianMean.mechanism
    ),
}

# ---- the contract


def held(change, kind, faulty, right, fails, problem=POOL):
    return Fault(change, kind, "contract", Held(faulty, fails, problem), Held(right, fails, problem))


SHUFFLED = {"noise_std": 0.4, "batch": 1, "trust": "shuffler", "step_size": 0.7}
SEEN, NOISY = "the view fits the trust model", "the noise has the stated distribution"
CONTRACT = {
    "senders named": held(
        "a shuffler keeps the order of senders",
        LEAK,
        planted(NoisyMinibatchSGD(**SHUFFLED), messages.SENDERS_NAMED),
        NoisyMinibatchSGD(**SHUFFLED),
        SEEN,
        SHARES,
    ),
    "no noise on messages": held(
        "noise in the aggregate alone",
        LEAK,
        planted(NoisySGD(**TARGET), messages.OWN_NOISE_FORGOTTEN),
        NoisySGD(**TARGET),
        SEEN,
    ),
    "random levels": held(
        "an encoder's random rounding said to lengthen no message",
        LEAK,
        FedAvg(encoder=messages.ShortLevels(1), **ENCODED),
        FedAvg(encoder=Quantiser(1), **ENCODED),
        "an encoder keeps its bound",
        SHARES,
    ),
    "random levels of a pair": held(
        "an encoder of a privacy object's said to lengthen no message",
        LEAK,
        clients.encoded_pair(messages.ShortLevels(1)),
        clients.encoded_pair(Quantiser(1)),
        "an encoder keeps its bound",
        SHARES,
    ),
    "a quiet trajectory": held(
        "4/5 of the noise in the aggregate",
        NOISE,
        planted(DPMu2(**TARGET), noise.QUIET_TRAJECTORY),
        DPMu2(**TARGET),
        NOISY,
    ),
}

FAULTS = {**AUDITS, **DISTRIBUTIONS, **BRUTE, **ACCOUNTED, **CONTRACT}
