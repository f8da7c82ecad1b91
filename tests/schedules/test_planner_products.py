"""The planner of the persistent schedule and cells with further products, whose warps wait within a step."""

from itertools import product

import numpy as np
import pytest

from general_cells import GENERAL
from numbarnn import cells
from numbarnn.cells.library import multiplicative_lstm, recurrent_highway
from numbarnn.kernels.persistent.columns import BLOCK, INPUT, RECURRENT, STAGE, STAGE_BITS, WARP
from numbarnn.schedules import calibration, estimate, explain
from numbarnn.schedules.persistent import tilings
from numbarnn.schedules.persistent.tables import Place, make_tables
from numbarnn.schedules.products import rate_of
from plan_orders import problem_of
from planned_launches import check_launches

BOTH_PASSES = (False, True)
MANY = 1000  # steps, so many that the first layer's input is multiplied before them
RESET_BEFORE = cells.get("gru_reset_before")
GATES = {  # gates of ah of each product: of that with h, then of the further ones
    RESET_BEFORE: (2, 1), multiplicative_lstm: (1, 4), recurrent_highway(3): (2, 2, 2), GENERAL["chain"]: (1, 1, 2)
}  # fmt: skip
of_cells = pytest.mark.parametrize("cell", GATES, ids=lambda cell: cell.name)


@pytest.mark.parametrize("backward", BOTH_PASSES)
@of_cells
def test_estimates_have_all_products_and_the_exchanges_before_them(cell, backward):
    for dtype, hidden, batch in product(("float16", "float32"), (256, 512), (1, 64)):
        problem = problem_of(cell, dtype, (hidden,), batch, MANY)
        (launch,) = check_launches(problem, backward)
        turns, step = -(-launch.sequences // launch.tile.sequences), launch.estimate
        columns = hidden * (sum(GATES[cell]) if backward else len(GATES[cell]))
        assert step.read_bytes == launch.sequences * columns * np.dtype(dtype).itemsize
        assert step.rounds == len(GATES[cell]) - 1
        assert step.within == pytest.approx(
            calibration.WITHIN_SHARE.value * turns * step.rounds * problem.profile.exchange_us
        )
        units, (slices,) = launch.tile.units, explain.residences(problem, launch)
        assert slices.R == ((units, columns) if backward else (sum(GATES[cell]) * units, hidden)) and slices.W is None
        assert launch.tile.warps <= tilings.WARPS_IF_STAGED and not launch.tile.given


@pytest.mark.parametrize("backward", BOTH_PASSES)
@of_cells
def test_each_product_of_a_stepwise_step_counts(cell, backward):
    """As much as one with h of as many gates, with a kernel."""
    problem = problem_of(cell, "float16", (512,), 16)
    kind, per_us = rate_of(problem)
    start, of_column = (table[kind, backward].value for table in (calibration.STEP_US, calibration.STEP_COLUMN_US))
    expected = 0.0
    for gates in GATES[cell]:
        expected += start + of_column * 512 * (gates if backward else 1)
        expected += 16 * gates * 512**2 / per_us / calibration.STEP_SHARE[kind].value
    assert estimate.steps_us(problem, backward, False) == pytest.approx(problem.steps * expected)


@pytest.mark.parametrize("backward", BOTH_PASSES)
@of_cells
def test_warps_of_each_product_stand_side_by_side(cell, backward):
    """First those of h, then of the layer's input, then of each stage; each product has all of its columns once."""
    problem = problem_of(cell, "float16", (256, 256), 8, MANY)
    places = {(layer, 0): Place(10**7 * layer, 10**7 * layer + 10**6, -1, -1) for layer in range(2)}
    for launch in check_launches(problem, backward):
        for row, warps in zip(*make_tables(problem, launch, places), strict=True):
            kinds = [kind for kind, columns in zip(warps[:, WARP.kind], warps[:, WARP.columns], strict=True) if columns]
            order = [RECURRENT, INPUT, *range(STAGE, STAGE + cell.num_products)]
            assert kinds == sorted(kinds, key=order.index)
            ends = [row[BLOCK.stage_warps] >> STAGE_BITS * p & 255 for p in range(cell.num_products)]
            assert row[BLOCK.recurrent_warps] == kinds.count(RECURRENT)
            assert row[BLOCK.working_warps] == kinds.count(RECURRENT) + kinds.count(INPUT)
            assert np.diff([row[BLOCK.working_warps], *ends]).tolist() == [
                kinds.count(STAGE + p) for p in range(cell.num_products)
            ]
            for p, gates in enumerate(GATES[cell][1:]):
                of_stage = warps[:, WARP.kind] == STAGE + p
                assert warps[of_stage, WARP.columns].sum() == 256 * (gates if backward else 1)
                assert set(warps[of_stage, WARP.shift]) == {0}
