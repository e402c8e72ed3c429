"""Ways to split a data set's examples over machines. Splits are public only as far as the labels they look at are."""

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive

KINDS = ("iid", "by_label", "dirichlet")


def partition(
    labels,
    machines: int,
    *,
    kind: str = "iid",
    classes_per_machine: int = 2,
    alpha: float = 0.5,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Deal examples to machines, each example to at most one.

    * `iid`: a random permutation cut into equal parts; the remainder of examples/machines is dropped.
    * `by_label`: every machine owns equally many examples of each of exactly `classes_per_machine` classes, and all
      machines are of one size, the largest possible; what does not fit is dropped.
    * `dirichlet`: each class is dealt in proportions drawn from Dirichlet(alpha, …, alpha) (Hsu, Qi & Brown 2019); all
      examples are used, sizes differ, and a machine may be empty.

    Args:
        labels: [examples], one class each; `iid` uses their number only.
        machines: how many machines.
        alpha: the smaller, the fewer machines share a class.

    Returns:
        One array of example indices per machine.

    >>> parts = partition([0, 0, 1, 1, 2, 2], 3, kind="by_label", classes_per_machine=1, rng=np.random.default_rng(0))
    >>> sorted(sorted(part.tolist()) for part in parts)
    [[0, 1], [2, 3], [4, 5]]
    """
    labels = np.asarray(labels)
    require_choice("kind", kind, KINDS)
    require_at_least("machines", machines, 1)
    if labels.ndim != 1:
        raise Refusal(f"labels must be [examples], got shape {labels.shape}")
    if machines > labels.size:
        raise Refusal(f"machines must be at most examples ({labels.size}), got {machines}")
    if kind == "iid":
        each = labels.size // machines
        return list(rng.permutation(labels.size)[: each * machines].reshape(machines, each))
    if kind == "by_label":
        return _by_label(labels, machines, classes_per_machine, rng)
    require_positive("alpha", alpha)
    return _dirichlet(labels, machines, alpha, rng)


def table(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Parts as one rectangle.

    Returns:
        int32 [machines, largest], padded with −1, and the sizes, int32 [machines].

    >>> rows, counts = table([np.array([4, 2]), np.array([7])])
    >>> rows.tolist(), counts.tolist()
    ([[4, 2], [7, -1]], [2, 1])
    """
    counts = np.array([len(part) for part in parts], np.int32)
    rows = np.full((len(parts), counts.max(initial=0)), -1, np.int32)
    rows[np.arange(rows.shape[1]) < counts[:, None]] = np.concatenate([*parts, np.array([], np.int32)])
    return rows, counts


def by_machine(machine_of, machines: int | None = None) -> list[np.ndarray]:
    """The parts of data that comes already split, in the order of the examples.

    Args:
        machine_of: int [examples], each example's machine.
        machines: how many there are; the largest number seen, plus one, if None.

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
    """Largest q for which the classes hold machines·each shards of q examples, no class two for one machine."""
    low, high = 0, int(sizes.sum()) // (machines * each)
    while low < high:
        middle = (low + high + 1) // 2
        fits = np.minimum(sizes // middle, machines).sum() >= machines * each
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _shards(sizes: np.ndarray, shard: int, machines: int, each: int) -> np.ndarray:
    """How many shards each class gives: what it holds, less what is too much, taken from the most frequent."""
    shards = np.minimum(sizes // shard, machines)
    for _ in range(shards.sum() - machines * each):
        shards[np.argmax(shards)] -= 1
    return shards


def _owners(shards: np.ndarray, machines: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Each machine's classes, all different. Always taking the fullest classes, ties at random, never gets stuck."""
    left = shards.copy()
    owners = []
    for _ in range(machines):
        owned = np.lexsort((rng.random(left.size), -left))[:each]
        left[owned] -= 1
        owners.append(owned)
    return owners


def _dirichlet(labels: np.ndarray, machines: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    dealt: list[list[np.ndarray]] = [[] for _ in range(machines)]
    for label in np.unique(labels):
        owned = rng.permutation(np.flatnonzero(labels == label))
        counts = rng.multinomial(owned.size, rng.dirichlet(np.full(machines, alpha)))
        for machine, piece in enumerate(np.split(owned, np.cumsum(counts)[:-1])):
            dealt[machine].append(piece)
    return [rng.permutation(np.concatenate(pieces)) for pieces in dealt]
