"""All functions of equations at special numbers, as NumPy has them."""

import pytest

import special_values
from numbarnn.common.precision import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_the_simulator(dtype):
    special_values.require_equal(special_values.computed(dtype, "sim"), dtype)
