"""View of the adversary of each trust model."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedprivjax.method.seen import seen_of
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.privacy.adversaries import BY_TRUST
from fedprivjax.privacy.terms import TRUST, Terms
from fedprivjax.privacy.views import FullView

QUERIES = np.arange(8.0).reshape(4, 2)
BITS = np.random.default_rng(0).integers(0, 2, (4, 6, 3))
MEMORY = {"tree": np.arange(12.0).reshape(4, 3)}
FULL = FullView(QUERIES, BITS, MEMORY, seed=5)


def test_every_trust_model_has_a_view_and_a_sentence():
    assert BY_TRUST.keys() == TRUST.keys()
    assert len(set(TRUST.values())) == len(TRUST)


@pytest.mark.parametrize("trust", BY_TRUST)
def test_a_protocols_trust_names_its_view(trust):
    assert Terms(trust, "a theorem").trust == trust
    np.testing.assert_array_equal(seen_of(SimpleNamespace(trust=trust)).view(FULL).queries, QUERIES)


def test_shuffled_bits_tell_sums_only():
    seen = BitMean(clip=1.0).view(FULL)
    np.testing.assert_array_equal(seen.messages, BITS.sum(axis=1))
    other = FULL._replace(messages=BITS[:, ::-1], internal={"tree": MEMORY["tree"] + 1})
    np.testing.assert_array_equal(BitMean(clip=1.0).view(other).messages, seen.messages)
    assert seen.internal == ()


def test_an_intruder_sees_the_servers_memory_and_no_message():
    seen = seen_of(SimpleNamespace(trust="pan-private")).view(FULL)
    assert seen.messages is None
    np.testing.assert_array_equal(seen.internal["tree"], MEMORY["tree"])
