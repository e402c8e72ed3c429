"""Reference values of accountants: 200 mechanisms with a lower and an upper bound on ε, as a CSV table.

Upper bounds are this package's accountants. Lower bounds are computed without them: by the formula of the Gaussian
profile, by sums over all outcomes, or by an explicit attack on a linear loss.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import product
from math import ceil, comb, exp, floor, inf, log, log10, sqrt
from pathlib import Path

import numpy as np
import scipy

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import TOML_BYTES, text_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import Poisson, Replacement, Sampler, Subset
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial.accountant import scalar_epsilon
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.dp_accounting_backend import LOWER
from fedprivjax.privacy.accountants.records import Shuffled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.pure import composed_epsilon
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE, vectors_changed

NAME = "accountants.csv"
DIGITS = 6  # significant digits of bounds; lower bounds are rounded down, upper bounds up
TOLERANCE = 1e-4  # relative difference of a bound from the file's


@dataclass(frozen=True)
class Mechanism:
    """One mechanism of the table of reference values (`accountants.csv`), which has bounds on ε.

    A setting that does not apply to a mechanism has its default value, such as `rate` = 0 without sampling.

    Attributes:
        mechanism: "gaussian", "poisson", "subset", "replacement", "tree", "matrix", "randomised-response", "binomial"
            or "shuffled-gaussian".
        relation: neighbouring relation, "replace-one" or "add-or-remove-one".
        noise: standard deviation of the Gaussian noise that is added to a sum of vectors, each of norm at most 1.
        level: ε₀ of one randomised response.
        rate: probability that a record is in a Poisson sample, or success probability of a binomial trial.
        records: number of records of a machine, or number of binomial trials.
        batch: number of records in a sample, or number of messages that are shuffled together.
        shift: change of a count if one record is replaced, for binomial noise on this count.
        releases: number of noisy outputs that are published.
        group: number of records in which neighbouring datasets differ.
        delta: δ at which ε is bounded.
    """

    mechanism: str
    relation: str = REPLACE_ONE
    noise: float = 0.0
    level: float = 0.0
    rate: float = 0.0
    records: int = 0
    batch: int = 0
    shift: int = 0
    releases: int = 1
    group: int = 1
    delta: float = 1e-5


COLUMNS = (*(field.name for field in fields(Mechanism)), "epsilon_lower", "epsilon_upper")


def mechanisms() -> Iterator[Mechanism]:
    """Yield the mechanisms of the table, in order."""
    both = REPLACE_ONE, ADD_OR_REMOVE
    for noise, releases, relation in product((1.0, 4.0, 20.0), (1, 10, 1000), both):
        yield Mechanism("gaussian", relation, noise, releases=releases)
    for relation, groups in zip(both, ((2, 4, 8), (2, 4, 8, 16)), strict=True):
        for group in groups:
            yield Mechanism("gaussian", relation, 20.0, releases=4, group=group, delta=1e-6)
    sampled = list(product(((1000, 10), (100, 10), (1000, 200)), (1.0, 2.5), (1, 100, 1000), (1e-5, 1e-8)))
    for (records, batch), noise, releases, delta in sampled:
        settings = {"noise": noise, "releases": releases, "delta": delta}
        for relation in both:
            yield Mechanism("poisson", relation, rate=batch / records, **settings)
        yield Mechanism("subset", records=records, batch=batch, **settings)
        yield Mechanism("replacement", records=records, batch=batch, **settings)
    for releases, noise in product((1, 8, 1024), (5.0, 20.0)):
        yield Mechanism("tree", noise=noise, releases=releases)
    for releases, noise in product((8, 1024), (5.0, 20.0)):
        yield Mechanism("matrix", noise=noise, releases=releases)
    for level, releases in product((0.1, 0.5, 2.0), (1, 10, 100)):
        yield Mechanism("randomised-response", level=level, releases=releases, delta=1e-6)
    for trials, shift, rate in product((1000, 100_000), (1, 10), (0.5, 0.25)):
        yield Mechanism("binomial", rate=rate, records=trials, shift=shift, delta=1e-6)
    for noise, batch in product((2.0, 5.0), (10_000, 1_000_000)):
        yield Mechanism("shuffled-gaussian", noise=noise, records=10, batch=batch, releases=10, delta=1e-6)


def bounds(one: Mechanism) -> tuple[float, float]:
    """Return (lower bound, upper bound) on the ε of a mechanism at its `delta`.

    The accountant of the package computes the upper bound. The lower bound is computed without this accountant, by an
    exact formula or by an attack.
    """
    if one.mechanism in SAMPLERS:
        releases = SampledReleases(
            SAMPLERS[one.mechanism](one), one.records or 1000, one.releases, one.delta, relation=one.relation
        )
        return attainable_epsilon(one.noise, releases), sampled_epsilon(one.noise, releases)
    if one.mechanism == "randomised-response":
        return _response(one), composed_epsilon(one.level, one.releases, one.delta)
    if one.mechanism == "binomial":
        return _binomial(one), scalar_epsilon(one.records, one.rate, one.shift, one.delta)
    if one.mechanism == "shuffled-gaussian":
        accountant = Shuffled(one.batch)
        machine = one.noise / 2, one.records, 1, one.releases
        results = accountant.accountant_results(*machine, delta=one.delta)
        lower = max(result.epsilon for result in results if result.kind == LOWER)
        return lower, accountant.epsilon(*machine, delta=one.delta)
    mu = one.group * vectors_changed(one.relation) * sqrt(_squares(one)) / one.noise
    return _searched(lambda epsilon: _gaussian_delta(epsilon, mu), one.delta), float(gdp.epsilon(mu, one.delta))


SAMPLERS: dict[str, Callable[[Mechanism], Sampler]] = {
    "poisson": lambda one: Poisson(1, rate=one.rate),
    "subset": lambda one: Subset(one.batch),
    "replacement": lambda one: Replacement(one.batch),
}


def _squares(one: Mechanism) -> float:
    """Return Σ c² over the releases that a record moves by c."""
    if one.mechanism == "tree":  # the leaf of the record, and every node above it
        return 1 + round(log(one.releases, 2))
    if one.mechanism == "matrix":  # first column of the square root of the matrix of prefix sums
        return sum((comb(2 * k, k) / 4**k) ** 2 for k in range(one.releases))
    return one.releases


def _gaussian_delta(epsilon: float, mu: float) -> float:
    normal = scipy.stats.norm
    return float(normal.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + normal.logcdf(-mu / 2 - epsilon / mu)))


def _response(one: Mechanism) -> float:
    """Return ε of randomised responses, by a sum over the number of lies."""
    lies = np.arange(one.releases + 1)
    lie = 1 / (1 + exp(one.level))
    chances = scipy.stats.binom.pmf(lies, one.releases, lie)
    losses = one.level * (one.releases - 2 * lies)
    return _searched(lambda epsilon: _stick(chances, losses, epsilon), one.delta)


def _binomial(one: Mechanism) -> float:
    """Return ε of a binomial and its shift, by a sum over all outcomes, the larger of both directions."""
    places = np.arange(one.records + one.shift + 1)
    logs = [scipy.stats.binom.logpmf(places - shift, one.records, one.rate) for shift in (0, one.shift)]

    def delta(epsilon: float) -> float:
        with np.errstate(invalid="ignore"):
            return max(
                _stick(np.exp(each), np.where(each > -inf, each - other, -inf), epsilon)
                for each, other in (logs, logs[::-1])
            )

    return _searched(delta, one.delta)


def _stick(chances: np.ndarray, losses: np.ndarray, epsilon: float) -> float:
    """Return `Σ p·(1 − e^{ε−l})` over losses l above ε."""
    above = losses > epsilon
    return float(np.sum(chances[above] * -np.expm1(epsilon - losses[above])))


def _searched(delta_at: Callable[[float], float], delta: float) -> float:
    """Return an ε just below the smallest one with δ(ε) at most δ, by bisection."""
    low, high = 0.0, 1.0
    if delta_at(0.0) <= delta:
        return 0.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return low * (1 - 1e-8)


def _rounded(value: float, towards: Callable[[float], float]) -> float:
    """Return a number with `DIGITS` significant digits."""
    if value == 0:
        return 0.0
    digits = DIGITS - 1 - floor(log10(value))
    return round(towards(value * 10.0**digits) / 10.0**digits, max(digits, 0))


def rows() -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table of reference values, `accountants.csv`.

    A row has the settings of a mechanism, a lower bound on its ε, and an upper bound on its ε. `COLUMNS` has the names.
    """
    for one in mechanisms():
        low, high = bounds(one)
        yield *asdict(one).values(), _rounded(low, floor), _rounded(high, ceil)


def write_accountants(folder: Path) -> Path:
    """Write `accountants.csv` to a folder, and return its path."""
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows())]
    path = folder / NAME
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def read_accountants(folder: Path) -> list[tuple[Mechanism, float, float]]:
    """Return every mechanism of the table in a folder, with its lower and upper bound on ε.

    Raises:
        Refusal: if the file is missing, or not the table.
    """
    path = folder / NAME
    try:
        header, *lines = text_of(path, TOML_BYTES).splitlines()
        if tuple(header.split(",")) != COLUMNS:
            raise ValueError("other columns")
        kinds = [type(field.default) if field.name != "mechanism" else str for field in fields(Mechanism)]
        found = []
        for line in lines:
            *settings, low, high = line.split(",")
            values = (kind(text) for kind, text in zip(kinds, settings, strict=True))
            found.append((Mechanism(*values), float(low), float(high)))  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} must hold accountants' values, got {error}. Run `fedprivjax vectors`") from None
    return found


def check_accountants(folder: Path) -> tuple[Path, list[str]]:
    """Compare the table with today's accountants. Return its path and a line for every difference."""
    stored = read_accountants(folder)
    if [one for one, *_ in stored] != list(mechanisms()):
        return folder / NAME, ["other mechanisms"]
    lines = []
    for number, (one, *old) in enumerate(stored, 1):
        new = bounds(one)
        if not np.allclose(old, new, rtol=TOLERANCE, atol=1e-9):
            lines.append(f"row {number} ({one.mechanism}): ε in {old} in the file, {list(new)} today")
    return folder / NAME, lines
