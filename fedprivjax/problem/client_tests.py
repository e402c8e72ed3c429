"""Test sets of clients: the client of every test example."""

from typing import Any

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.devices import number_of


@struct.dataclass
class ClientTests:
    """Clients of the test examples.

    Attributes:
        of: client of every test example, int32, shape [tests].
        counts: number of test examples of every client, float32, shape [clients].
    """

    of: Any
    counts: Any


def client_tests(test_machine_of: Any, test: Any, table: Any) -> ClientTests | None:
    """Return the clients of the test examples, or None if they are not given.

    Args:
        test_machine_of: machine of every test example, int, shape [tests], or None.
        test: test examples, or None.
        table: partition `Table`, whose machines are the clients, or None for the largest index plus one.

    >>> client_tests([1, 0, 1], np.eye(3), None).counts.tolist()
    [1.0, 2.0]
    """
    if test_machine_of is None:
        return None
    if test is None:
        raise Refusal("test_machine_of must go with a test set, got no test set. Give test examples, or leave it out")
    owner = checked_owners(test_machine_of, number_of(test))
    machines = None if table is None else len(table.rows)
    if machines is not None and owner.max() >= machines:
        raise Refusal(f"test_machine_of must be at most {machines - 1}, for {machines} machines, got {owner.max()}")
    return ClientTests(owner, np.bincount(owner, minlength=machines or 0).astype(np.float32))


def checked_owners(test_machine_of: Any, tests: int) -> np.ndarray:
    """Return the machine of every test example as int32, shape [tests]. Raise Refusal unless it is one."""
    owner = np.asarray(test_machine_of)
    if owner.shape != (tests,) or not np.issubdtype(owner.dtype, np.integer):
        got = f"{owner.dtype} of shape {owner.shape}"
        raise Refusal(f"test_machine_of must be whole numbers of shape ({tests},), one a test example, got {got}")
    if owner.min() < 0:
        raise Refusal(f"test_machine_of must not be negative, got {owner.min()}")
    return owner.astype(np.int32)
