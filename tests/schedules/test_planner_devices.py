"""The planner of the persistent schedule on real devices: what fits, where weights are, what is refused and why; the
devices' profiles."""

from dataclasses import replace
from itertools import product

import pytest

from numbarnn import engines
from numbarnn.bench import planned
from numbarnn.bench.shapes import SETS
from numbarnn.cells.definition import Noise
from numbarnn.cells.library import layer_norm_lstm, peephole_lstm
from numbarnn.cuda import arguments
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import choose
from numbarnn.schedules.explain import explain, residences
from numbarnn.schedules.persistent import planner, tilings
from plan_orders import problem_of
from planned_launches import check_launches

BOTH_PASSES = (False, True)
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
            one, device = residences(problem, launch), profiles.get(profile)
            tile, room = launch.tile, device.shared_bytes if launch.tile.shared_chunks else 0
            room += 4 * device.registers if tile.register_chunks else 0
            assert sum(residence.blocks for residence in one) * problem.directions == launch.blocks
            assert max(residence.block_bytes for residence in one) < room
            assert sum(residence.total_bytes for residence in one) <= launch.blocks * room


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
CELLS = {"lstm": "lstm", "rnn": "rnn_tanh", "per unit": peephole_lstm, "random": RANDOM, "sums": layer_norm_lstm}


@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
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


def test_profiles_by_name():
    assert profiles.get("h200") is profiles.PROFILES["h200"]
    assert profiles.get(profiles.SIMULATOR) is profiles.SIMULATOR
    for name in ("v100", "H200", None, 3):
        with pytest.raises(ValueError, match="profile must be one of a100, .*" + repr(name)):
            profiles.get(name)


@pytest.mark.gpu
def test_profile_of_this_machine():
    profile = engines.get("cuda").profile
    assert profile.multiprocessors > 0 and profile.shared_bytes >= 48 * 1024 and profile.registers >= 2**15
