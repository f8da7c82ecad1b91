"""Retained tapes, needs and reserves with the real kernels, in the simulator."""

import pytest

from needs import LAYERS, check_needs


@pytest.mark.parametrize("schedule", ["stepwise", "wavefront", "persistent"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_as_one_ordinary_pass(name, schedule):
    check_needs(name, "sim", schedule)
