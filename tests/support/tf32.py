"""How much persistent kernels err that compute float32 products by FMA, by one product of TF32 or by three."""

import numpy as np

from comparing import flat
from numbarnn.schedules.persistent import schedule
from problems import make_problem
from running import train

MATHS = {False: "fma", True: "tf32", "3x": "tf32x3"}  # `allow_tf32` -> how products are computed
MORE = 2.0  # three products err at most so many times as much as FMA
COARSER = 50.0  # one product errs at least so many times as much as three: TF32 has 13 bits fewer than float32


def error(values, expected):
    """Root of the mean square error of all results and gradients, each in parts of its largest number."""
    pairs = [(flat(values[name]), flat(expected[name])) for name in expected]
    parts = [(found - right) / np.abs(right).max() for found, right in pairs if right.size]
    return float(np.sqrt(np.mean(np.concatenate(parts) ** 2)))


def errors(case, device):
    """`allow_tf32` -> `error` of a training call, forward and backward, against float64."""
    problem, found = make_problem(case), {}
    for allowed, math in MATHS.items():
        layer = case.layer(device, schedule="persistent", allow_tf32=allowed)
        asked = layer.stack.problem(case.T, case.B, True)
        launches = [launch for backward in (False, True) for launch in schedule.SCHEDULE.launches(asked, backward)]
        assert {launch.tile.math for launch in launches} == {math}
        layer = problem.layer(device, schedule="persistent", allow_tf32=allowed)
        found[allowed] = error(train(layer, problem)[0], problem.expected())
    return found


def require_float32(found):
    """Assert that three products err about as much as FMA, and far less than one product."""
    assert found["3x"] <= MORE * found[False], found
    assert COARSER * found["3x"] <= found[True], found
