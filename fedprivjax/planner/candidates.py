"""Every protocol's uses that are planned: settings and rounds by its own theory, and the bound that goes with them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.method.interface import Protocol
from fedprivjax.method.theory_choices import TheoryChoices, require_choice_of
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.plan import Plan
from fedprivjax.planner import bounds
from fedprivjax.planner.bounds import Bound, Calibrated
from fedprivjax.planner.setting import MOST_USES, Setting
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import (
    AcceleratedMinibatchSGD,
    DPMu2,
    LocalSGD,
    NoisyMinibatchSGD,
    NoisySGD,
    ReducedTreeMomentum,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
)
from fedprivjax.theory import lowy_razaviyayn, reshef_levy
from fedprivjax.theory.cheu.batches import geometric_counts

LOCAL_STEPS = 10
SHARE = 10  # a machine's records over those of a secret subset
REDUCED_EPOCHS, MOST_EPOCHS = 4, 64  # of the tree methods: Theorem 9 needs 4, its own number is huge
PASSES = 40  # of a pilot over machines' records, where they are used again and again: what suits pictures
OF_RANDOM = "last"  # in place of an iterate that is drawn at random, which is reported for a theorem's sake
OTHERS = "other groups' code, whose noise is by published rules that do not give the ε that they claim"
REFUSED = {"released_minibatch_sgd": OTHERS, "released_local_sgd": OTHERS}


@dataclass(frozen=True)
class Draft:
    """A protocol before calibration, and the plan that it would run on.

    Attributes:
        settings: what the protocol is made of, beside its privacy target.
        note: what a person should know of the plan.
    """

    method: type
    settings: dict[str, Any]
    problem: Problem
    plan: Plan
    note: str = ""

    @property
    def protocol(self) -> Any:
        return self.method(**self.settings)


@dataclass(frozen=True)
class Use:
    """One way to use a protocol.

    Attributes:
        name: of the way; "" where there is one alone.
        drafts: what may be run in a setting; of several, the one with the least bound is taken.
        bound: of a calibrated run.
        passes: over machines' records in a pilot, of methods for which the theory's number, made for the worst case, is
            of little use; None is the plan's.
        iterate: of which a pilot shows the accuracy.
    """

    name: str
    drafts: Callable[[Setting], Iterator[Draft]]
    bound: Callable[[Calibrated], Bound]
    passes: int | None = None
    iterate: str = OUTPUT


def _single(method: type, *trusts: str, **settings: Any) -> Callable[[Setting], Iterator[Draft]]:
    """Messages of one record each, or of a batch that is given, every record once."""

    def drafts(s: Setting) -> Iterator[Draft]:
        own = {"trust": s.trust} if s.trust in trusts else {}
        if not own and "none" in trusts:
            own = {"trust": "none"}
        yield _of_pool(method, s, {**own, **settings})

    return drafts


def _stale(s: Setting) -> Iterator[Draft]:
    clip = reshef_levy.increment_bound(s.lipschitz, s.smoothness, s.diameter)
    yield _of_pool(StaleMomentum, s, {"clip": clip})


def _full_batches(method: type, theory: Callable[[Setting], int]) -> Callable[[Setting], Iterator[Draft]]:
    """All records of a machine in every message, for as many rounds as the theory says."""

    def drafts(s: Setting) -> Iterator[Draft]:
        rounds, note = _capped(s, theory(s) if s.rounds is None else s.rounds)
        yield _of_records(method, s, {"sampler": "full"}, rounds, note)

    return drafts


def _disjoint(method: type, **settings: Any) -> Callable[[Setting], Iterator[Draft]]:
    """Fresh records of a machine's own in every message, in batches of several sizes, unless one is given."""

    def drafts(s: Setting) -> Iterator[Draft]:
        batches = geometric_counts(s.samples, 2.0).tolist() if s.batch is None else [s.batch]
        for batch in batches:
            most = lowy_razaviyayn.one_pass_rounds(records=s.samples, batch=batch)
            rounds, note = _capped(s, most if s.rounds is None else s.rounds)
            if rounds <= most:
                yield _of_records(method, s, {"sampler": "disjoint", "batch": batch, **settings}, rounds, note)

    return drafts


def _local(s: Setting) -> Iterator[Draft]:
    batch = min(LOCAL_STEPS, s.samples) if s.batch is None else s.batch
    most = lowy_razaviyayn.one_pass_rounds(records=s.samples, batch=batch)
    rounds, note = _capped(s, most if s.rounds is None else s.rounds)
    step = s.diameter / (s.lipschitz * (rounds * batch) ** 0.5)
    note = "; ".join(filter(None, (note, "the step D/(G√(RK)) stands in: none is proved, and no noise hangs on it")))
    yield _of_records(LocalSGD, s, {"sampler": "disjoint", "batch": batch, "step_size": step}, rounds, note)


def _subsets(s: Setting) -> Iterator[Draft]:
    """Random records in every message, which nobody knows."""
    batch = max(1, s.samples // SHARE) if s.batch is None else s.batch
    rounds, note = _capped(s, _minibatch_rounds(s, batch) if s.rounds is None else s.rounds)
    yield _of_records(NoisyMinibatchSGD, s, {"sampler": "subset", "batch": batch}, rounds, note)


def _shuffled(s: Setting) -> Iterator[Draft]:
    if s.trust != "shuffler":
        raise Refusal(f"trust must be 'shuffler' for it, got {s.trust!r}")
    if s.batch not in (None, 1):
        raise Refusal(f"batch must be 1 behind a shuffler, got {s.batch}")
    rounds, note = _one_pass_rounds(s)
    settings = {"sampler": "subset", "batch": 1, "trust": "shuffler"}
    yield _of_records(NoisyMinibatchSGD, s, settings, rounds, note)


def _of_records(method: type, s: Setting, settings: dict[str, Any], rounds: int, note: str) -> Draft:
    sampler = method(**settings).minibatches
    return Draft(method, settings, s.split, s.outline(sampler, rounds), note)


def _of_pool(method: type, s: Setting, settings: dict[str, Any]) -> Draft:
    """One pass over a pool, in batches where one is given to a method that takes it."""
    batch = 1 if s.batch is None or "batch" not in {field.name for field in fields(method)} else s.batch
    rounds, note = _one_pass_rounds(s, batch)
    settings = settings if batch == 1 else {**settings, "batch": batch}
    return Draft(method, settings, s.problem, s.pool_plan(rounds, method(**settings).minibatches), note)


def _all_users(s: Setting) -> Iterator[Draft]:
    """P_GD: every user's one record in every round."""
    if not s.full or s.samples > 1:
        raise Refusal(
            f"per_round must be machines ({s.machines}) and samples 1, for all records in every round, "
            f"got {s.per_round} and {s.samples}"
        )
    trust: dict[str, Any] = {"trust": s.trust}
    rounds = _theory_rounds(UserSGD(**trust), s, s.problem) if s.rounds is None else s.rounds
    rounds, note = _capped(s, rounds)
    plan = draw_plan(s.owned, s.participation, rounds, s.seed, order="cyclic")
    yield Draft(UserSGD, trust, s.owned, plan, note)


def _momentum(method: Any, sampler: str, least: int) -> Callable[[Setting], Iterator[Draft]]:
    """Epochs over machines' own records, as many as theory says."""

    def drafts(s: Setting) -> Iterator[Draft]:
        trust = "server" if s.trust == "server" else "none"
        if trust == "none" and not s.full:
            raise Refusal(
                f"per_round must be machines ({s.machines}) where no server is trusted, for a machine's tree has a "
                f"leaf in every round, got {s.per_round}"
            )
        settings = {"trust": trust, "sampler": sampler, "batch": s.batch or 1}
        protocol = method(**settings)
        epoch = s.samples // settings["batch"]
        rounds, note = s.rounds, ""
        if rounds is None:
            rounds, note = _epochs(protocol, s, epoch, least)
        yield Draft(method, settings, s.owned, s.epochs(protocol.minibatches, rounds), note)

    return drafts


def _epochs(protocol: Any, s: Setting, epoch: int, least: int) -> tuple[int, str]:
    """The theory's rounds in whole epochs, within what is planned."""
    most = min(MOST_EPOCHS, MOST_USES // (s.per_round * s.samples))
    try:
        best = _theory_rounds(protocol, s, s.owned) // epoch
    except Refusal:
        best = 0  # the theorem would have less than an epoch
    epochs = max(least, min(best, most))
    return epochs * epoch, "" if epochs == best else f"{epochs} epochs, the theorem has {best or 'less than one'}"


def _theory_rounds(protocol: Protocol, s: Setting, problem: Problem) -> int:
    theory = protocol.theory_choices(problem) or TheoryChoices()
    return require_choice_of(theory.rounds, "rounds", protocol.name)(s.machines, s.target)


def _minibatch_rounds(s: Setting, batch: int | None = None) -> int:
    load = lowy_razaviyayn.bare_load(records=s.samples, epsilon=s.epsilon)
    batch = s.samples if batch is None else batch
    return lowy_razaviyayn.minibatch_rounds(bounds.isrl_constants(s), batch=batch, smoothness=s.smoothness, load=load)


def _accelerated_rounds(s: Setting) -> int:
    load = lowy_razaviyayn.bare_load(records=s.samples, epsilon=s.epsilon)
    settings = {"batch": s.samples, "smoothness": s.smoothness, "load": load}
    return lowy_razaviyayn.accelerated_rounds(bounds.isrl_constants(s), spread=0.0, **settings)


def _one_pass_rounds(s: Setting, batch: int = 1) -> tuple[int, str]:
    """One pass over all records, or the rounds that are given."""
    if batch > s.samples:
        raise Refusal(f"batch must be at most samples ({s.samples}), got {batch}")
    most = s.one_pass(batch)
    if s.rounds is not None and s.rounds > most:
        raise Refusal(f"rounds must be at most {most} for one pass of {batch * s.per_round} records, got {s.rounds}")
    return _capped(s, most if s.rounds is None else s.rounds, batch)


def _capped(s: Setting, rounds: int, batch: int = 1) -> tuple[int, str]:
    most = max(1, MOST_USES // (s.per_round * batch))
    return min(rounds, most), f"{most} of {rounds} rounds, more are not planned" if rounds > most else ""


METHODS = {
    "dp_mu2": (Use("", _single(DPMu2, "none", "server"), bounds.dp_mu2),),
    "noisy_sgd": (Use("", _single(NoisySGD, "none", "server", average=True), bounds.noisy_sgd),),
    "stale_momentum": (Use("", _stale, bounds.stale_momentum),),
    "noisy_minibatch_sgd": (
        Use("one pass", _disjoint(NoisyMinibatchSGD), bounds.noisy_minibatch_sgd),
        Use(
            "full batches",
            _full_batches(NoisyMinibatchSGD, _minibatch_rounds),
            bounds.noisy_minibatch_sgd,
            passes=PASSES,
        ),
        Use("secret subsets", _subsets, bounds.noisy_minibatch_sgd, passes=PASSES),
        Use("shuffled", _shuffled, bounds.noisy_minibatch_sgd),
    ),
    "accelerated_minibatch_sgd": (
        Use("one pass", _disjoint(AcceleratedMinibatchSGD), bounds.accelerated_minibatch_sgd),
        Use(
            "full batches",
            _full_batches(AcceleratedMinibatchSGD, _accelerated_rounds),
            bounds.accelerated_minibatch_sgd,
            passes=PASSES,
        ),
    ),
    "local_sgd": (Use("", _local, bounds.local_sgd),),
    "user_sgd": (
        Use("one pass", _single(UserSGD, "none", "server", "shuffler", "pan-private"), bounds.user_sgd),
        Use("all users", _all_users, bounds.user_sgd),
    ),
    "user_agd": (Use("", _single(UserAGD, "none", "server", "shuffler", "pan-private"), bounds.user_agd),),
    "tree_momentum": (Use("", _momentum(TreeMomentum, "reshuffled", 1), bounds.tree_momentum, iterate=OF_RANDOM),),
    "reduced_tree_momentum": (
        Use(
            "",
            _momentum(ReducedTreeMomentum, "cyclic", REDUCED_EPOCHS),
            bounds.reduced_tree_momentum,
            iterate=OF_RANDOM,
        ),
    ),
}
