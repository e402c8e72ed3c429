"""Statement of a guarantee besides its parameters: unit, relation, trust model, theorem and assumptions."""

from dataclasses import dataclass, field
from typing import Any

from fedprivjax.checks.values import require_choice
from fedprivjax.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE
from fedprivjax.privacy.rounding import up

TRUST = {
    "none": "every message a machine sends (no trusted server)",
    "shuffler": "every round's messages without their senders (a trusted shuffler)",
    "pan-private": "the query points, and once the server's memory, at a round of the intruder's choice",
    "server": "the query points that other machines see (trusted server)",
}
RECORD, MACHINE = "one record of one machine", "all records of one machine"

SENTENCES = {
    "used once": "each record is used once",
    "public participation": "participation is public and independent of the data",
    "late answers": "delays and staleness weights of answers are public and independent of the data, too",
    "secret participation": "who takes part in a round is secret, and so is their number ({scheme}); the times of a "
    "run depend on it and are not covered",
    "width of cohorts": "a round has more machines than there is room for with probability {cut}, which is added "
    "to δ for each of {rounds} rounds",
    "personal parts": "what a client keeps for itself is seen by this client alone: joint differential privacy",
    "public rate": "the probability {rate:.4g} of a record and the divisor {batch} of a sum are public constants",
    "noise of the schedule": "the noise is fixed for the public schedule that was drawn, and may be too little for "
    "another",
    "noise of schedules": "the noise is enough for every public schedule in which a machine takes part in at most "
    "{uses} rounds, at least {separation} rounds apart; the one that was drawn was checked",
    "groups in turn": "the {groups} groups of machines are public, were fixed before the data were seen, and are "
    "sampled in turn",
    "public machines": "the number of machines, {machines}, is a public constant: a machine that is left out "
    "sends zeros",
    "public sizes": "each machine's number of records is public, which only replace-one allows",
    "public steps": "the largest number of a machine's local steps in a round is a public constant",
    "public work": "each machine's number of local steps is a public constant, fixed before the data were seen",
    "public order": "the order in which records are used is public and independent of the data",
    "secret samples": "which records are used is secret",
    "group samples": "the {size} members of a group are sampled independently of each other",
    "lipschitz": "losses are {constant:.4g}-Lipschitz{note}",
    "machine lipschitz": "machines' losses are Lipschitz with the given constants, {least:.4g} to {most:.4g}",
    "lipschitz and smooth": "losses are {constant:.4g}-Lipschitz{note} and {smoothness:.4g}-smooth on a set of "
    "diameter {diameter:.4g}",
    "fresh batches": "every message is a mean over {batch} records, each bounded separately and in no other message",
    "clipped increments": "each machine clips its increments to norm {bound:.4g}; no convergence theorem is claimed",
    "clipped gradients": "each gradient is clipped to norm {bound:.4g}",
    "clipped records": "every record's gradient is clipped to norm {bound:.4g}",
    "of a record": "in place of a gradient, a message is the function {function} of a record, which the clip bounds",
    "clipped messages": "every message is clipped as a whole to norm {bound:.4g}: a record may move it by twice that",
    "clipped updates": "every machine's update is clipped to norm {bound:.4g}",
    "adaptive clip": "every machine's update is clipped to a public norm that is computed from noisy counts, and the "
    "noise is a multiple of it",
    "encoded updates": "every message is encoded before the server's noise, to norm at most {bound:.4g}",
    "integers": "messages are {numbers} integers modulo 2^{bits}, public numbers times {scale:.4g}, of norm at most "
    "{norm:.4g} before the noise",
    "sampler": "samples of the {of} distribution in floating point count as exact",
    "rounded products": "norms count as clipped although an accelerator rounds factors of products to 10 bits, which "
    "may increase them by 0.1%",
    "rescaled messages": "messages are scaled by another batch's norm: no bound holds",
    "honest but curious": "an honest-but-curious server, which sends the protocol's own query points",
    "not covered": "hyper-parameters and data preparation are not covered",
    "not covered data": "these are taken as public and not covered, although they follow from private records: {parts}",
    "noise of others": "every other machine{besides} adds its noise to its messages, also a machine without data",
    "pairwise noise": "neighbours on a public graph ({graph}) share a secret seed of noise of {shared:.4g} times a "
    "machine's own, which one adds and the other subtracts; noise shared with a machine that drops out is not counted",
    "honest users": "at least {users} users of every round add their own noise",
    "rounded normals": "binomial sums are approximated by rounded normals, within {distance} in total variation "
    "over all rounds, up to a shift of less than one level",
    "private seed": "the seed is secret: all noise follows from it",
    "independent runs": "the noise and the samples of the runs are independent: no two runs have the same seed",
    "planned runs": "the number of runs and their privacy parameters depend neither on the data nor on earlier runs",
    "disjoint records": "{first} no record in common with the rest, and which runs may use a record is fixed by a "
    "public rule that ignores the records' values",
    "same machines": "a record is on the machine of the same number in every run",
    "one intrusion": "an intruder reads the server's memory once, at a time of their choice",
    "stated by": "the mechanism is as stated by {source}, which the package does not prove",
    "stated": "{text}",
}


@dataclass(frozen=True)
class Assumption:
    """One assumption of a guarantee, which prints as a sentence.

    Attributes:
        name: key of the sentence in the dictionary `fedprivjax.privacy.terms.SENTENCES`. For example, "clipped
            gradients" is the sentence "each gradient is clipped to norm {bound:.4g}". For a sentence in other words,
            use the name "stated" and put the sentence in `values`, as `{"text": "…"}`.
        values: numbers and texts that are inserted in the sentence, by the names in its braces.
        runs: numbers, from 1, of the composed runs that the assumption is about. Empty if it is about all runs.

    >>> print(Assumption("clipped gradients", {"bound": 0.5}))
    each gradient is clipped to norm 0.5
    >>> print(Assumption("secret samples", runs=(2,)))
    run 2: which records are used is secret
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict, hash=False)
    runs: tuple[int, ...] = ()

    def __post_init__(self):
        require_choice("assumption", self.name, SENTENCES)
        object.__setattr__(self, "runs", tuple(self.runs))

    def __str__(self) -> str:
        runs = f"run{'s' * (len(self.runs) > 1)} {', '.join(map(str, self.runs))}: " if self.runs else ""
        return runs + SENTENCES[self.name].format(**{name: _text(name, value) for name, value in self.values.items()})

    def as_mapping(self) -> dict[str, Any]:
        """Return the assumption as a mapping that JSON can store: its name, values and runs."""
        return {"name": self.name, "values": self.values, **({"runs": list(self.runs)} if self.runs else {})}


def _text(name: str, value: Any) -> Any:
    """Return a value in a sentence: a number of first runs as subject and verb, a part of δ rounded up."""
    if name in PARTS_OF_DELTA:
        return up(value, 2)
    if name != "first":
        return value
    return "the first of these runs has" if value == 1 else f"the first {value} of these runs have"


PARTS_OF_DELTA = "cut", "distance"  # values of sentences
OPTIONAL = "composed", "adversary", "sees"  # terms that a file leaves out if they are empty
PUBLIC_PARTICIPATION = Assumption("public participation")
PRIVATE_SEED = Assumption("private seed")
USED_ONCE = Assumption("used once"), PUBLIC_PARTICIPATION


def lipschitz_values(problem) -> dict[str, Any]:
    """Return the values of the assumption "lipschitz" for a problem."""
    note = f" ({problem.lipschitz_note})" if problem.lipschitz_note else ""
    return {"constant": float(problem.lipschitz), "note": note}


@dataclass(frozen=True)
class Terms:
    """Everything that a guarantee states besides its numbers, such as the protected unit and the trust model.

    Attributes:
        trust: trust model: "none" (no trusted server), "shuffler", "pan-private" or "server".
        theorem: theorem that proves the guarantee, with its source.
        assumptions: assumptions of the guarantee.
        unit: protected unit, in which neighbouring datasets differ, such as "one record of one machine".
        relation: neighbouring relation: "replace-one" (one unit is replaced) or "add-or-remove-one".
        composed: theorem of each run, in order, if several runs are composed. Otherwise empty.
        adversary: name of the adversary with its settings. Empty for the default adversary of the trust model.
        sees: text that says what this adversary sees.

    >>> Terms(trust="server", theorem="Gaussian mechanism").unit
    'one record of one machine'
    """

    trust: str
    theorem: str
    assumptions: tuple[Assumption, ...] = ()
    unit: str = RECORD
    relation: str = REPLACE_ONE
    composed: tuple[str, ...] = ()
    adversary: str = ""
    sees: str = ""

    def __post_init__(self):
        require_choice("trust", self.trust, TRUST)
        require_choice("relation", self.relation, RELATIONS)
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        object.__setattr__(self, "composed", tuple(self.composed))

    @property
    def covers(self) -> str:
        """Text that says what the adversary sees, against which the guarantee holds."""
        return self.sees or TRUST[self.trust]

    @property
    def against(self) -> str:
        """Trust model as text, followed by the adversary unless it is the default one of this trust model.

        >>> Terms("none", "a theorem", adversary="secure-sum", sees="sums").against
        'none, against secure-sum'
        """
        return f"{self.trust}, against {self.adversary}" if self.adversary else self.trust

    @property
    def stated_relation(self) -> str:
        """Neighbouring relation as text. It ends in "(zero-out)" if whole machines are added or removed.

        In this case the number of machines is public: a removed machine still counts, with messages of zeros.

        >>> Terms("server", "a theorem", unit=MACHINE, relation=ADD_OR_REMOVE).stated_relation
        'add-or-remove-one (zero-out)'
        """
        return f"{self.relation} (zero-out)" if self.zeroes else self.relation

    @property
    def zeroes(self) -> bool:
        """True if neighbouring datasets add or remove whole machines, and yet the number of machines is public.

        A removed machine still counts, with messages of zeros.
        """
        return self.unit.endswith(MACHINE) and self.relation == ADD_OR_REMOVE

    @property
    def same_sizes(self) -> bool:
        """True if any two neighbouring datasets have the same machines, each with the same number of records."""
        return self.unit.endswith(RECORD) and self.relation == REPLACE_ONE

    @property
    def hides_sizes(self) -> bool:
        """True if the guarantee hides machines' numbers of records: neighbouring datasets may differ in them.

        It is False if an assumption says that these numbers are public.
        """
        return not self.same_sizes and not any(one.name == "public sizes" for one in self.assumptions)

    def as_mapping(self) -> dict[str, Any]:
        """Return the terms as a mapping that JSON can store."""
        stated = {name: value for name, value in vars(self).items() if value or name not in OPTIONAL}
        return {**stated, "assumptions": [one.as_mapping() for one in self.assumptions]}

    @classmethod
    def from_mapping(cls, mapping) -> "Terms":
        """Return the terms that `as_mapping` saved."""
        assumptions = tuple(Assumption(**one) for one in mapping["assumptions"])
        _ = [str(one) for one in assumptions]  # raises unless the values fit the sentence
        return cls(**{**mapping, "assumptions": assumptions})
