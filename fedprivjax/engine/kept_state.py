"""States of machines after a run, such as personal models: returned with its results, and saved in a separate file.

They are private data of each machine, which no guarantee covers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.bounded_read import json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice
from fedprivjax.engine.packing import npz_of, packed, unpacked
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.local_rounds import ClientState
from fedprivjax.method.work_rounds import WorkRounds

OWN = "own.npz"
NAMES, MODEL, STRUCTURE = "clients", "model", "structure"  # arrays of the file besides the leaves
REPORTED, HELD, COMPUTED = "reported", "held", "computed"  # a client's model: reported point, its state, or other


def _not_stored(params: Any, own: Any) -> Any:
    raise Refusal("client must be left out for a saved run, which has no function for the client's model. Use run.own")


MODELS = {REPORTED: lambda params, own: params, HELD: lambda params, own: own, COMPUTED: _not_stored}


@dataclass(frozen=True, eq=False)
class Kept:
    """States of all machines after a run.

    Attributes:
        own: the states, a pytree of host arrays with leaves [machines, ...].
        clients: clients' names by machine, or empty if they have none.
        model: function `(params, own)` of the reported parameters and the state of one machine, which returns the
            parameters of the machine's model.
    """

    own: Any
    clients: tuple[str, ...]
    model: Callable[[Any, Any], Any]

    def of(self, params: Any, client: str | int) -> Any:
        """Return the parameters of a client's model, by name or index."""
        machines = len(jax.tree.leaves(self.own)[0])
        if isinstance(client, str) and self.clients:
            require_choice("client", client, self.clients)
            client = self.clients.index(client)
        if isinstance(client, bool) or not isinstance(client, int | np.integer) or not 0 <= client < machines:
            named = " or a name" * bool(self.clients)
            raise Refusal(f"client must be an index from 0 to {machines - 1}{named}, got {called(client)}")
        return self.model(params, jax.tree.map(lambda rows: rows[client], self.own))

    def writer(self, params: Any) -> Any:
        """Return a writer of the file. Containers other than dicts, lists and tuples become a list of their arrays."""
        try:
            structure, leaves = packed(self.own)
        except Refusal:
            structure, leaves = packed(jax.tree.leaves(self.own))
        one = jax.tree.map(lambda rows: rows[0], self.own)
        model = self.model(params, one)
        kind = REPORTED if model is params else HELD if model is one else COMPUTED
        texts = {STRUCTURE: json.dumps(structure), MODEL: kind, NAMES: list(self.clients)}
        return npz_of(leaves, **{name: np.array(text, str) for name, text in texts.items()})

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray]) -> "Kept":
        """Return the states in a file's arrays."""
        leaves = [arrays[name] for name in sorted(arrays) if name not in (NAMES, MODEL, STRUCTURE)]
        own = unpacked(json_value(str(arrays[STRUCTURE])), leaves)
        return cls(own, tuple(map(str, arrays[NAMES].tolist())), MODELS[str(arrays[MODEL])])


def keeps(start: ReadyRun) -> bool:
    """Return True if an algorithm of local work keeps a state at machines between rounds."""
    return isinstance(start.protocol.rounds, WorkRounds) and bool(start.costs.get("client_state_bytes"))


def of_carry(carry: Any) -> Any:
    """Return the states of machines in the carry of a run, or () if they keep none."""
    (state, *_), *_ = carry
    return state.own if isinstance(state, ClientState) else ()


def kept_of(start: ReadyRun, own: Any) -> Kept | None:
    """Return the states of machines after a run, on the host, or None if they keep none.

    Args:
        own: leaves [machines, ...], or [devices, machines of a device, ...] of a run on a mesh, or () for nothing.
    """
    if not jax.tree.leaves(own):
        return None
    machines, rounds = start.plan.size.machines, start.protocol.rounds

    def host(leaf: Any) -> np.ndarray:
        rows = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        rows = np.asarray(rows)
        return rows if start.static.mesh is None else rows.reshape(-1, *rows.shape[2:])[:machines]

    return Kept(jax.tree.map(host, own), start.problem.client_names, rounds.planned.personal)
