import json

import numpy as np
import pytest

from fedprivjax import Refusal, Softmax, linear_problem
from fedprivjax.privacy.terms import RECORD, SENTENCES, Assumption, Terms, lipschitz_values

VALUES = {
    "bound": 0.5,
    "machines": 100,
    "parts": "classes",
    "constant": 1.25,
    "note": "",
    "besides": "",
    "smoothness": 2.0,
    "diameter": 4.0,
    "least": 0.1,
    "most": 3.0,
    "text": "x",
    "users": 5,
    "batch": 20,
    "distance": 0.01,
    "scheme": "PoissonCohorts(machines=10, rate=0.1)",
    "cut": 1e-13,
    "rounds": 4,
    "first": 1,
    "function": "difference",
    "source": "mine:Mine",
    "rate": 0.1,
    "size": 3,
    "graph": "ring",
    "shared": 2.0,
    "separation": 10,
    "uses": 6,
    "groups": 5,
    "numbers": 16,
    "bits": 12,
    "scale": 2.0,
    "norm": 3.5,
    "of": "Skellam",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_every_assumption_is_a_sentence(name):
    sentence = str(Assumption(name, VALUES))
    assert sentence
    assert "{" not in sentence


def test_values_stand_in_the_sentence_and_can_be_read():
    one = Assumption(
        "lipschitz and smooth", {"constant": 1.0, "note": " (a statistic)", "smoothness": 0.25, "diameter": 2}
    )
    assert str(one) == "losses are 1-Lipschitz (a statistic) and 0.25-smooth on a set of diameter 2"
    assert one.values["smoothness"] == 0.25
    assert str(Assumption("stated", {"text": "machines do not collude"})) == "machines do not collude"


def test_assumptions_are_told_apart_by_their_values():
    one, same, other = (Assumption("clipped records", {"bound": bound}) for bound in (0.5, 0.5, 0.6))
    assert one == same != other
    assert hash(one) == hash(same)


def test_unknown_names_are_refused():
    with pytest.raises(Refusal, match="unknown assumption 'clipped record', did you mean 'clipped records'"):
        Assumption("clipped record")
    with pytest.raises(Refusal, match="unknown trust 'sever', did you mean 'server'"):
        Terms("sever", "a theorem")


def test_terms_go_through_json_and_back():
    assumptions = [Assumption("used once"), Assumption("clipped records", {"bound": 0.5})]
    terms = Terms("shuffler", "Theorem 4.1", assumptions, unit=RECORD)  # type: ignore[arg-type]
    back = Terms.from_mapping(json.loads(json.dumps(terms.as_mapping())))
    assert back == terms
    assert [str(one) for one in back.assumptions] == [str(one) for one in assumptions]
    assert (back.unit, back.relation, back.trust) == (RECORD, "replace-one", "shuffler")
    assert Terms("none", "").unit == RECORD
    assert back != Terms("shuffler", "Theorem 4.1", assumptions[:1], unit=RECORD)  # type: ignore[arg-type]


def test_a_problems_lipschitz_constant_with_its_note():
    problem = linear_problem(np.eye(3), [0, 1, 1], Softmax(2), feature_bound=1.0)
    plain = lipschitz_values(problem)
    assert plain == {"constant": problem.lipschitz, "note": ""}
    assert str(Assumption("lipschitz", plain)) == f"losses are {problem.lipschitz:.4g}-Lipschitz"
    noted = lipschitz_values(problem.replace(lipschitz_note="a statistic"))  # type: ignore[attr-defined]
    assert noted["note"] == " (a statistic)"
