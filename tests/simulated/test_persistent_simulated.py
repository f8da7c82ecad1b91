"""The persistent schedule with the real kernels, all blocks at once in the simulator: against float64,
with the same bits whoever comes first. That wrong kernels are found out is tested in test_persistent_mutants.py.
"""

from itertools import product

import numpy as np
import pytest
from persistent_setup import few_threads

import comparing
import tf32
from cases import CELLS, Case
from comparing import assert_close, assert_same_bits
from general_cells import UNEVEN
from grouped_tiles import CHEAP, launches_of
from numbarnn.bench import planned
from numbarnn.cells.definition import Chances
from numbarnn.common.philox import noise_words
from numbarnn.compile import units
from numbarnn.cuda import simulator
from numbarnn.cuda.arguments import Arguments
from numbarnn.cuda.launch import Kernel
from numbarnn.engines.gpu import profiles
from numbarnn.kernels.persistent import exchange
from numbarnn.schedules.persistent import residence, tilings
from numbarnn.schedules.persistent import schedule as schedule
from problems import make_problem
from running import infer, train, train_and_draw

ORDERS = 2  # of the threads, where who comes first might matter
full = pytest.mark.full


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


def check(case, limit=None, orders=1):
    """Inference and training agree with float64, with the same bits in so many orders of the threads."""
    problem, first = make_problem(case), None
    for launch in launches_of(case):
        assert all(case.hidden[layer] > launch.tile.units for layer in range(launch.first, launch.last)), launch
    for seed in range(orders):
        layer = problem.layer("sim", schedule="persistent")
        with simulator.schedule(seed):
            outputs, (found, drawn) = infer(layer, problem), train_and_draw(layer, problem)
        if first is None:
            first, without = (outputs, found), problem.expected()
            for mask, expected in zip(drawn.masks, problem.masks, strict=True):
                np.testing.assert_array_equal(mask, expected, strict=True)
            assert_close(case, outputs, {name: without[name] for name in outputs}, "inference", limit)
            assert_close(case, found, problem.expected(drawn), "training", limit)
        assert_same_bits(outputs, first[0], f"inference, seed {seed}")
        assert_same_bits(found, first[1], f"training, seed {seed}")


# ---------------------------------------------------------------------------------------------- agrees with float64
def cases():
    """Every cell; then sizes, steps, batches, options. More than one block per layer everywhere: of 4 units."""
    for cell in CELLS:
        usual = [] if cell == "gru" else full  # test_conformance.py has each, in one order of the threads
        yield pytest.param(Case(cell, T=3, B=2, hidden=(7, 5), dropout=0.4), marks=usual)
        yield pytest.param(Case(cell, T=3, B=2, hidden=(9,), I=3), marks=full)
        yield pytest.param(Case(cell, T=2, B=1, hidden=(5,), directions=2), marks=full)
    yield Case("lstm", T=2, B=2, hidden=(5, 6, 5), dropout=0.3)
    yield Case("lstm", T=1, B=1, hidden=(5, 6), state=False)
    yield Case("gru", T=1, B=2, hidden=(5,), directions=2, given=("dhy",))
    yield Case("gru", T=2, B=1, hidden=(5, 6), directions=2, dropout=0.3, bias=False)
    yield pytest.param(Case("lstm", T=2, B=1, hidden=(8, 8), directions=2, state=False), marks=full)
    yield Case("rnn_tanh", T=3, B=17, hidden=(9,))  # more sequences than are multiplied at once
    yield pytest.param(Case("lstm", T=2, B=17, hidden=(5, 5)), marks=full)
    yield Case("rnn_tanh", T=3, B=1, hidden=(24,))  # two warps share a product
    yield Case("rnn_tanh", T=2, B=1, hidden=(17,))  # one of them a single column


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_agrees_with_float64(case):
    check(case, orders=ORDERS)


HALF_CASES = [
    Case("lstm", T=2, B=2, hidden=(8, 8), dtype="float16"),  # rows of 16 bytes
    Case("gru", T=2, B=2, hidden=(5, 7), dtype="bfloat16", dropout=0.3),  # number by number
    Case("rnn_tanh", T=2, B=9, hidden=(8,), directions=2, dtype="bfloat16"),
]


PLACES = {"registers": {"registers": 65536}, "shared": {}}


@pytest.mark.parametrize(
    "case, where",
    [
        pytest.param(case, where, marks=full if number and number != 1 + turn else [], id=f"{case}-{where}")
        for number, case in enumerate(HALF_CASES)
        for turn, where in enumerate(PLACES)
    ],
)
def test_halves_agree_with_float64(small, case, where):
    """With weights in registers, in shared memory where registers are few."""
    small(**PLACES[where])
    for launch in launches_of(case):
        assert (launch.tile.math, launch.tile.resident) == ("mma", where)
        assert launch.tile.aligned == all(size % 8 == 0 for size in case.hidden)
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", T=2, B=2, hidden=(5,)),
        pytest.param(Case("gru", T=2, B=1, hidden=(9,), directions=2), marks=full),
        Case("rnn_relu", T=2, B=9, hidden=(9,)),
    ],
    ids=str,
)
def test_weights_in_registers_without_tensor_cores_agree_with_float64(small, case):
    small(registers=65536)
    assert {(launch.tile.math, launch.tile.resident) for launch in launches_of(case)} == {("fma", "registers")}
    check(case)


@pytest.mark.parametrize(
    "case, registers",
    [(Case("lstm", T=2, B=2, hidden=(8, 8)), 0), (Case("gru", T=2, B=2, hidden=(5,)), 65536)],
    ids=str,
)
def test_tf32_agrees_to_its_own_rounding(small, monkeypatch, case, registers):
    """TF32 has the mantissa of float16: products of numbers rounded to it."""
    small(registers=registers)
    monkeypatch.setattr(tilings, "_math", lambda problem, profile: "tf32")
    assert {launch.tile.math for launch in launches_of(case)} == {"tf32"}
    check(case, Case(case.cell, T=case.T, B=case.B, hidden=case.hidden, dtype="float16").limit)


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", T=2, B=2, hidden=(5, 5, 5), dropout=0.3),
        Case("gru", T=2, B=1, hidden=(5, 6), directions=2),
        Case("gru", T=2, B=2, hidden=(8, 8), dtype="float16"),
    ],
    ids=str,
)
def test_several_launches_agree_with_float64(small, case):
    """One after the other, where the device has room for few layers at once."""
    small(multiprocessors=2 * 2 if case.dtype == "float32" else 2)
    assert len(launches_of(case)) == 2 * 2
    check(case)


@pytest.mark.parametrize(
    "case, slices",
    [
        pytest.param(Case("lstm", T=2, B=17, hidden=(5, 5), dropout=0.3), 3, marks=full),
        (Case("gru", T=2, B=10, hidden=(6,), directions=2), 2),
        (Case("gru", T=2, B=10, hidden=(8,), dtype="bfloat16"), 2),
        (Case("rnn_tanh", T=2, B=25, hidden=(5,)), 2),  # 16 sequences and 9, 16 at once
    ],
    ids=str,
)
def test_slices_of_the_batch_agree_with_float64(small, case, slices):
    """Blocks with the same units share the batch."""
    small(SLICES=(slices,), multiprocessors=100)
    for launch in launches_of(case):
        assert -(-case.B // launch.sequences) == slices
    check(case)


@pytest.mark.parametrize(
    "tile", [pytest.param(tile, marks=full if n % 2 else []) for n, tile in enumerate(CHEAP)], ids=str
)
def test_several_groups_of_chunks_agree_with_float64(monkeypatch, tile):
    """A warp gathers its columns in several groups, as of large layers."""
    tile.choose(monkeypatch, "sim", profiles.SIMULATOR)
    check(tile.case, tile.limit, ORDERS if tile.math == "fma" else 1)  # lanes of mma meet in each instruction


@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", T=2, B=27, hidden=(8,), dtype="float16"),
        pytest.param(Case("gru", T=2, B=57, hidden=(8, 8), dtype="bfloat16"), marks=full),  # the last alone
    ],
    ids=str,
)
def test_more_sequences_at_once_give_the_same_bits(small, monkeypatch, case):
    """32 of them, in fewer turns, where turns would load weights from shared memory; forward of one layer."""
    monkeypatch.setattr(residence, "_free_registers", lambda tile, room: 0)  # so that weights are in shared memory
    problem, found = make_problem(case), []
    for most in (2, 4):
        small(MOST_N8=most, multiprocessors=100)
        turning = [launch for launch in launches_of(case) if launch.backward or len(case.hidden) == 1]
        assert {launch.tile.n8 for launch in turning} == {most}
        layer = problem.layer("sim", schedule="persistent")
        found.append(infer(layer, problem) | train(layer, problem)[0])
    assert_same_bits(*found, "fewer turns")
    check(case)


@pytest.mark.parametrize("warps", (2, 8))
def test_other_numbers_of_warps_agree_with_float64(small, warps):
    """Threads have one (unit, sequence) pair, several, or none."""
    small(warps=(warps,))
    case = Case("gru", T=2, B=17, hidden=(9,))
    assert {launch.tile.warps for launch in launches_of(case)} == {warps}
    check(case)


# --------------------------------------------------------------------------------------------------- cells of one's own
MASKED = dict(T=4, B=3, lengths=(3, 0, 4))
SIZES = (
    dict(T=3, B=2, hidden=(7, 5, 6), dropout=0.3),
    dict(hidden=(5, 6), directions=2, resets=True, **MASKED),
    dict(hidden=(5, 5), bias="input", resets=True, **MASKED),
    dict(T=2, B=17, hidden=(5, 5), bias="recurrent"),
)
OWN = ("light", *UNEVEN, "noisy")  # no R, fewer gates of ah than of ax, more, random numbers


def own_cases():
    """Each cell of one's own with the sizes in turn; with every size if `full`."""
    for number, (cell, size) in enumerate(product(OWN, SIZES)):
        usual = number // len(SIZES) == number % len(SIZES)
        yield pytest.param(Case(cell, **size), marks=[] if usual else full, id=str(Case(cell, **size)))


@pytest.mark.parametrize("case", list(own_cases()), ids=str)
def test_own_cells_agree_with_float64(case):
    check(case)


@pytest.mark.parametrize(
    "case, device",
    [
        (Case("light", T=2, B=2, hidden=(8, 8), dtype="float16"), {}),
        (Case("fewer", T=2, B=2, hidden=(8, 8), dtype="float16", dropout=0.3), {"registers": 65536}),
        (Case("more", T=2, B=2, hidden=(5, 7), dtype="bfloat16"), {"registers": 65536}),
        (Case("noisy", T=2, B=2, hidden=(8, 8), dtype="bfloat16"), {}),
    ],
    ids=str,
)
def test_own_cells_in_halves_agree_with_float64(small, case, device):
    small(**device)
    assert {launch.tile.math for launch in launches_of(case)} == {"mma"}
    check(case)


@full
def test_own_cells_with_weights_in_registers_agree_with_float64(small):
    small(registers=65536)
    case = Case("fewer", T=2, B=1, hidden=(5, 5))
    assert {(launch.tile.math, launch.tile.resident) for launch in launches_of(case)} == {("fma", "registers")}
    check(case)


@pytest.mark.parametrize("cell", ("light", "noisy"))
def test_own_cells_in_several_launches_agree_with_float64(small, cell):
    small(multiprocessors=2)
    case = Case(cell, T=2, B=2, hidden=(5, 5))
    assert len(launches_of(case)) == 2 * 2
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        Case("rnn_tanh", T=2, B=2, hidden=(6, 8), heads=2, drop=0.3),
        Case("lstm", T=2, B=2, hidden=(5,), drop=0.3, dtype="float16"),
    ],
    ids=str,
)
def test_another_R_than_the_parameter_agrees_with_reference(case):
    """Blocks on the diagonal, and weights dropped out; replayed."""
    comparing.check(case, "sim", "persistent", calls=2)


def test_random_numbers_are_those_of_their_place():
    """Of a cell whose h says what it drew: those of the Philox, by layer, direction, sequence, unit and time."""
    case = Case("drawn", T=3, B=2, hidden=(5, 6), directions=2)
    layer, problem = case.layer("sim", schedule="persistent", seed=7), make_problem(case)
    noise = case.definition.noise
    forms = tuple(one.form for one in noise)
    chances = Chances(tuple(round(one.rate * 2**32) for one in noise), tuple(np.float32(one.kept) for one in noise))
    for call in range(2):
        y, _, tape = layer.forward(problem.x)
        words, draw = noise_words(7, 4, call), units.noise_loader(forms, "python", "float32")
        for direction, t, b, j in np.ndindex(2, 3, 2, 6):
            numbers = draw(chances, words[2 + direction], np.uint64(b * 6 + j), np.uint64(t))
            assert y[t, b, direction * 6 + j] == sum(2**k * n for k, n in enumerate(numbers))
        gradient = layer.backward(tape, np.ones_like(y)).params["bias_ih_l1_reverse"]  # backward draws once more
        np.testing.assert_allclose(gradient, y[:, :, 6:].sum((0, 1)), rtol=1e-6)
    y, _ = layer(problem.x)
    assert np.all(y == y[0, 0, 0]) and y[0, 0, 0] == sum(2**k * one.mean for k, one in enumerate(noise))


def test_not_a_number_is_passed_on():
    """NaNs in x, in states and in dy, also those whose bits mean "not written yet": nobody waits for them."""
    case = Case("gru", T=3, B=2, hidden=(5, 5))
    problem = make_problem(case)
    x, state, dy = problem.x.copy(), problem.h.copy(), problem.dy.copy()
    x.view(np.uint32)[1, 0, 2] = state.view(np.uint32)[1, 1, 3] = dy.view(np.uint32)[2, 0, 4] = exchange.UNWRITTEN
    found = []
    for name in ("stepwise", "persistent"):
        layer = problem.layer("sim", schedule=name)
        y, hy, tape = layer.forward(x, state)
        gradients = layer.backward(tape, dy)
        found.append([np.isnan(array) for array in (y, hy, gradients.x, gradients.state, gradients.weights)])
    for stepwise, persistent_ in zip(*found, strict=True):
        np.testing.assert_array_equal(persistent_, stepwise)
    assert 0 < found[0][0].mean() < 1


# ------------------------------------------------------------------------------------------------------ the catalog
@pytest.mark.parametrize(
    "case",
    [
        Case("lstm", T=2, B=2, hidden=(5, 5), dropout=0.3),
        Case("gru", T=2, B=2, hidden=(5, 7), directions=2),
        Case("rnn_tanh", T=2, B=2, hidden=(8,), dtype="float16"),
    ],
    ids=str,
)
def test_planned_kernels_are_those_that_are_launched(monkeypatch, case):
    """`numbarnn kernels` compiles the same kernels for the same types of arguments, with as much shared memory."""
    launched, bind = [], Kernel.bind

    def record(kernel, config, *arguments):
        if config.cooperative:
            signature = Arguments(kernel.name, arguments).signature
            launched.append((kernel, signature, config.block[0], config.shared_bytes))
        return bind(kernel, config, *arguments)

    monkeypatch.setattr(Kernel, "bind", record)
    problem, layer = make_problem(case), case.layer("sim", schedule="persistent")
    train(layer, problem)
    infer(layer, problem)
    expected = []
    for training, backward in ((True, False), (True, True), (False, False)):
        asked = layer.stack.problem(case.T, case.B, training)
        for launch in schedule.SCHEDULE.launches(asked, backward):
            one = planned.persistent_kernel(asked, launch)
            expected.append((one.kernel, one.signature[1], one.threads, one.dynamic_shared_bytes))
    assert launched == expected


@pytest.mark.parametrize(
    "case, registers",
    [
        (Case("lstm", T=3, B=2, hidden=(16,)), 65536),
        (Case("gru", T=2, B=2, hidden=(13, 7), directions=2), 0),
        pytest.param(Case("rnn_relu", T=3, B=9, hidden=(21,)), 65536, marks=full),
    ],
    ids=str,
)
def test_three_products_of_tf32_err_as_float32_does(small, case, registers):
    """Weights in registers and in shared memory; several layers, directions and slices; odd sizes."""
    small(registers=registers)
    tf32.require_float32(tf32.errors(case, "sim"))


def test_tensor_cores_take_float32_only_when_allowed():
    """`allow_tf32` is off by default; allowed, results differ, by no more than TF32's rounding of the operands."""
    case = Case("lstm", T=3, B=2, hidden=(16,))
    problem, found = make_problem(case), {}
    for allowed in (False, True):
        layer = case.layer("sim", schedule="persistent", allow_tf32=allowed)
        assert layer.stack.problem(case.T, case.B, False).allow_tf32 is allowed
        (launch,) = schedule.SCHEDULE.launches(layer.stack.problem(case.T, case.B, False), False)
        assert launch.tile.math == ("tf32" if allowed else "fma")
        found[allowed] = infer(layer, problem)["y"]
    difference = np.abs(found[True] - found[False]).max()
    assert 0 < difference < 16 * 2.0**-11 * np.abs(found[False]).max()
