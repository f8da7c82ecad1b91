"""What plans of layers with a projection are estimated to take."""

import pytest

from numbarnn.schedules import calibration, choose, estimate
from numbarnn.schedules.products import rate_of
from plan_orders import problem_of

H, P, B, T = 512, 128, 16, 7


def lstms():
    """An LSTM without a projection, and one with it."""
    return [problem_of("lstm", "float16", (H, H), B, T, projection=width) for width in (0, P)]


@pytest.mark.parametrize("backward", (False, True))
def test_a_stepwise_step_multiplies_with_fewer_columns_of_R_and_with_W_hr(backward):
    wide, narrow = lstms()
    start, of_column = (table["half", backward].value for table in (calibration.STEP_US, calibration.STEP_COLUMN_US))
    more = start + of_column * (P if backward else P - H + H)  # of W_hr; forward fewer of R
    more += B * (4 * H * (P - H) + P * H) / rate_of(wide)[1] / calibration.STEP_SHARE["half"].value
    found = [estimate.steps_us(problem, backward, False) for problem in (wide, narrow)]
    assert found[1] - found[0] == pytest.approx(2 * T * more)


def test_gradients_of_parameters_and_inputs_of_layers_are_those_of_a_narrow_h():
    wide, narrow = lstms()
    per_us = rate_of(wide)[1] * calibration.PRODUCT_SHARE["half"].value
    for layer, inputs in ((0, (H, H)), (1, (H, P))):
        found = []
        for problem in (wide, narrow):
            plans = choose("stepwise").plan_forward(problem), choose("stepwise").plan_backward(problem)
            tasks = [task for plan in plans for task in plan.tasks if task.layer == layer]
            (x, dx), (weights,) = ([task for task in tasks if task.kind == kind] for kind in ("input", "weights"))
            assert estimate.product_us(x, problem) == estimate.product_us(dx, problem)
            found.append([estimate.product_us(task, problem) for task in (x, weights)])
        fewer = 4 * H * (inputs[1] - inputs[0])
        assert found[1][0] - found[0][0] == pytest.approx(T * B * fewer / per_us)
        numbers = fewer + 4 * H * (P - H) + P * H
        assert found[1][1] - found[0][1] == pytest.approx(calibration.PRODUCT_US.value + T * B * numbers / per_us)
