"""Protected units and neighbouring relations in titles of tables and labels of figures."""

from collections.abc import Iterable, Mapping

import xarray as xr

from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import MACHINE, RECORD, Terms

SHORT = {RECORD: "record", MACHINE: "machine"}  # units in labels of figures


def terms_of(data: xr.Dataset) -> list[Terms]:
    """Return the distinct guarantee statements of a protocol's results or of a plan, in the order of their JSON."""
    return list(dict.fromkeys(one.terms for one in _guarantees(data)))


def private_terms(best: Mapping[str, xr.Dataset]) -> list[Terms]:
    """Return the guarantee statements of the private configurations in an experiment's results."""
    return [one.terms for data in best.values() if "guarantee" in data for one in _guarantees(data) if one.private]


def hide_sizes(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if the guarantee of a private configuration hides numbers of records."""
    return any(terms.hides_sizes for terms in private_terms(best))


def _guarantees(data: xr.Dataset) -> list[PrivacyGuarantee]:
    texts = {text for text in data["guarantee"].values.ravel() if isinstance(text, str) and text}
    return [PrivacyGuarantee.from_json(text) for text in sorted(texts)]


def mixed(terms: Iterable[Terms]) -> str:
    """Return the end of a title that names every unit and relation, or an empty string if all are equal.

    >>> record, machine = Terms("none", "a theorem"), Terms("none", "a theorem", unit="a machine")
    >>> mixed([record, machine])
    '; DIFFERENT GUARANTEES: ε for a machine (replace-one), ε for one record of one machine (replace-one)'
    >>> mixed([record, record])
    ''
    """
    subjects = sorted({(one.unit, one.stated_relation) for one in terms})
    if len(subjects) < 2:
        return ""
    return "; DIFFERENT GUARANTEES: " + ", ".join(f"ε for {unit} ({relation})" for unit, relation in subjects)


def relations(terms: Iterable[Terms]) -> str:
    """Return the neighbouring relations as text, after the protected units if any is not a record.

    >>> machine = Terms("server", "a theorem", unit=MACHINE)
    >>> relations([Terms("none", "a theorem")]), relations([machine])
    ('replace-one', 'unit: machine, replace-one')
    """
    terms = list(terms)
    units = sorted({SHORT.get(one.unit, one.unit) for one in terms})
    named = [] if units == [SHORT[RECORD]] else ["unit: " + " and ".join(units)]
    return ", ".join([*named, *sorted({one.stated_relation for one in terms})])
