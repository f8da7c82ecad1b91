"""What plans of layers with a projection are estimated to take."""

from dataclasses import replace
from itertools import product

import pytest

from numbarnn.cells.library import layer_norm_lstm
from numbarnn.schedules import calibration, choose, estimate
from numbarnn.schedules.persistent import tilings
from numbarnn.schedules.persistent.costs import estimate_of
from numbarnn.schedules.products import rate_of
from plan_orders import problem_of
from planned_launches import check_launches

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


@pytest.mark.parametrize("backward", (False, True))
@pytest.mark.parametrize("cell", ("lstm", "gru_reset_before", layer_norm_lstm), ids=("projection", "product", "sums"))
def test_float32_tilings_of_steps_with_exchanges_are_compared_by_the_fitted_rates(cell, backward):
    """No record holds their choice: it is, to a tenth, the one whose step is estimated to be the fastest."""
    for hidden, batch in product((256, 384, 512), (1, 16, 64)):
        problem = problem_of(cell, "float32", (hidden,), batch, projection=hidden // 2 if cell == "lstm" else 0)
        (launch,) = check_launches(problem, backward)
        sizes, profile = tilings.sizes_of(problem), problem.profile
        part = tilings._part(sizes._replace(batch=0), profile, 0, 1, backward, False)
        steps = []
        for _, tile, blocks, (slices, sequences) in tilings._fitting(part, tilings._slicings(batch), mixed=False):
            one = replace(launch, tile=tile, blocks=blocks, slices=slices, sequences=sequences)
            steps.append(estimate_of(sizes, profile, one, tilings.columns_of(sizes, 0, 1, backward, tile)).step)
        assert launch.estimate.step < 1.1 * min(steps)


def test_a_projection_in_float32_takes_blocks_of_a_part_of_the_batch():
    """Of (512, 64) on an H200: those of all of it read twice as much, in 18.0 us a step."""
    (launch,) = check_launches(problem_of("lstm", "float32", (512,), 64, projection=256), False)
    assert (launch.tile.units, launch.slices, launch.tile.resident) == (8, 2, "shared")
    assert launch.estimate.step < 12.7
