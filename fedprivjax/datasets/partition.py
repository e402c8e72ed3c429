"""Partitions of a dataset's examples over machines. A partition is public only if the labels that it uses are."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords, require_at_least, require_choice, require_positive
from fedprivjax.problem.checks import numbers
from fedprivjax.problem.problem import Origin

KINDS = {
    "iid": "random permutation, cut into parts of equal or given sizes",
    "by_label": "each machine has equally many examples of each of a few classes",
    "dirichlet": "each class is divided in proportions sampled from a Dirichlet distribution",
    "shards": "sorted by label and cut into shards, a few per machine",
    "quantiles": "sorted by the target and cut into one part per machine",
    "by_value": "one machine per value of a label or a column",
}
BY_VALUES = ("by_label", "dirichlet", "shards", "quantiles")  # kinds by which one value moves other records
EMPTY = ("error", "drop", "keep")
SIZES = ("lognormal", "dirichlet")
SIZED = ("iid", "quantiles")  # kinds that accept sizes


class Parts(list[np.ndarray]):
    """Parts of a partition, one array of example indices per machine.

    Attributes:
        origin: how the parts follow from private values.
    """

    origin: Origin = Origin()


class PartitionTable(np.ndarray):
    """Partition table with the origin of its parts, which a `Problem` repeats in its results."""

    origin: Origin = Origin()

    def __array_finalize__(self, source):
        self.origin = getattr(source, "origin", Origin())


@known_keywords
def partition(
    labels,
    machines: int | None = None,
    *,
    kind: str = "iid",
    classes_per_machine: int = 2,
    alpha: float | None = None,
    shards_per_machine: int = 2,
    sizes: str | Sequence[float] | None = None,
    spread: float = 1.0,
    empty: str = "error",
    seed: int | np.random.Generator = 0,
) -> Parts:
    """Partition examples over machines. Each example goes to at most one machine.

    With all kinds except `iid` and `by_value`, a change of one record's label may move other records to other machines.
    No privacy guarantee covers this dependence. The returned list carries a text that says so.

    The kinds are:

    * `iid`: a random permutation of the examples, cut into equal parts, or into parts of given `sizes`. If the number
      of examples is not a multiple of the number of machines, the remaining examples are dropped.
    * `by_label`: every machine has equally many examples of each of exactly `classes_per_machine` classes. All machines
      have the same number of examples, which is as large as possible. Other examples are dropped.
    * `dirichlet`: each class is divided over the machines in proportions sampled from Dirichlet(alpha, …, alpha) (Hsu,
      Qi & Brown 2019). A machine may be empty.
    * `shards`: examples are sorted by label, and cut into machines·shards_per_machine shards. Sizes of shards differ by
      at most one. Every machine has `shards_per_machine` random shards (McMahan et al. 2017).
    * `quantiles`: examples are sorted by numeric label, and cut into one part per machine. The first machine has the
      lowest labels. Sizes differ by at most one, unless `sizes` are given.
    * `by_value`: there is one machine per distinct label, in sorted order.

    Args:
        labels: class or number of each example, shape [examples], or values of another column such as a region or an
            age.
        machines: number of machines. For kind `by_value`, leave it out, or give the number of distinct labels.
        kind: kind of partition.
        classes_per_machine: number of classes that a machine holds, for kind `by_label`.
        shards_per_machine: number of shards, for kind `shards`.
        spread: standard deviation of the logarithm of "lognormal" sizes.
        alpha: concentration of the Dirichlet distribution, required for kind `dirichlet` and for `sizes` "dirichlet".
        sizes: numbers of examples of the machines, for kinds `iid` and `quantiles`. None makes them equal. Other values
            are "lognormal", "dirichlet", or one number per machine. "lognormal" sizes are proportional to
            exp(spread·z_i) with standard normal z_i. "dirichlet" sizes have proportions from Dirichlet(alpha, …,
            alpha). If all given numbers are whole, they are numbers of examples. Otherwise, they are fractions of all
            examples, with a sum of at most 1.
        empty: treatment of machines without examples: "error" raises Refusal, "drop" removes them, "keep" keeps them.
        seed: seed of the partition, or a random generator.

    Returns:
        One array of example indices per machine.

    >>> parts = partition([0, 0, 1, 1, 2, 2], 3, kind="by_label", classes_per_machine=1)
    >>> sorted(sorted(part.tolist()) for part in parts)
    [[0, 1], [2, 3], [4, 5]]
    >>> [part.size for part in partition(np.zeros(100), 3, sizes=[0.5, 0.25, 0.125])]
    [50, 25, 12]
    """
    require_choice("kind", kind, KINDS)
    require_choice("empty", empty, EMPTY)
    if hasattr(labels, "labels"):
        raise Refusal(f"labels must be an array [examples], got a {type(labels).__name__}. Give its labels")
    if isinstance(seed, int | np.integer):
        require_at_least("seed", seed, 0)
    labels, rng = np.asarray(labels), np.random.default_rng(seed)
    if labels.ndim != 1:
        raise Refusal(f"labels must be [examples], got shape {labels.shape}")
    missing = np.flatnonzero([label is None or label != label for label in labels.tolist()])
    if missing.size and kind != "iid":
        raise Refusal(f"labels must be known for kind {kind!r}, got {labels[missing[0]]} at index {missing[0]}")
    if sizes is not None and kind not in SIZED:
        raise Refusal(f"sizes must go with kind {' or '.join(map(repr, SIZED))}, got kind {kind!r}")
    if alpha is not None and kind != "dirichlet" and not (isinstance(sizes, str) and sizes == "dirichlet"):
        raise Refusal(f"alpha must go with kind or sizes 'dirichlet', got kind {kind!r}. Leave it out")
    if kind == "by_value":
        return _parts(_by_value(labels, machines), Origin(machines="the machines, which are the values in the data"))
    require_at_least("machines", machines, 1)  # pyright: ignore[reportArgumentType]
    machines = int(machines or 0)
    if machines > labels.size:
        raise Refusal(f"machines must be at most examples ({labels.size}), got {machines}")
    counts = None if sizes is None else unequal_sizes(labels.size, machines, sizes, alpha, spread, rng)
    if kind == "iid":
        counts = np.full(machines, labels.size // machines) if counts is None else counts
        parts = _cut(rng.permutation(labels.size), counts)
    elif kind == "by_label":
        parts = _by_label(labels, machines, classes_per_machine, rng)
    elif kind == "shards":
        parts = _shards_of(labels, machines, shards_per_machine, rng)
    elif kind == "quantiles":
        parts = _quantiles(labels, machines, counts, rng)
    else:
        parts = _dirichlet(labels, machines, alpha, rng)
    by_values = f"which machine holds a record, a partition by private values ({kind})"
    return _parts(_occupied(parts, empty), Origin(by_values) if kind in BY_VALUES else Origin())


def _parts(parts: list[np.ndarray], origin: Origin) -> Parts:
    found = Parts(parts)
    found.origin = origin
    return found


def table_of(parts: list[np.ndarray], origin: Origin) -> np.ndarray:
    """Return the partition table of parts, [machines, max_records], with their origin."""
    return table(_parts(parts, origin))[0]


def table(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return a partition table: a padded array with one row of example indices per machine.

    If the partition depends on private values, such as labels, no privacy guarantee covers this dependence. If `parts`
    is the result of `partition`, the returned indices carry a text that states the dependence.

    Args:
        parts: one array of example indices per machine, such as the result of `partition`.

    Returns:
        A pair: the indices, int32 [machines, max_records], padded with −1, and each machine's number of examples, int32
        [machines].

    >>> rows, counts = table([np.array([4, 2]), np.array([7])])
    >>> rows.tolist(), counts.tolist()
    ([[4, 2], [7, -1]], [2, 1])
    """
    counts = np.array([len(part) for part in parts], np.int32)
    rows = np.full((len(parts), counts.max(initial=0)), -1, np.int32)
    rows[np.arange(rows.shape[1]) < counts[:, None]] = np.concatenate([*parts, np.array([], np.int32)])
    rows = rows.view(PartitionTable)
    rows.origin = getattr(parts, "origin", Origin())
    return rows, counts


def by_machine(machine_of, machines: int | None = None) -> list[np.ndarray]:
    """Return one array of example indices per machine, for data that are already partitioned.

    Args:
        machine_of: index of the machine that owns each example, int, shape [examples].
        machines: number of machines. None is the largest machine index plus one.

    >>> [part.tolist() for part in by_machine([1, 0, 1])]
    [[1], [0, 2]]
    """
    owner = np.asarray(machine_of)
    seen = int(owner.max(initial=-1)) + 1
    machines = seen if machines is None else machines
    if machines < seen:
        raise Refusal(f"machines must be at least {seen}, got {machines}")
    ends = np.cumsum(np.bincount(owner, minlength=machines))[:-1]
    return np.split(np.argsort(owner, kind="stable"), ends)


def unequal_sizes(
    examples: int,
    machines: int,
    sizes: str | Sequence[float],
    alpha: float | None,
    spread: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the number of examples of each machine, int, shape [machines].

    Random sizes use all examples, and are rounded by largest remainders.

    >>> unequal_sizes(10, 2, [3, 5], 0.5, 1.0, np.random.default_rng(0)).tolist()
    [3, 5]
    """
    if isinstance(sizes, str):
        require_choice("sizes", sizes, SIZES)
        require_positive("spread", spread)
        weights = np.exp(spread * rng.standard_normal(machines))
        shares = weights / weights.sum() if sizes == "lognormal" else rng.dirichlet(_concentrations(machines, alpha))
        counts = np.floor(examples * shares).astype(int)
        rest = np.argsort(counts - examples * shares, kind="stable")[: examples - counts.sum()]
        counts[rest] += 1
        return counts
    given = numbers("sizes", sizes)
    if given.shape != (machines,) or not np.isfinite(given).all() or (given < 0).any():
        raise Refusal(f"sizes must be a number that is not negative for each of {machines} machines, got {sizes!r}")
    whole = (given == np.floor(given)).all()
    if given.sum() > (examples if whole else 1 + 1e-9):
        most = f"{examples}, the examples" if whole else "1, as shares"
        raise Refusal(f"sizes must add up to at most {most}, got {given.sum():g}")
    return given.astype(int) if whole else np.floor(examples * given + 1e-9).astype(int)


def _cut(order: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Return consecutive parts of `order` with these numbers of examples."""
    ends = np.cumsum(counts)
    return np.split(order[: ends[-1]], ends[:-1])


def _occupied(parts: list[np.ndarray], empty: str) -> list[np.ndarray]:
    """Return the parts, without empty ones if `empty` is "drop". Raise Refusal for empty ones if it is "error"."""
    bare = [machine for machine, part in enumerate(parts) if not len(part)]
    if bare and empty == "error":
        more = f" and {len(bare) - 5} more" if len(bare) > 5 else ""
        raise Refusal(
            f"every machine must have an example, got none for machine{'s' * (len(bare) > 1)} "
            f'{", ".join(map(str, bare[:5]))}{more}: empty = "drop" leaves them out'
        )
    return [part for part in parts if len(part)] if empty == "drop" else parts


def _by_value(values: np.ndarray, machines: int | None) -> list[np.ndarray]:
    known, owner = np.unique(values, return_inverse=True)
    if machines not in (None, known.size):
        raise Refusal(f"machines must be {known.size}, one for each value, got {machines}")
    return by_machine(owner.reshape(-1))


def _sorted(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return example indices sorted by label, with equal labels in random order."""
    order = rng.permutation(labels.size)
    return order[np.argsort(labels[order], kind="stable")]


def _shards_of(labels: np.ndarray, machines: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    require_at_least("shards_per_machine", each, 1)
    if machines * each > labels.size:
        raise Refusal(f"shards_per_machine must be at most {labels.size // machines}, got {each}")
    shards = np.array_split(_sorted(labels, rng), machines * each)
    owned = rng.permutation(machines * each).reshape(machines, each)
    return [np.concatenate([shards[shard] for shard in row]) for row in owned]


def _quantiles(
    labels: np.ndarray, machines: int, counts: np.ndarray | None, rng: np.random.Generator
) -> list[np.ndarray]:
    if not np.issubdtype(labels.dtype, np.number):
        raise Refusal(f"labels must be numbers for kind 'quantiles', got {labels.dtype}")
    order = _sorted(labels, rng)
    return np.array_split(order, machines) if counts is None else _cut(order, counts)


def _by_label(labels: np.ndarray, machines: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    require_at_least("classes_per_machine", each, 1)
    classes, sizes = np.unique(labels, return_counts=True)
    if each > classes.size:
        raise Refusal(f"classes_per_machine must be at most the number of classes ({classes.size}), got {each}")
    shard = _largest_shard(sizes, machines, each)
    if not shard:
        raise Refusal(f"labels must have {machines * each} examples to share out by label, got {labels.size}")
    spare = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
    owners = _owners(_shards(sizes, shard, machines, each), machines, each, rng)
    parts = [np.concatenate([[spare[c].pop() for _ in range(shard)] for c in owned]) for owned in owners]
    return [parts[i] for i in rng.permutation(machines)]


def _largest_shard(sizes: np.ndarray, machines: int, each: int) -> int:
    """Return the largest q for which classes have machines·each shards of q examples, one per class and machine."""
    shards = range(1, int(sizes.sum()) // (machines * each) + 1)
    return bisect_left(shards, True, key=lambda size: np.minimum(sizes // size, machines).sum() < machines * each)


def _shards(sizes: np.ndarray, shard: int, machines: int, each: int) -> np.ndarray:
    """Return the number of shards of each class: all that it has, minus the excess, taken from the largest classes."""
    shards = np.minimum(sizes // shard, machines)
    for _ in range(shards.sum() - machines * each):
        shards[np.argmax(shards)] -= 1
    return shards


def _owners(shards: np.ndarray, machines: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each machine's classes, all distinct. Taking the fullest classes, ties at random, always succeeds."""
    left = shards.copy()
    owners = []
    for _ in range(machines):
        owned = np.lexsort((rng.random(left.size), -left))[:each]
        left[owned] -= 1
        owners.append(owned)
    return owners


def _concentrations(machines: int, alpha: float | None) -> np.ndarray:
    if alpha is None:
        raise Refusal("alpha must be given for a Dirichlet distribution, got none. Set it, for example to 0.5")
    require_positive("alpha", alpha)
    return np.full(machines, alpha)


def _dirichlet(labels: np.ndarray, machines: int, alpha: float | None, rng: np.random.Generator) -> list[np.ndarray]:
    concentrations = _concentrations(machines, alpha)
    dealt: list[list[np.ndarray]] = [[] for _ in range(machines)]
    for label in np.unique(labels):
        owned = rng.permutation(np.flatnonzero(labels == label))
        counts = rng.multinomial(owned.size, rng.dirichlet(concentrations))
        for machine, piece in enumerate(np.split(owned, np.cumsum(counts)[:-1])):
            dealt[machine].append(piece)
    return [rng.permutation(np.concatenate(pieces)) for pieces in dealt]
