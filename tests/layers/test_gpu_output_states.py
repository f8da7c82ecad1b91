"""The private states of every step on a GPU, in calls that are recorded and replayed."""

import pytest

from output_states import LAYERS, check_output_states

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("schedule", ["stepwise", "wavefront", "auto"])
@pytest.mark.parametrize("odd", [False, True], ids=["plain", "lengths_and_resets"])
@pytest.mark.parametrize("name", LAYERS)
def test_they_and_their_gradients_are_the_cpu_engines(name, odd, schedule):
    check_output_states(name, odd, "cuda", schedule, calls=3)
