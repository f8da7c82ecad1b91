"""The planner of the persistent schedule: pure, so that every device is tested here. What it must keep whatever its
estimates say: every unit owned once, every weight multiplied once, nothing larger than the device, and reasons with
numbers."""

from collections import Counter
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest

import numbarnn
from general_cells import GENERAL, NOISE_CELLS, UNEVEN
from numbarnn.cells.library import slstm
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import error_flag
from numbarnn.kernels.persistent.columns import RECURRENT, Block, Warp
from numbarnn.schedules import choose, estimate
from numbarnn.schedules.explain import residences
from numbarnn.schedules.persistent import planner, shares, tilings
from numbarnn.schedules.persistent.tables import make_tables
from plan_orders import problem_of
from planned_launches import Sized, check_launches

BOTH_PASSES = (False, True)
GRID_CELLS = ("lstm", "gru", "rnn_tanh", GENERAL["light"], UNEVEN["fewer"], UNEVEN["more"])  # A is G, 0, less, more
# Sizes that a block's units and a warp's columns divide, and that they do not.
GRID_HIDDEN = ((1,), (33,), (64,), (16, 16), (33, 17, 40))
GRID_DTYPES = ("float32", "float16")
GRID_OTHERS = tuple(product((0.0, 0.5), (6, 64)))  # dropout; SMs: few, so that there are several blocks and launches


def grid(cell, dtype, part):
    """Small problems of all sizes and directions, each with another one of GRID_OTHERS; in each part with another."""
    for number, (hidden, directions) in enumerate(product(GRID_HIDDEN, (1, 2))):
        dropout, sms = GRID_OTHERS[(number + number // 2 + part) % len(GRID_OTHERS)]
        profile = replace(profiles.SIMULATOR, multiprocessors=sms)
        yield problem_of(cell, dtype, hidden, 3, 5, profile, directions=directions, dropout=dropout)


def grid_parts():
    """Each cell in each dtype with one part of the grid, another from point to point; if `full` with all of them."""
    for number, (cell, dtype) in enumerate(product(GRID_CELLS, GRID_DTYPES)):
        for more in range(len(GRID_OTHERS)):
            part, name = (number + more) % len(GRID_OTHERS), getattr(cell, "name", cell)
            yield pytest.param(cell, dtype, part, marks=pytest.mark.full if more else [], id=f"{name}-{dtype}-{part}")


by_grid = pytest.mark.parametrize("cell, dtype, part", list(grid_parts()))


# -------------------------------------------------------------------------------------------- what must always hold
def check_tables(problem, launch):
    """Every unit and sequence of every layer and direction has one block, and every weight is multiplied by one warp
    for each slice of the batch, at the place where it stands."""
    hidden, D = problem.hidden_sizes, problem.directions
    gates, recurrent_gates = problem.cell.num_gates, problem.cell.num_recurrent
    places, end = {}, 0
    for layer, direction in product(range(problem.layers), range(D)):
        inputs = D * hidden[layer - 1] if layer else problem.input_size
        W, R = end, end + gates * hidden[layer] * inputs
        end = R + recurrent_gates * hidden[layer] ** 2
        places[layer, direction] = Sized(W=W, R=R, W_size=R - W, R_size=end - R)
    blocks, warps = make_tables(problem, launch, places)
    assert blocks.shape == (launch.blocks, len(Block._fields))
    assert warps.shape == (launch.blocks, launch.tile.warps, len(Warp._fields))

    units, used, expected = Counter(), np.zeros(end, int), np.zeros(end, int)
    for row, of_block in zip(blocks, warps, strict=True):
        block = Block(*row)
        layer = launch.first + block.layer
        assert 0 < block.units <= launch.tile.units and block.hidden == hidden[layer]
        sequences = range(block.sequence, block.end)
        assert 0 < len(sequences) <= launch.sequences
        owned = range(block.unit, block.unit + block.units)
        units.update((layer, block.direction, *one) for one in product(owned, sequences))
        told = error_flag.explain(block.timeout + 3, "")
        assert f"layer {layer}, direction {block.direction}" in told and "step 3 of" in told
        for number, warp in enumerate(Warp(*columns) for columns in of_block):
            assert (warp.columns > 0) == (number < block.working_warps)
            recurrent = warp.columns > 0 and warp.kind == RECURRENT
            assert recurrent == (number < block.recurrent_warps)
            assert warp.columns <= launch.tile.chunks * launch.tile.chunk_elements
            assert warp.column + warp.columns <= warp.width
            rows = (1 if launch.backward else recurrent_gates if recurrent else gates) if warp.columns else 0
            assert warp.rows_per_unit == rows <= launch.tile.rows_per_unit
            strides = np.array([warp.gate_stride, warp.unit_stride, warp.column_stride])
            indices = np.indices((rows, block.units, warp.columns)).reshape(3, -1)
            np.add.at(used, warp.weights + strides @ indices, 1)

    layers = range(launch.first, launch.last)
    assert units == Counter(
        (layer, d, *one)
        for layer in layers
        for d in range(D)
        for one in product(range(hidden[layer]), range(problem.batch))
    )
    for (layer, _), place in places.items():
        if layer in layers:
            expected[place.R : place.R + place.R_size] = launch.slices * not_zero(problem, launch, layer).reshape(-1)
            if layer > launch.first or launch.tile.given:  # else W of the first layer is a product over all steps
                expected[place.W : place.W + place.W_size] = launch.slices
    assert np.array_equal(used, expected)


def not_zero(problem, launch, layer):
    """Which weights of R (A, H, H) blocks multiply: all, or where they make use of `heads` those on the diagonal."""
    hidden = problem.hidden_sizes[layer]
    sources = shares.sources(problem, launch.first, layer, launch.last, launch.backward, launch.tile)
    heads = problem.cell.heads if any(source.head for source in sources) else 1
    one = np.kron(np.eye(heads, dtype=int), np.ones((hidden // heads, hidden // heads), int))
    return np.tile(one, (problem.cell.num_recurrent, 1, 1))


@by_grid
def test_every_unit_is_owned_once_and_every_weight_multiplied_once(cell, dtype, part):
    for problem, backward in product(grid(cell, dtype, part), BOTH_PASSES):
        for launch in check_launches(problem, backward):
            check_tables(problem, launch)


@pytest.mark.parametrize("dtype", GRID_DTYPES)
def test_every_weight_on_the_diagonal_is_multiplied_once(dtype):
    """And no other where units of a block are of one head; all of them else."""
    cell, found = numbarnn.cell(slstm, heads=4), Counter()
    for hidden, directions, sms in product(((64,), (16, 64), (48, 20)), (1, 2), (6, 64)):
        profile = replace(profiles.SIMULATOR, multiprocessors=sms, warps=(8,))
        problem = problem_of(cell, dtype, hidden, 3, 5, profile, directions=directions)
        for backward in BOTH_PASSES:
            for launch in check_launches(problem, backward):
                check_tables(problem, launch)
                found.update(bool(not_zero(problem, launch, layer).all()) for layer in launch.layer_range)
    assert found[False] > 8 and found[True]


@pytest.fixture
def changed(monkeypatch):
    """A monkeypatch of the planner; nothing that was found with it is remembered."""
    yield monkeypatch
    planner.forget()


def test_heads_take_less_than_a_dense_R(changed):
    """`slstm(heads=4)` of recorded sizes."""
    cell, steps = numbarnn.cell(slstm, heads=4), {}
    for hidden, batch, backward in product((1024, 2048), (16, 64), BOTH_PASSES):
        (launch,) = planner.plan_launches(problem_of(cell, "float16", (hidden,), batch), profiles.get("h200"), backward)
        steps[hidden, batch, backward] = launch.estimate.step
    changed.setattr(shares, "_sources_of_head", lambda *_: [])
    planner.forget()
    for hidden, batch, backward in steps:
        problem = problem_of(cell, "float16", (hidden,), batch)
        (launch,) = planner.plan_launches(problem, problem.profile, backward)
        assert steps[hidden, batch, backward] < 0.7 * launch.estimate.step


def test_fewer_turns_where_weights_are_in_shared_memory(changed):
    """The tiling stays what it is; weights are loaded once for 32 sequences, not twice, with as many chunks at once."""
    launches = {}
    changed.setattr(tilings, "MIXED_GAIN", 1.0)
    for most, backward in product((2, 4), BOTH_PASSES):
        changed.setattr(planner, "MOST_N8", most)
        planner.forget()
        problem = problem_of("lstm", "float16", (1024,), 64)
        (launches[most, backward],) = check_launches(problem, backward)
    for (most, backward), launch in launches.items():
        assert (launch.tile.resident, launch.sequences, launch.tile.n8) == ("shared", 32, most)
        assert launch.tile.gathered == {(4, True): 2}.get((most, backward), 4)  # forward all of a warp's
    for backward in BOTH_PASSES:
        before, after = (launches[most, backward].estimate for most in (2, 4))
        assert after.multiply < 0.8 * before.multiply and after.step < 0.95 * before.step


def test_as_many_sequences_at_once_as_are_estimated_to_be_the_fastest(changed):
    """Of 40 four sets of 8 would multiply 24 that are not there."""
    n8 = {}
    for batch in (16, 24, 40, 64):
        problem = problem_of("lstm", "float16", (1024,), batch)
        profile = replace(problem.profile, multiprocessors=64)  # the whole batch in a block
        (launch,) = planner.plan_launches(replace(problem, profile=profile), profile, False)
        n8[batch], found = launch.tile.n8, launch.estimate.step
        steps = []
        for most in (2, 3, 4):
            changed.setattr(planner, "MOST_N8", most)
            planner.forget()
            steps.append(planner.plan_launches(problem, profile, False)[0].estimate.step)
        assert found == min(steps) == steps[-1] and steps == sorted(steps, reverse=True)
        assert launch.sequences == batch
    assert n8 == {16: 2, 24: 3, 40: 3, 64: 4}


@by_grid
def test_plans_are_right(cell, dtype, part):
    schedule, turns = choose("persistent"), cycle((1, 2, 9))
    for problem in grid(cell, dtype, part):
        steps = next(turns)
        problem = replace(problem, steps=steps)
        forward = schedule.plan_forward(problem)
        backward = [schedule.plan_backward(problem, *options) for options in product((True, False), repeat=2)]
        for plan in (forward, *backward):
            plan.check()
            launched = [task for task in plan.tasks if task.kind == "launch"]
            assert [task.launch for task in launched] == list(schedule.launches(problem, plan.backward))
            assert all((task.first, task.last) == (0, steps) for task in launched)
            layers = [layer for task in launched for layer in task.launch.layer_range]
            assert sorted(layers) == list(range(problem.layers)), "each layer once"
        kinds = [{task.kind for task in plan.tasks} for plan in backward]
        assert ["weights" in of for of in kinds] == [True, True, False, False]
    schedule.plan_weights(problem).check()


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("schedule", ("persistent", "wavefront"))
def test_gradients_of_weights_delay_no_steps(schedule, directions):
    """However long their products take, launches, steps and gradients of layers' inputs begin as early as without."""
    problem = replace(problem_of("lstm", "float32", (512,) * 3, 64, 40), directions=directions)
    plan, others = choose(schedule).plan_backward(problem, True, True), []
    assert plan.concurrent and sum(task.has_steps for task in plan.tasks) >= 3
    for cost in (0, 1000):
        spans = plan.timeline(lambda task, cost=cost: cost if task.kind == "weights" else 1)
        others.append({task: start for task, start, _ in spans if task.kind != "weights"})
    assert others[0] == others[1]


@pytest.mark.parametrize("cell", (GENERAL["light"], UNEVEN["fewer"], UNEVEN["more"]), ids=lambda cell: cell.name)
def test_a_block_has_the_rows_of_its_largest_matrix(cell):
    """Forward, per unit; alone a layer has none of W. Its biases are those that there are."""
    gates, recurrent = cell.num_gates, cell.num_recurrent
    problem = problem_of(cell, "float32", (64, 64), 8)
    for first, last, groups in ((0, 1, max(1, recurrent)), (0, 2, max(gates, recurrent))):
        launch = planner._best_launch(problem, problem.profile, first, last, False)
        assert (launch.tile.rows_per_unit, launch.tile.unit_biases) == (groups, gates + recurrent)
        assert launch.tile.rows >= groups * launch.tile.units
        assert launch.tile.partials - launch.tile.biases == (gates + recurrent) * launch.tile.units
        for residence in residences(problem, launch):
            U = launch.tile.units
            assert residence.R == ((recurrent * U, 64) if recurrent else None)
            assert residence.W == ((gates * U, 64) if residence.layer else None)
            columns = 64 * (bool(recurrent) + bool(residence.layer))
            assert residence.block_bytes == 4 * groups * U * columns, "rows of zeros take room too"
            assert ("no weights" in str(residence)) == (columns == 0)
        backward = planner._best_launch(problem, problem.profile, first, last, True)
        assert (backward.tile.rows_per_unit, backward.tile.unit_biases) == (1, 0)


def test_zeros_are_multiplied_too():
    """The estimate of a launch of two layers of a cell with few gates of ah is that of one with as many as of ax."""
    fewer, even = (
        planner._best_launch(problem_of(cell, "float32", (128, 128)), profiles.get("h200"), 0, 2, False)
        for cell in (UNEVEN["fewer"], "gru")
    )
    assert fewer.tile.rows == even.tile.rows and fewer.estimate == even.estimate


def test_without_a_product_of_h_nobody_waits_for_a_step():
    light, lstm = (problem_of(cell, "float32", (256,), 16) for cell in (GENERAL["light"], "lstm"))
    for backward in BOTH_PASSES:
        (launch,) = check_launches(light, backward)
        step = launch.estimate
        assert (step.exchange, step.read_bytes, step.read, step.multiply) == (0, 0, 0, 0)
        assert launch.microseconds < planner.plan_launches(lstm, lstm.profile, backward)[0].microseconds / 2
        assert 0 < estimate.steps_us(light, backward, False) < estimate.steps_us(lstm, backward, False)


def test_random_numbers_have_a_row_for_each_place():
    """In training; else none is read."""
    for training in (True, False):
        problem = problem_of(NOISE_CELLS["noisy"], "float32", (33, 17), 3, directions=2, training=training)
        rows = set()
        for launch in planner.plan_launches(problem, problem.profile, False):
            places = dict.fromkeys(product(range(2), range(2)), Sized(0, 0))
            for block in (Block(*row) for row in make_tables(problem, launch, places)[0]):
                assert block.noise == (2 * (launch.first + block.layer) + block.direction if training else 0)
                rows.add(block.noise)
        assert len(rows) == (4 if training else 1)


@pytest.mark.parametrize("part", range(len(GRID_OTHERS)))
def test_the_grid_has_one_and_several_launches(part):
    """So that the tests above test something: in any two parts that follow each other, as each cell has."""
    problems = [problem for one in (part, part + 1) for problem in grid("lstm", "float32", one)]
    plans = [planner.plan_launches(problem, problem.profile, False) for problem in problems]
    counts = {len(launches) for launches in plans}
    assert min(counts) == 1 and max(counts) > 1
    assert any(launch.last - launch.first > 1 for launches in plans for launch in launches)
