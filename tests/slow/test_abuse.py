"""A handful of what tests/abuse.py does: it says what is right."""

import pytest

from tests import abuse


@pytest.mark.parametrize(("mutations", "kills"), [(11, 0), (0, 4)])
def test_abuse_is_answered_and_leaves_nothing(mutations, kills):
    assert abuse.main(2, mutations, kills) == 0
