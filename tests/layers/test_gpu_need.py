"""Retained tapes, needs and reserves on a GPU, in calls that are recorded and replayed."""

import pytest

from needs import LAYERS, check_needs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("schedule", ["stepwise", "wavefront", "persistent"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_as_one_ordinary_pass(name, schedule):
    check_needs(name, "cuda", schedule, calls=4)
