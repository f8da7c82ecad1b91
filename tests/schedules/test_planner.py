"""The planner of the persistent schedule: pure, so that every device is tested here. What it must keep whatever its
estimates say: every unit owned once, every weight multiplied once, nothing larger than the device, and reasons with
numbers."""

from collections import Counter
from dataclasses import replace
from itertools import cycle, product
from typing import NamedTuple

import numpy as np
import pytest

import numbarnn
from general_cells import GENERAL, UNEVEN
from numbarnn.bench import planned
from numbarnn.bench.plan import profile_of
from numbarnn.bench.speed.command import SETS
from numbarnn.cells.definition import Noise
from numbarnn.cells.library import peephole_lstm, slstm
from numbarnn.cuda import arguments
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import trouble
from numbarnn.kernels.persistent.columns import RECURRENT, Block, Warp
from numbarnn.schedules import choose, estimate
from numbarnn.schedules.explain import explain, residences
from numbarnn.schedules.persistent import planner, shares
from numbarnn.schedules.persistent.tables import make_tables
from plan_orders import problem_of
from sum_cells import NOISE_CELLS

BOTH_PASSES = (False, True)
ISSUE_SHAPES = SETS["schedules"]
GRID_CELLS = ("lstm", "gru", "rnn_tanh", GENERAL["light"], UNEVEN["fewer"], UNEVEN["more"])  # A is G, 0, less, more
# Sizes that a block's units and a warp's columns divide, and that they do not.
GRID_HIDDEN = ((1,), (33,), (64,), (16, 16), (33, 17, 40))
GRID_DTYPES = ("float32", "float64", "float16")
GRID_OTHERS = tuple(product((0.0, 0.5), (6, 64)))  # dropout; SMs: few, so that there are several blocks and launches
by_profile = pytest.mark.parametrize("profile", profiles.PROFILES)


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
def check_launches(problem, backward):
    """The launches, after everything that must hold for them."""
    profile = problem.profile
    launches = planner.plan_launches(problem, profile, backward)
    ordered = launches[::-1] if backward else launches
    layers = [layer for launch in ordered for layer in range(launch.first, launch.last)]
    assert layers == list(range(problem.layers)), "each layer once, in order"
    for launch in launches:
        tile, hidden = launch.tile, problem.hidden_sizes[launch.first : launch.last]
        assert launch.blocks == launch.slices * sum(problem.directions * -(-size // tile.units) for size in hidden)
        assert 0 <= launch.slices * launch.sequences - problem.batch < launch.sequences
        assert launch.blocks <= profile.multiprocessors
        assert launch.shared_bytes == tile.shared_bytes(launch.sequences, problem.cell.num_states)
        assert launch.shared_bytes + planner.STATIC_SHARED_BYTES <= profile.shared_bytes
        assert tile.threads <= 1024 and tile.chunks % tile.gathered == 0
        assert (tile.math == "fma") or profile.tensor_cores
        step = launch.estimate
        parts = {name: getattr(step, name) for name in ("exchange", "read", "multiply", "add", "stream")}
        assert (step.stream > 0) == (step.stream_bytes > 0) == (tile.streamed_chunks > 0)
        assert tile.streamed_chunks % tile.gathered == 0 and min(tile.register_chunks, tile.shared_chunks) >= 0
        assert tile.math != "fma" or tile.register_chunks in (0, tile.chunks)
        assert min(parts.values()) >= 0 and parts[step.bound] == max(parts.values())
        assert step.step == pytest.approx(sum(parts.values()))
        assert launch.microseconds > problem.steps * step.step
    return launches


class Sized(NamedTuple):
    """A `tables.Place`, and how many elements stand there."""

    W: int
    R: int
    b_w: int = 0
    b_r: int = 0
    per_unit: int = -1
    W_size: int = 0
    R_size: int = 0


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
        told = trouble.explain(block.trouble + 3, "")
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
            if layer > launch.first:  # W of the launch's first layer is a product over all steps
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
    """`slstm(heads=4)` of recorded sizes; of 2,048 units a dense R is streamed in part."""
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


def test_fewer_turns_where_weights_are_in_shared_memory(monkeypatch):
    """The tiling stays what it is; backward weights are loaded once for 32 sequences, not twice."""
    launches = {}
    for most, backward in product((2, 4), BOTH_PASSES):
        monkeypatch.setattr(planner, "MOST_OCTETS", most)
        problem = problem_of("lstm", "float16", (1024,), 64, steps=30 + most)  # plans are remembered
        (launch,) = launches[most, backward] = check_launches(problem, backward)
        assert (launch.tile.resident, launch.sequences) == ("shared", 32)
    octets = {key: launch.tile.octets for key, (launch,) in launches.items()}
    assert octets == {(2, False): 2, (4, False): 2, (2, True): 2, (4, True): 4}
    before, after = (launches[most, True][0].estimate for most in (2, 4))
    assert after.multiply < 0.7 * before.multiply and after.step < 0.95 * before.step


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


# ------------------------------------------------------------------------------------------------------ real devices
@by_profile
@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16", "float64"))
def test_answers_for_the_issues_shapes(profile, dtype):
    for cell, shape, backward in product(("lstm", "gru"), ISSUE_SHAPES, BOTH_PASSES):
        problem = problem_of(cell, dtype, (shape.H,) * shape.L, shape.B, shape.T, profile)
        try:
            launches = check_launches(problem, backward)
        except planner.DoesNotFit as reason:
            assert_explained(str(reason), problem)
            continue
        for launch in launches:
            assert str(launch.blocks) in str(launch) and launch.tile.math in launch.details
            one, device = residences(problem, launch), profiles.get(profile)
            tile, room = launch.tile, device.shared_bytes if launch.tile.shared_chunks else 0
            room += 4 * device.registers if tile.register_chunks else 0
            room = room * tile.chunks // max(1, tile.kept_chunks) if tile.streamed_chunks else room
            assert sum(residence.blocks for residence in one) * problem.directions == launch.blocks
            assert tile.kept_chunks == 0 or max(residence.block_bytes for residence in one) < room
            if tile.kept_chunks == 0:
                continue
            assert sum(residence.total_bytes for residence in one) <= launch.blocks * room


def assert_explained(reason, problem):
    """A refusal names the problem and the device, and has the numbers of both."""
    profile = problem.profile
    kept = 8 if problem.dtype == "float64" else 4 if problem.dtype == "float32" or not profile.tensor_cores else 2
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


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("profile", ("h100", "h200"))
@pytest.mark.parametrize("cell, dtype", list(product(("lstm", "gru"), ("float16", "bfloat16", "float32"))))
def test_runs_up_to_4096_units(cell, dtype, profile, backward):
    """What is not kept on the chip is streamed, and the estimate says what that costs."""
    for hidden, batch in product((1536, 2048, 3072, 4096), (1, 16, 64, 128)):
        problem = problem_of(cell, dtype, (hidden,), batch, 100, profile)
        (launch,) = check_launches(problem, backward)
        tile, rows = launch.tile, launch.tile.rows_per_unit * launch.tile.units
        if hidden == 4096:
            assert (
                launch.blocks == 128
                and "streamed from the L2 cache" in launch.details
                and "not timed" in launch.details
            )
            weights = (
                rows * (4096 if not backward else 4096 * problem.cell.num_recurrent) * (2 if dtype != "float32" else 4)
            )
            turns = -(-batch // tile.sequences)
            assert launch.estimate.stream_bytes == turns * (weights * tile.streamed_chunks // tile.chunks)


def test_halves_of_2048_units_stay_on_the_chip():
    """In registers and shared memory together, of up to 16 sequences forward and backward."""
    problem = problem_of(dtype="float16", hidden=(2048,), batch=16, steps=100)
    for backward in BOTH_PASSES:
        (launch,) = check_launches(problem, backward)
        assert launch.tile.resident == "registers+shared" and "weights in registers (" in launch.details
        kept = launch.tile.warps * launch.tile.rows * launch.tile.chunks * 64
        assert launch.blocks * kept == 4 * 2048 * 2048 * 2, "all of R"


def test_what_fits_in_one_place_is_kept_there():
    """As recorded: no device has been asked how fast several places are."""
    for shape, dtype, backward in product(ISSUE_SHAPES, ("float16", "float32"), BOTH_PASSES):
        problem = problem_of("lstm", dtype, (shape.H,) * shape.L, shape.B, shape.T)
        for launch in planner.plan_launches(problem, problem.profile, backward):
            assert launch.tile.resident in ("registers", "shared"), launch


@pytest.mark.parametrize("backward", BOTH_PASSES)
def test_four_layers_in_one_launch(backward, monkeypatch):
    """Of 512 units in halves, 64 sequences: in shared memory, or with a part in registers, which is loaded once."""
    problem = problem_of(dtype="float16", hidden=(512,) * 4, batch=64, steps=100)
    whole = planner._best_launch(problem, problem.profile, 0, 4, backward)
    monkeypatch.setattr(planner, "MIXED", (True,))
    other = replace(problem, profile=replace(problem.profile, name="a device of mixed tiles"))  # planned anew
    mixed = planner._best_launch(other, other.profile, 0, 4, backward)
    assert (whole.tile.resident, mixed.tile.resident) == ("shared", "registers+shared")
    assert mixed.estimate.step < whole.estimate.step


def test_layers_that_stay_on_the_chip_are_not_streamed_to_share_a_launch():
    problem = problem_of(dtype="float16", hidden=(512,) * 8, batch=16, steps=100)
    for backward in BOTH_PASSES:
        assert not any(launch.tile.streamed_chunks for launch in check_launches(problem, backward))


def test_streaming_from_memory_takes_longer_than_from_the_cache():
    """Where all blocks' weights are larger than the L2 cache, whose bandwidth would let them through faster."""
    cached = problem_of(
        dtype="float16", hidden=(4096,), batch=16, profile=replace(profiles.get("h200"), l2_bytes=2**30)
    )
    (fast,), (slow,) = (
        planner.plan_launches(each, each.profile, False)
        for each in (cached, replace(cached, profile=profiles.get("h200")))
    )
    assert fast.tile == slow.tile and fast.estimate.stream_bytes == slow.estimate.stream_bytes
    ratio = slow.estimate.stream / fast.estimate.stream
    assert ratio == pytest.approx(cached.profile.l2_gb_s / cached.profile.memory_gb_s)


def test_auto_takes_what_is_estimated_faster_than_streaming():
    problem = problem_of(dtype="float16", hidden=(4096,), batch=64, steps=100)
    explanation = explain(choose("auto"), problem, False)
    assert explanation.taken.schedule == "stepwise" and "persistent would take" in explanation.why


@pytest.mark.parametrize(
    "options, words",
    [
        ({"splits_tf32": True}, "128 rows of weights and 8 warps leave too few .* allow_tf32=False or True more fit"),
        ({"dtype": "float64"}, "128 rows of weights and 8 warps leave too few registers to weights on their way"),
    ],
    ids=("three products", "float64"),
)
def test_refuses_4096_units_of_what_takes_more_registers(options, words):
    """Forward; backward, where a unit has one row, they fit."""
    problem = problem_of(hidden=(4096,), batch=16, **options)
    with pytest.raises(planner.DoesNotFit, match=words):
        planner.plan_launches(problem, problem.profile, False)
    check_launches(problem, True)


@pytest.mark.parametrize("backward", BOTH_PASSES)
def test_refuses_8192_units_in_float32(backward):
    problem = problem_of(hidden=(8192,), batch=64, steps=100)
    with pytest.raises(planner.DoesNotFit) as reason:
        planner.plan_launches(problem, problem.profile, backward)
    assert_explained(str(reason.value), problem)
    assert "8192" in str(reason.value) and "1024.0 MiB" in str(reason.value) and "132 SMs" in str(reason.value)


def parameter_bytes(shipped):
    """Of a kernel's parameters, each at a multiple of its own size."""
    total = 0
    for size in arguments._value_sizes("".join(arguments.Arguments("", shipped.arguments)._formats)):
        total += -total % size + size
    return total


RANDOM = replace(peephole_lstm, noise=(Noise(0.5), Noise(0.25, 1 / 0.75), Noise(0.1)))


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("cell", ("lstm", "rnn_tanh", peephole_lstm, RANDOM), ids=("lstm", "rnn", "per unit", "random"))
def test_parameters_of_kernels_are_counted(cell, backward):
    """All of them: a kernel with more than there is room for would not compile."""
    for layers, directions in ((1, 1), (9, 1), (3, 2)):
        problem = problem_of(
            cell, "float16", (16,) * layers, 4, profile=profiles.get("h200"), directions=directions, dropout=0.5,
            padded=True,
        )  # fmt: skip
        (launch, *_) = planner.plan_launches(replace(problem, hidden_sizes=(16,)), problem.profile, backward)
        found = parameter_bytes(planned.persistent_kernel(problem, replace(launch, last=layers)))
        assert found <= planner._parameter_bytes(problem, layers, backward)


def test_a_launch_has_no_more_layers_than_parameters_have_room_for():
    """Of nine layers those of a cell with random numbers would take 4,136 bytes."""
    for cell, launches in ((peephole_lstm, 1), (RANDOM, 2)):
        problem = problem_of(cell, "float32", (16,) * 9, 4)
        assert len(planner.plan_launches(problem, problem.profile, True)) == launches


def test_refuses_more_blocks_than_multiprocessors():
    problem = problem_of(hidden=(8192,))
    with pytest.raises(planner.DoesNotFit, match="32 units per block make 256 blocks, for 132 SMs"):
        planner.plan_launches(problem, problem.profile, False)


def test_refuses_more_blocks_than_multiprocessors_without_weights():
    problem = problem_of(GENERAL["light"], hidden=(8192,))
    with pytest.raises(planner.DoesNotFit, match="on NVIDIA H200: closest: 32 units per block make 256 blocks"):
        planner.plan_launches(problem, problem.profile, False)


def test_refuses_a_device_without_cooperative_launches():
    problem = problem_of(profile=replace(profiles.get("t4"), cooperative=False))
    with pytest.raises(planner.DoesNotFit, match="NVIDIA T4 has no cooperative launches"):
        planner.plan_launches(problem, problem.profile, False)


def test_same_answer_every_time():
    problem = problem_of(dtype="float16", hidden=(512, 256, 512), batch=64, directions=2)
    first = [planner.plan_launches(problem, problem.profile, backward) for backward in BOTH_PASSES]
    planner.forget()
    assert first == [planner.plan_launches(problem, problem.profile, backward) for backward in BOTH_PASSES]


# ------------------------------------------------------------------------------------ what is remembered of other calls
def without_memory(problem, profile, first, last, backward):
    """`planner._best_launch`, every tiling considered for the problem's own T."""
    launch = planner._best_tiling(problem, profile, first, last, backward)
    launch = planner._with_fewer_turns(problem, profile, launch)
    columns = planner._columns(problem, first, last, backward, launch.tile)
    return replace(launch, estimate=planner.estimate_of(problem, profile, launch, columns))


def plans_or_refusal(plan, problem):
    try:
        return [plan(problem, problem.profile, backward) for backward in BOTH_PASSES]
    except planner.DoesNotFit as refusal:
        return str(refusal)


def sweep():
    """Problems of several cells and devices, each with ever other T and B, in a random order."""
    cells, rng = cycle(("lstm", "gru", "rnn_tanh", GENERAL["light"], UNEVEN["more"])), np.random.default_rng(0)
    hidden = ((512,), (256, 256, 256, 256), (33, 17, 40), (128, 128, 64))
    kinds = list(product(hidden, ("float32", "float16", "float64"), ("h200", "a100"), (1, 2)))
    for sizes, dtype, profile, directions in rng.permutation(np.array(kinds, object))[:10]:
        cell = next(cells)
        for T, B in zip(rng.choice([1, 2, 3, 8, 25, 50, 100, 1000, 1001], 3), rng.integers(1, 150, 3), strict=True):
            for steps, batch in ((T, B), (T, 64), (50, B)):
                profile_ = profiles.get(profile)
                yield problem_of(cell, dtype, sizes, int(batch), int(steps), profile_, directions=int(directions))


def test_plans_are_those_of_a_planner_without_memory(monkeypatch):
    problems = list(sweep())
    found = [plans_or_refusal(planner.plan_launches, problem) for problem in problems]
    monkeypatch.setattr(planner, "_best_launch", without_memory)
    for problem, plans in zip(problems, found, strict=True):
        assert plans == plans_or_refusal(planner.plan_launches.__wrapped__, problem)
    assert sum(isinstance(plans, list) for plans in found) > len(found) / 2


def test_another_T_considers_no_tiling_and_makes_no_table(monkeypatch):
    """Nor does another T have other rows."""
    considered, launch_of = [], planner._launch
    monkeypatch.setattr(planner, "_launch", lambda *given: considered.append(given) or launch_of(*given))
    tables, made = {}, []
    places = dict.fromkeys(product(range(3), range(2)), Sized(0, 0))
    for T in (17, 18, 1000):
        problem = problem_of("gru", "float16", (320, 320, 320), 13, T, profiles.get("h100"), directions=2)
        for backward in BOTH_PASSES:
            for launch in planner.plan_launches(problem, problem.profile, backward):
                tables.setdefault((backward, launch.first), []).append(make_tables(problem, launch, places))
        made.append(len(considered))
    assert made[0] > 0 and made == made[:1] * 3
    for first, *others in tables.values():
        assert len(others) == 2 and all(other is first for other in others)


# ------------------------------------------------------------------------------------------------------ explanations
@pytest.mark.parametrize("backward", BOTH_PASSES)
def test_explanation_of_a_named_schedule(backward):
    problem = problem_of(hidden=(512, 512), dtype="float16", batch=64)
    explanation = explain(choose("persistent"), problem, backward)
    assert explanation.taken.schedule == "persistent" and explanation.why is None
    assert [option.schedule for option in explanation.others] == ["stepwise", "wavefront"]
    assert all(option.plan and option.microseconds is None for option in explanation.others)
    launches = planner.plan_launches(problem, problem.profile, backward)
    assert explanation.taken.launches == launches
    assert explanation.taken.microseconds == sum(launch.microseconds for launch in launches)
    text = str(explanation)
    assert text.startswith(f"persistent {'backward' if backward else 'forward'}: ")
    for launch in launches:
        assert launch.details in text and "of R" in text


def test_explanation_of_a_refusal():
    problem = problem_of(hidden=(8192,))
    with pytest.raises(RuntimeError, match="does not fit"):
        explain(choose("persistent"), problem, False)
    explanation = explain(choose("stepwise"), problem, False)
    (refused,) = [option for option in explanation.others if option.schedule == "persistent"]
    assert refused.plan is None and "1024.0 MiB" in refused.reason
    assert "instead, persistent: cannot run it: lstm with hidden size 8192" in str(explanation)


def test_explanation_on_the_cpu_does_not_alarm():
    on_cpu = replace(problem_of(), engine="cpu", profile=None)
    text = str(explain(choose("auto"), on_cpu, False))
    assert "persistent is for GPUs" in text and "cannot" not in text


def test_explanation_of_auto_says_why():
    for hidden in ((8192,), (4096,), (64, 64)):
        explanation = explain(choose("auto"), problem_of(hidden=hidden), False)
        assert explanation.why and f"(auto: {explanation.why})" in explanation.head
        assert {explanation.taken.schedule, *(option.schedule for option in explanation.others)} == {
            "stepwise", "wavefront", "persistent",
        }  # fmt: skip


def test_long_plans_are_shortened():
    text = str(explain(choose("wavefront"), problem_of(hidden=(64,) * 4, steps=100), False))
    plan = choose("wavefront").plan_forward(problem_of(hidden=(64,) * 4, steps=100))
    assert f"... {len(plan.tasks) - 12} more" in text
    assert str(plan.tasks[0]) in text and str(plan.tasks[-1]) in text and len(text.splitlines()) < 20


# ------------------------------------------------------------------------------------------- float32 by three products
@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("hidden, batch", list(product((256, 512, 768), (16, 64))))
def test_three_products_keep_to_tiles_that_spill_nothing(hidden, batch, backward):
    """Compiled for sm_90; and their estimate lies between FMA's and that of one product."""
    plain = problem_of(hidden=(hidden,), batch=batch)
    kinds = plain, replace(plain, splits_tf32=True), replace(plain, allow_tf32=True)
    (fma,), (three,), (one,) = [planner.plan_launches(kind, profiles.get("h200"), backward) for kind in kinds]
    assert (fma.tile.math, three.tile.math, one.tile.math) == ("fma", "tf32x3", "tf32")
    assert one.estimate.step < three.estimate.step < fma.estimate.step
    assert three.tile.warps <= 8 and three.tile.rows <= (64 if three.tile.octets == 1 else 32)
    assert "no device" in three.details and "no device" not in one.details


@pytest.mark.parametrize("dtype, profile", [("float16", "h200"), ("float64", "h200"), ("float32", "t4")])
def test_three_products_are_for_float32_on_tensor_cores(dtype, profile):
    plain = problem_of(dtype=dtype, hidden=(96,), batch=8)
    asked = replace(plain, splits_tf32=True)
    for backward in BOTH_PASSES:
        expected, found = (planner.plan_launches(each, profiles.get(profile), backward) for each in (plain, asked))
        assert [launch.tile for launch in found] == [launch.tile for launch in expected]


# ---------------------------------------------------------------------------------------------------------- profiles
def test_profiles_by_name():
    assert profiles.get("h200") is profiles.PROFILES["h200"]
    assert profiles.get(profiles.SIMULATOR) is profiles.SIMULATOR
    for name in ("v100", "H200", None, 3):
        with pytest.raises(ValueError, match="profile must be one of a100, .*" + repr(name)):
            profiles.get(name)


def test_profile_of_a_machine_without_gpu(monkeypatch):
    monkeypatch.setattr("numbarnn.engines.why_not", lambda name: f"no {name} today")
    with pytest.raises(RuntimeError, match=r"'device'.*no cuda today.*Name one of a100, h100"):
        profile_of("device")


@pytest.mark.gpu
def test_profile_of_this_machine():
    profile = profile_of("device")
    assert profile.multiprocessors > 0 and profile.shared_bytes >= 48 * 1024 and profile.registers >= 2**15
