"""Cases of pairs of options: each is there, and few more than there have to be."""

from itertools import product

from tests.pairs import met_in, pairs

AXES = (["a", "b", "c", "d"], [None, 1.0, 2], [True, False])


def met(cases):
    return set().union(*map(met_in, cases))


def test_each_pair_is_met():
    found = pairs(*AXES)
    assert met(found) == met(product(*AXES))
    assert 4 * 3 <= len(found) < 4 * 3 * 2
    assert met(found[1:]) < met(found)
