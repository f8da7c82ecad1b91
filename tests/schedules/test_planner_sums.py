"""The planner of the persistent schedule and cells with sums over units, which blocks exchange within a step."""

from dataclasses import replace
from itertools import product

import pytest

from general_cells import SUM_CELLS
from numbarnn.cells.library import layer_norm_gru, layer_norm_lstm
from numbarnn.schedules import calibration, estimate
from numbarnn.schedules.persistent import planner, tilings
from numbarnn.schedules.persistent.costs import Chain
from numbarnn.schedules.plan import Task
from plan_orders import problem_of
from planned_launches import check_launches

BOTH_PASSES = (False, True)
MANY = 1000  # steps, so many that the first layer's input is multiplied before them
EXCHANGES = {layer_norm_lstm: 4, layer_norm_gru: 2, SUM_CELLS["normed"]: 2}  # one for each of its stages


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("cell", EXCHANGES, ids=lambda cell: cell.name)
def test_estimates_have_the_exchanges_within_a_step(cell, backward):
    """For each turn through a block's sequences one for each stage; and all blocks read the words of all others."""
    for dtype, hidden, batch in product(("float16", "float32"), (256, 512, 768), (1, 16, 64)):
        problem = problem_of(cell, dtype, (hidden,), batch, MANY)
        (launch,) = check_launches(problem, backward)
        turns, blocks = -(-launch.sequences // launch.tile.sequences), launch.blocks // launch.slices
        exchanges = calibration.WITHIN_SHARE.value * turns * EXCHANGES[cell] * problem.profile.exchange_us
        words = launch.slices * blocks * launch.sequences * cell.num_sums * blocks
        read = calibration.L2_SHARE.value * 8 * words / (problem.profile.l2_gb_s * 1e3)
        assert launch.estimate.rounds == EXCHANGES[cell]
        assert launch.estimate.within == pytest.approx(exchanges + read)
        assert launch.tile.warps <= tilings.WARPS_IF_STAGED and not launch.tile.given


def largest_first():
    """A cell with two stages of sums, of which the first is the largest of its terms."""
    cell = SUM_CELLS["normed"]
    first, *others = cell.stages
    return replace(cell, name="largest", stages=(replace(first, largest=True, backward=None), *others))


def test_nothing_flows_back_through_the_largest():
    """So that blocks exchange nothing for it backward."""
    rounds = [check_launches(problem_of(largest_first()), backward)[0].estimate.rounds for backward in BOTH_PASSES]
    assert rounds == [2, 1]


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("cell", (*EXCHANGES, largest_first()), ids=lambda cell: cell.name)
def test_each_stage_of_sums_of_a_stepwise_step_counts(cell, backward):
    """In microseconds, with H; of cells without them nothing does."""
    stages = EXCHANGES.get(cell, 1 if backward else 2)
    for hidden in (256, 1024):
        problem = problem_of(cell, "float16", (hidden,), 16, steps=7)
        without = replace(problem, cell=replace(cell, stages=tuple(s for s in cell.stages if not s.sums)))
        clocks = calibration.STEP_SUMS_CLOCKS.value + calibration.STEP_SUMS_UNIT_CLOCKS.value * hidden
        sums = 7 * stages * clocks / (problem.profile.clock_ghz * 1e3)
        found, less = (estimate.steps_us(each, backward, False) for each in (problem, without))
        assert found - less == pytest.approx(sums)


def test_of_two_layers_each_has_its_own_words():
    problem = problem_of(layer_norm_gru, "float16", (512, 512))
    (together,), (alone,) = (check_launches(each, False) for each in (problem, replace(problem, hidden_sizes=(512,))))
    assert together.tile.units == alone.tile.units and together.sequences == alone.sequences
    assert together.estimate.within == pytest.approx(2 * alone.estimate.within - exchanges_us(alone, problem))


def exchanges_us(launch, problem):
    """What estimates of two layers side by side have once."""
    turns = -(-launch.sequences // launch.tile.sequences)
    return calibration.WITHIN_SHARE.value * turns * launch.estimate.rounds * problem.profile.exchange_us


def test_tilings_are_compared_by_the_exchanges_too():
    problem = problem_of(layer_norm_lstm, "float16", (512,), 64)
    (launch,) = planner.plan_launches(problem, problem.profile, False)
    of_tile = lambda profile: Chain.of(problem, profile, launch.tile, 512, 1)  # noqa: E731
    chain = of_tile(problem.profile)
    assert chain.turn - of_tile(replace(problem.profile, exchange_us=0)).turn == pytest.approx(
        4 * problem.profile.exchange_us
    )
    step, without = (one.step_us(problem.profile, 128, 8, 8) for one in (chain, chain._replace(words=0)))
    assert step - without == pytest.approx(128 * 8 * (128 / 8) * 6 * 8 / (problem.profile.l2_gb_s * 1e3))


@pytest.mark.parametrize("cell", ("lstm", layer_norm_lstm, "gru_reset_before", "projection"), ids=str)
def test_of_few_steps_blocks_multiply_the_input_themselves(cell):
    """Whatever they exchange within a step; before many steps it is one product."""
    options = {"training": False, "projection": 128 * (cell == "projection")}
    name, given = "lstm" if cell == "projection" else cell, []
    for steps in (2, 1000):
        problem = problem_of(name, "float16", (256,), 16, steps=steps, **options)
        (launch,) = check_launches(problem, False)
        given.append(launch.tile.given)
        alone = planner._best_launch(problem, problem.profile, 0, 1, False)
        spared = estimate.product_us(Task("input", 0, 0, 0, steps), problem)
        limit = (1 - planner.LEAST_GAIN) * (alone.microseconds + spared)
        assert launch.tile.given == (launch.microseconds < limit)
    assert given == [True, False]


def test_warps_look_ahead_where_registers_are_left():
    """Found by compiling: of float32 at (512, 64) forward 20 bytes were spilled."""
    ahead = {
        units: check_launches(problem_of(layer_norm_lstm, "float32", (hidden,), 64), False)[0].tile.groups_ahead
        for hidden, units in ((512, 16), (768, 12))
    }
    assert ahead == {16: 0, 12: 1}


def test_some_of_many_chunks_stay_in_registers():
    """Found by compiling: with all 24 in shared memory 144 bytes were spilled."""
    kept = {
        hidden: check_launches(problem_of(layer_norm_gru, "float16", (hidden,), 16), True)[0].tile.resident
        for hidden in (1536, 2048)
    }
    assert kept == {1536: "shared", 2048: "registers+shared"}
