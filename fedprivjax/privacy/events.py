"""What a protocol does to privacy, as numbers: (sampled) Gaussian mechanisms composed over a machine's messages."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fedprivjax.plan.samplers import as_sampler
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.attainable import attainable_epsilon
from fedprivjax.privacy.accountants.sampled import sampled_epsilon
from fedprivjax.privacy.accountants.shuffled import shuffled_epsilon
from fedprivjax.privacy.guarantee import PrivacyGuarantee, RecordGuarantee


@dataclass(frozen=True, eq=False)
class SampledEvent:
    """Every machine releases Gaussian-noised means of records that a sampler picks anew each time.

    Attributes:
        sampler: how, see `fedprivjax.plan.samplers`.
        sensitivity: unit in which noise is given, see `epsilon`.
        shift: each machine's largest L2 change of one release by one replaced record that occurs once, over its
            relative noise, float64 [machines].
        records, batch: each machine's, int [machines].
        messages: releases of each machine, int [machines].
        whole_message: a message is clipped as a whole: it moves by the shift however often the record occurs.
        trust, theorem, assumptions, unit, relation: what is protected, against whom, and why.
    """

    sampler: str
    sensitivity: float
    shift: np.ndarray
    records: np.ndarray
    batch: np.ndarray
    messages: np.ndarray
    trust: str
    theorem: str
    assumptions: tuple[str, ...] = ()
    unit: str = "one record of one machine"
    relation: str = "replace-one"
    whole_message: bool = False

    def mu(self, ratio: np.ndarray) -> np.ndarray:
        """No GDP parameter is stated: NaN (infinite where there is no noise)."""
        return np.where(np.asarray(ratio, float) == 0, np.inf, np.nan)

    def epsilon(self, ratio: np.ndarray, delta: float) -> np.ndarray:
        """The worst machine's ε at δ where noise_std/sensitivity is `ratio`; infinite where that is 0."""
        flat = [self._each(float(value), delta, worst=True).max() for value in np.ravel(ratio)]
        return np.reshape(flat, np.shape(ratio))

    def per_machine(self, ratio: float, delta: float) -> np.ndarray:
        """Every machine's ε at δ, float64 [machines]: a rigorous upper bound."""
        return self._each(ratio, delta, worst=False)

    def _each(self, ratio: float, delta: float, *, worst: bool) -> np.ndarray:
        """Machines that differ in nothing are accounted for once, with `worst` at their largest number of messages."""
        result = np.zeros(self.shift.size)
        used = np.flatnonzero(self.messages)
        if ratio == 0 or not used.size:
            result[used] = np.inf
            return result
        with np.errstate(divide="ignore"):
            noise = ratio * self.sensitivity / self.shift
        # rounded down, so that settings which differ by an error of rounding are accounted for once
        noise = np.array([float(f"{value * (1 - 1e-8):.9g}") for value in noise])
        columns = np.stack([noise, self.records, self.batch, self.messages])[:, used]
        if worst:
            alike = np.unique(columns[:3], axis=1, return_inverse=True)[1].ravel()
            most = np.zeros(alike.max() + 1)
            np.maximum.at(most, alike, columns[3])
            columns[3] = most[alike]
        unique, which = np.unique(columns, axis=1, return_inverse=True)
        found = [self.account(z, n, batch, messages, delta) for z, n, batch, messages in unique.T]
        result[used] = np.array(found)[which.ravel()]
        return result

    def account(self, ratio: float, records: float, batch: float, messages: float, delta: float) -> float:
        """ε of one machine, at noise over shift."""
        return _sampled(self.sampler, self.whole_message, ratio, records, batch, messages, delta)

    def figures(self, ratio: float, delta: float) -> dict[str, float]:
        """ε at δ in figures: the worst machine's proved bound and what an adversary attains, and the median bound."""
        each = self.per_machine(ratio, delta)
        worst = int(np.argmax(each))
        least = np.inf
        if np.isfinite(each[worst]):
            sizes = self.records[worst], self.batch[worst], self.messages[worst]
            alone = ratio * self.sensitivity / self.shift[worst]
            least = _sampled(self.sampler, self.whole_message, alone, *sizes, delta, least=True)
        return {"ε (at least)": least, "ε (at most)": each[worst], "median ε": float(np.median(each))}

    def guarantee(self, noise_std: float, delta: float) -> RecordGuarantee:
        """The guarantee at this noise; noise_std = 0 is non-private."""
        return RecordGuarantee(
            per_machine=self.per_machine(noise_std / self.sensitivity, delta),
            delta=delta,
            unit=self.unit,
            relation=self.relation,
            trust=self.trust,
            theorem=self.theorem,
            assumptions=self.assumptions,
        )


@dataclass(frozen=True, eq=False)
class ShuffledEvent(SampledEvent):
    """A sampled event with one record a message, whose senders a trusted shuffler hides among `per_round`."""

    per_round: int = 1

    def account(self, ratio: float, records: float, batch: float, messages: float, delta: float) -> float:
        """ε of one machine, at noise over shift."""
        sizes = {"records": int(records), "per_round": self.per_round, "rounds": int(messages)}
        return shuffled_epsilon(2 * ratio, delta=delta, **sizes)

    def figures(self, ratio: float, delta: float) -> dict[str, float]:
        """ε at δ in figures: the worst machine's, what it is without the shuffler, and the median machine's."""
        each = self.per_machine(ratio, delta)
        in_sight = SampledEvent.per_machine(replace(self, per_round=1), ratio, delta)
        return {"ε (at most)": each.max(), "ε unshuffled": in_sight.max(), "median ε": float(np.median(each))}


@cache
def _sampled(
    sampler: str, whole: bool, ratio: float, records: float, batch: float, messages: float, delta: float, least=False
) -> float:
    # the accountant's noise multiplier is in units of L/K (of C), and a replaced record shifts a message by 2L/K (2C)
    account = attainable_epsilon if least else sampled_epsilon
    own, sizes = as_sampler(sampler, int(batch)), {"records": int(records), "rounds": int(messages)}
    return account(2 * ratio, sampler=own, delta=delta, whole_message=whole, **sizes)


@dataclass(frozen=True)
class GaussianEvent:
    """Every machine's messages are Gaussian mechanisms with noise fixed beforehand, so machine i is μ_i-GDP with
    `μ_i = sensitivity · exposure_i / noise_std`.

    Attributes:
        sensitivity: largest L2 change of a message's running sum when one sample is replaced.
        exposure: `√Σ_k 1/r_k²` over the machine's messages with relative noise r, float64 [machines].
        unit, relation, trust, theorem, assumptions: what is protected, against whom, and why.
    """

    sensitivity: float
    exposure: np.ndarray
    trust: str
    theorem: str
    assumptions: tuple[str, ...] = ()
    unit: str = "one sample of one machine"
    relation: str = "replace-one"

    def mu(self, ratio: np.ndarray) -> np.ndarray:
        """The worst machine's μ where noise_std/sensitivity is `ratio`; infinite where that is 0."""
        with np.errstate(divide="ignore"):
            return self.exposure.max() / np.asarray(ratio, float)

    def epsilon(self, ratio: np.ndarray, delta: float) -> np.ndarray:
        """The worst machine's exact ε at δ, by the same ratio."""
        return gdp.epsilon(self.mu(ratio), delta)

    def figures(self, ratio: float, delta: float) -> dict[str, float]:
        """The worst and the median machine's μ; the worst's ε at δ, exact and as the papers convert."""
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(self.exposure > 0, np.float64(self.exposure) / ratio, 0.0)
        worst = each.max()
        return {
            "μ (worst machine)": worst,
            "median μ": float(np.median(each[self.exposure > 0])),
            "ε (exact)": float(gdp.epsilon(worst, delta)),
            "ε (papers')": float(gdp.paper_epsilon(worst, delta)),
        }

    def guarantee(self, noise_std: float, delta: float) -> PrivacyGuarantee:
        """The guarantee at this noise; noise_std = 0 is non-private."""
        per_machine = np.zeros_like(self.exposure)
        used = self.exposure > 0
        per_machine[used] = np.inf if noise_std == 0 else self.sensitivity * self.exposure[used] / noise_std
        return PrivacyGuarantee(
            mu=float(per_machine.max()),
            per_machine=per_machine,
            delta=delta,
            unit=self.unit,
            relation=self.relation,
            trust=self.trust,
            theorem=self.theorem,
            assumptions=self.assumptions,
        )
