"""The private states of every step with the real kernels, in the simulator."""

import numpy as np
import pytest

import numbarnn as nr
from output_states import LAYERS, check_output_states


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "lengths_and_resets"])
@pytest.mark.parametrize("name", LAYERS)
def test_they_and_their_gradients_are_the_cpu_engines(name, odd):
    check_output_states(name, odd, "sim", "wavefront" if odd else "stepwise")


def test_persistent_kernels_refuse_them():
    layer = nr.LSTM(4, 6, device="sim", schedule="persistent")
    with pytest.raises(RuntimeError, match="keeps no state but h of every step, which output_states asks for"):
        layer(np.zeros((2, 1, 4), np.float32), output_states=True)
