"""The planner of the persistent schedule: pure, so that every device is tested here. What it must keep whatever its
estimates say: every unit owned once, every weight multiplied once, nothing larger than the device, and reasons with
numbers."""

from collections import Counter
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest

import numbarnn
from general_cells import WRITTEN
from numbarnn import engines
from numbarnn.bench import planned
from numbarnn.bench.shapes import SETS
from numbarnn.cells.definition import Noise
from numbarnn.cells.library import (
    layer_norm_gru,
    layer_norm_lstm,
    peephole_lstm,
    slstm,
)
from numbarnn.cuda import arguments
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import error_flag
from numbarnn.kernels.persistent.columns import RECURRENT, Block, Warp
from numbarnn.schedules import choose
from numbarnn.schedules.explain import explain
from numbarnn.schedules.persistent import planner, shares, tilings
from numbarnn.schedules.persistent.tables import make_tables
from plan_orders import problem_of
from planned_launches import Sized, check_launches

BOTH_PASSES = (False, True)
GRID_CELLS = ("lstm", "gru", "rnn_tanh", WRITTEN["light"], WRITTEN["fewer"], WRITTEN["more"])  # A is G, 0, less, more
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


@pytest.mark.parametrize("part", range(len(GRID_OTHERS)))
def test_the_grid_has_one_and_several_launches(part):
    """So that the tests above test something: in any two parts that follow each other, as each cell has."""
    problems = [problem for one in (part, part + 1) for problem in grid("lstm", "float32", one)]
    plans = [planner.plan_launches(problem, problem.profile, False) for problem in problems]
    counts = {len(launches) for launches in plans}
    assert min(counts) == 1 and max(counts) > 1
    assert any(launch.last - launch.first > 1 for launches in plans for launch in launches)


@pytest.mark.parametrize("cell", ("lstm", layer_norm_lstm, "gru_reset_before", "projection"), ids=str)
def test_of_few_steps_blocks_multiply_the_input_themselves(cell):
    """Whatever they exchange within a step; before many steps it is one product."""
    options = {"training": False, "projection": 128 * (cell == "projection")}
    name, given = "lstm" if cell == "projection" else cell, []
    for steps in (2, 1000):
        problem = problem_of(name, "float16", (256,), 16, steps=steps, **options)
        (launch,) = check_launches(problem, False)
        given.append(launch.tile.given)
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


def plans_or_refusal(plan, problem):
    try:
        return [plan(problem, problem.profile, backward) for backward in BOTH_PASSES]
    except planner.DoesNotFit as refusal:
        return str(refusal)


def sweep():
    """Problems of several cells and devices, each with ever other T and B, in a random order."""
    cells, rng = cycle(("lstm", "gru", "rnn_tanh", WRITTEN["light"], WRITTEN["more"])), np.random.default_rng(0)
    hidden = ((512,), (256, 256, 256, 256), (33, 17, 40), (128, 128, 64))
    kinds = list(product(hidden, ("float32", "float16", "float64"), ("h200", "a100"), (1, 2)))
    for sizes, dtype, profile, directions in rng.permutation(np.array(kinds, object))[:10]:
        cell = next(cells)
        for T, B in zip(rng.choice([1, 2, 3, 8, 25, 50, 100, 1000, 1001], 3), rng.integers(1, 150, 3), strict=True):
            for steps, batch in ((T, B), (T, 64), (50, B)):
                profile_ = profiles.get(profile)
                yield problem_of(cell, dtype, sizes, int(batch), int(steps), profile_, directions=int(directions))


def test_plans_are_those_of_a_planner_without_memory():
    problems = list(sweep())
    found = [plans_or_refusal(planner.plan_launches, problem) for problem in problems]
    for problem, plans in zip(problems, found, strict=True):
        planner.forget()
        assert plans == plans_or_refusal(planner.plan_launches, problem)
    assert sum(isinstance(plans, list) for plans in found) > len(found) / 2


# --------------------------------------------------------------------------------------------------------- real devices
ISSUE_SHAPES = SETS["schedules"]
by_profile = pytest.mark.parametrize("profile", profiles.PROFILES)


@by_profile
@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_answers_for_the_issues_shapes(profile, dtype):
    for cell, shape, backward in product(("lstm", "gru"), ISSUE_SHAPES, BOTH_PASSES):
        problem = problem_of(cell, dtype, (shape.H,) * shape.L, shape.B, shape.T, profile)
        try:
            launches = check_launches(problem, backward)
        except planner.DoesNotFit as reason:
            if dtype != "float32" and not problem.profile.tensor_cores:
                assert "tensor cores of compute capability 8.0 or newer" in str(reason)
                continue
            assert_explained(str(reason), problem)
            continue
        for launch in launches:
            assert str(launch.blocks) in str(launch) and launch.tile.math in launch.details


def assert_explained(reason, problem):
    """A refusal names the problem and the device, and has the numbers of both."""
    profile = problem.profile
    kept = 4 if problem.dtype == "float32" else 2
    weights = problem.directions * problem.cell.num_gates * problem.hidden_sizes[-1] ** 2 * kept
    for words in (
        problem.cell.name, str(problem.hidden_sizes[-1]), problem.dtype, profile.name, f"{weights / 2**20:.1f} MiB",
        f"{profile.multiprocessors} SMs", f"{profile.shared_bytes / 1024:.0f} KiB", "wavefront",
    ):  # fmt: skip
        assert words in reason, f"{words!r} is not in {reason!r}"


def test_fits_what_the_project_promises():
    """On an H200 one LSTM layer of up to 1024 units in float32, and four of 512 in float16 in a single launch."""
    problem = problem_of(hidden=(1024,), batch=64)
    assert all(len(check_launches(problem, backward)) == 1 for backward in BOTH_PASSES)
    problem = problem_of(dtype="float16", hidden=(512,) * 4, batch=16, steps=100)
    assert [(launch.first, launch.last) for launch in check_launches(problem, False)] == [(0, 4)]


def test_halves_of_2048_units_stay_on_the_chip():
    """In registers and shared memory together, of up to 16 sequences forward and backward."""
    problem = problem_of(dtype="float16", hidden=(2048,), batch=16, steps=100)
    for backward in BOTH_PASSES:
        (launch,) = check_launches(problem, backward)
        assert launch.tile.resident == "registers+shared" and "weights in registers (" in launch.details
        kept = launch.tile.warps * launch.tile.rows * launch.tile.chunks * 64
        assert launch.blocks * kept == 4 * 2048 * 2048 * 2, "all of R"


@pytest.mark.parametrize("cell", ("lstm", "gru"))
def test_auto_takes_another_where_weights_find_no_room_on_the_chip(cell):
    problem = problem_of(cell, dtype="float16", hidden=(4096,), batch=64, steps=100)
    explanation = explain(choose("auto"), problem, False)
    assert explanation.taken.schedule == "stepwise" and "does not fit" in explanation.why


def test_refuses_many_rows_of_numbers_that_are_split_in_two():
    """Forward, where the largest blocks have 128 rows."""
    problem = problem_of(hidden=(4096,), batch=16, splits_tf32=True)
    words = "128 rows of weights and 8 warps leave too few .* allow_tf32=False or True more fit"
    with pytest.raises(planner.DoesNotFit, match=words):
        planner.plan_launches(problem, problem.profile, False)


def parameter_bytes(shipped):
    """Of a kernel's parameters, each at a multiple of its own size."""
    total = 0
    for size in arguments._value_sizes("".join(arguments.Arguments("", shipped.arguments)._formats)):
        total += -total % size + size
    return total


RANDOM = replace(peephole_lstm, noise=(Noise(0.5), Noise(0.25, 1 / 0.75), Noise(0.1)))
COUNTED = {"lstm": "lstm", "rnn": "rnn_tanh", "per unit": peephole_lstm, "random": RANDOM, "sums": layer_norm_lstm}


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("cell", COUNTED.values(), ids=COUNTED)
def test_parameters_of_kernels_are_counted(cell, backward):
    """All of them: a kernel with more than there is room for would not compile."""
    for layers, directions in ((1, 1), (9, 1), (3, 2)):
        problem = problem_of(
            cell, "float16", (16,) * layers, 4, profile=profiles.get("h200"), directions=directions, dropout=0.5,
            padded=True,
        )  # fmt: skip
        (launch, *_) = planner.plan_launches(replace(problem, hidden_sizes=(16,)), problem.profile, backward)
        found = parameter_bytes(planned.persistent_kernel(problem, replace(launch, last=layers)))
        assert found <= tilings.parameter_bytes(problem, layers, backward)


def test_a_launch_has_no_more_layers_than_parameters_have_room_for():
    """Those of twelve would take 4,328 bytes, of eleven 4,048."""
    for layers, launches in ((11, 1), (12, 2)):
        problem = problem_of(RANDOM, "float32", (16,) * layers, 4)
        assert len(planner.plan_launches(problem, problem.profile, True)) == launches


@pytest.mark.gpu
def test_profile_of_this_machine():
    profile = engines.get("cuda").profile
    assert profile.multiprocessors > 0 and profile.shared_bytes >= 48 * 1024 and profile.registers >= 2**15
