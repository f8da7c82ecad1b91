"""Persistent kernels in the simulator, all blocks at once, against float64: a table of tiles, exchanges and devices.

Every cell and option, in one order of the threads: test_conformance.py. Wrong kernels are found: test_mutants.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest

import comparing
import formed_loops
import tf32
from cases import CELLS, Case
from comparing import assert_close, assert_same_bits
from grouped_tiles import CHEAP, MIXED_TILES, launches_of, tiles_made
from numbarnn.bench import planned
from numbarnn.cuda import simulator
from numbarnn.cuda.arguments import Arguments
from numbarnn.cuda.launch import Kernel
from numbarnn.engines.gpu import profiles
from numbarnn.kernels.persistent import exchange
from numbarnn.schedules.persistent import planner, residence, schedule, tilings
from problems import make_problem
from running import infer, train, train_and_draw

full = pytest.mark.full
NOTHING = MappingProxyType({})
REGISTERS = {"registers": 65536}  # room for weights in registers


class Row(NamedTuple):
    """A case on a device.

    Attributes:
        device: changes of the small device, see `threads.small_device`.
        shows: what holds for each launch or its tile, by name; "launches": how many there are.
        orders: in how many orders of the threads the same bits must come out.
    """

    case: Case
    device: Mapping = NOTHING
    shows: Mapping = NOTHING
    orders: int = 1

    def __str__(self):
        return "-".join([str(self.case), *(f"{name}_{value}" for name, value in self.device.items())])


def check(case, orders=1, limit=None):
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


MASKED = dict(T=4, B=3, lengths=(3, 0, 4), resets=True)
MMA, FMA = {"math": "mma"}, {"math": "fma"}
USUAL = [
    # Several layers in a launch, one step, one sequence, more sequences than are multiplied at once, shared products.
    Row(Case("gru", T=3, B=2, hidden=(7, 5), dropout=0.4), orders=2),
    Row(Case("lstm", T=1, B=1, hidden=(5, 6), state=False)),
    Row(Case("gru", T=1, B=2, hidden=(5,), directions=2, given=("dhy",))),
    Row(Case("rnn_tanh", T=3, B=17, hidden=(9,)), orders=2),
    Row(Case("rnn_tanh", T=2, B=1, hidden=(17,))),
    # How products are computed, and where weights are.
    Row(Case("lstm", T=2, B=2, hidden=(8, 8), dtype="float16"), {}, MMA | {"resident": "shared", "aligned": True}),
    Row(Case("gru", T=2, B=2, hidden=(5, 7), dtype="bfloat16"), REGISTERS, MMA | {"resident": "registers"}),
    Row(Case("rnn_relu", T=2, B=9, hidden=(9,)), REGISTERS, FMA | {"resident": "registers"}),
    # Several launches; slices of the batch; numbers of warps.
    Row(Case("gru", T=2, B=1, hidden=(5, 6), directions=2), {"multiprocessors": 4}, {"launches": 4}),
    Row(Case("gru", T=2, B=10, hidden=(6,), directions=2), {"multiprocessors": 100, "SLICES": (2,)}, {"slices": 2}),
    Row(Case("gru", T=2, B=17, hidden=(9,)), {"warps": (8,)}, {"warps": 8}),
    # Custom cells: fewer gates of ah than of ax, random numbers; another R than the parameter.
    Row(Case("fewer", T=2, B=2, hidden=(8, 8), dtype="float16", dropout=0.3), REGISTERS, MMA),
    Row(Case("noisy", T=2, B=2, hidden=(5, 5)), {"multiprocessors": 2}, {"launches": 4}),
    Row(Case("rnn_tanh", T=2, B=2, hidden=(6, 8), heads=2, drop=0.3), orders=2),
    # What blocks exchange within a step: products, sums, projections.
    Row(Case("gru_reset_before", T=2, B=2, hidden=(8, 8), dropout=0.4), {"warps": (4,)}, orders=2),
    Row(Case("gru_reset_before", T=3, B=2, hidden=(16,), heads=2), {"warps": (4,)}),
    Row(Case("gru_reset_before", T=3, B=10, hidden=(9,)), {"multiprocessors": 6, "SLICES": (2,)}, {"slices": 2}),
    Row(Case("chain", T=3, B=2, hidden=(9,)), {"warps": (4,)}),
    Row(Case("layer_norm_lstm", T=3, B=3, hidden=(8,), lengths=(2, 0, 3), resets=True, dtype="float16")),
    Row(Case("lstm", proj_size=5, T=3, B=2, hidden=(9,)), {"warps": (2,)}, orders=2),  # of 3 blocks one has no output
    Row(Case("lstm", proj_size=5, T=2, B=2, hidden=(8, 8), dropout=0.4, resets=True), {"warps": (4,)}),
]
MORE = [
    Row(Case("ladder", T=2, B=2, hidden=(9,)), {"warps": (4,)}),
    Row(Case("normed", T=2, B=3, hidden=(9,)), orders=2),
    Row(Case("more", hidden=(5, 6), directions=2, **MASKED)),
    Row(Case("light", T=3, B=2, hidden=(7, 5, 6), dropout=0.3)),
    *(Row(Case(cell, T=3, B=2, hidden=(7, 5), dropout=0.4), orders=2) for cell in CELLS),
    Row(Case("lstm", T=2, B=17, hidden=(5, 5))),
    Row(Case("gru", T=2, B=2, hidden=(5, 7), dtype="bfloat16", dropout=0.3), {}, MMA),
    Row(Case("rnn_tanh", T=2, B=9, hidden=(8,), directions=2, dtype="bfloat16"), REGISTERS, MMA),
    Row(Case("lstm", T=2, B=2, hidden=(5, 5, 5), dropout=0.3), {"multiprocessors": 4}, {"launches": 4}),
    Row(Case("gru", T=2, B=2, hidden=(8, 8), dtype="float16"), {"multiprocessors": 2}, {"launches": 4}),
    Row(Case("lstm", T=2, B=17, hidden=(5, 5), dropout=0.3), {"multiprocessors": 100, "SLICES": (3,)}, {"slices": 3}),
    Row(Case("gru", T=2, B=10, hidden=(8,), dtype="bfloat16"), {"multiprocessors": 100, "SLICES": (2,)}),
    Row(Case("rnn_tanh", T=2, B=25, hidden=(5,)), {"multiprocessors": 100, "SLICES": (2,)}),  # 16 sequences and 9
    *(Row(Case(cell, hidden=(5, 5), bias="input", **MASKED)) for cell in ("light", "fewer", "noisy")),
    *(Row(Case(cell, T=2, B=17, hidden=(5, 5), bias="recurrent")) for cell in ("light", "fewer", "more", "noisy")),
    Row(Case("gru_reset_before", T=3, B=2, hidden=(5, 6), directions=2, dropout=0.4), {"warps": (2,)}, orders=2),
    Row(Case("blend", T=3, B=3, hidden=(8, 8), resets=True, dtype="bfloat16"), {"warps": (4,)}),
    Row(Case("multiplicative_lstm", T=3, B=9, hidden=(9,)), {"warps": (2,)}),
    Row(Case("ladder", T=3, B=2, hidden=(9,)), {"warps": (4,)}, orders=2),
    Row(Case("normed", T=4, B=3, hidden=(9, 5), directions=2, dropout=0.4), orders=2),
    Row(Case("normed", T=3, B=10, hidden=(9,)), {"multiprocessors": 6, "SLICES": (2,)}, {"slices": 2}),
    Row(Case("layer_norm_gru", T=3, B=9, hidden=(8, 8), dtype="bfloat16")),
    Row(Case("lstm", proj_size=5, T=3, B=2, hidden=(6, 7), directions=2, dropout=0.4), {"warps": (2,)}, orders=2),
    Row(Case("lstm", proj_size=8, T=3, B=3, hidden=(16,), lengths=(2, 0, 3), resets=True, dtype="float16")),
    Row(Case("lstm", proj_size=5, T=3, B=10, hidden=(9,)), {"multiprocessors": 6, "SLICES": (2,)}, {"slices": 2}),
    Row(Case("lstm", proj_size=5, T=3, B=3, hidden=(8, 8), directions=2, lengths=(3, 1, 2)), {"warps": (8,)}),
    Row(Case("lstm", proj_size=16, T=3, B=2, hidden=(24,), dtype="bfloat16"), {"warps": (4,)}),
    *(Row(Case("recurrent_highway 3", T=2, B=1, hidden=(5,)), {"warps": (warps,)}) for warps in (4, 8)),
]


def runnable(rows):
    """Those of which float64 is known: of custom cells PyTorch's autograd tells."""
    return [row for row in rows if getattr(row, "values", [row])[0].case.of_reference or find_spec("torch")]


ROWS = runnable([*USUAL, *(pytest.param(row, marks=full) for row in MORE)])


def require_shown(row):
    """What the row says of its launches holds."""
    found = launches_of(row.case)
    for name, value in row.shows.items():
        if name == "launches":
            assert len(found) == value
        else:
            assert {getattr(one.tile, name, getattr(one, name, None)) for one in found} == {value}, name


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_agrees_with_float64(change, row):
    change(**row.device)
    require_shown(row)
    check(row.case, row.orders)


# -------------------------------------------------------------------------------- the first layer multiplies its input
GIVEN = [
    Row(Case("lstm", T=3, B=2, I=3, hidden=(5, 6), dropout=0.3)),
    Row(Case("gru", T=2, B=9, I=8, hidden=(8,), directions=2)),
    Row(Case("rnn_tanh", T=3, B=2, I=5, hidden=(6,), lengths=(3, 1), resets=True)),
    Row(Case("lstm", T=2, B=3, I=24, hidden=(8,), dtype="bfloat16"), REGISTERS),
    Row(Case("lstm", T=2, B=2, I=4, hidden=(8, 16), dropout=0.3), {"multiprocessors": 4}, {"launches": 4}),
    *(pytest.param(row, marks=full) for row in (
        Row(Case("ladder", T=2, B=9, I=7, hidden=(5,)), {"warps": (4,)}),
        Row(Case("rnn_relu", T=2, B=1, I=7, hidden=(5,), bias=False)),
        Row(Case("gru", T=2, B=2, I=8, hidden=(8, 8), dtype="float16")),
        Row(Case("normed", T=3, B=2, I=3, hidden=(5, 6), dropout=0.3)),
        Row(Case("gru_reset_before", T=3, B=3, I=8, hidden=(8,), lengths=(2, 0, 3), resets=True), {"warps": (4,)}),
        Row(Case("lstm", T=3, B=2, I=12, hidden=(8, 7), proj_size=5, directions=2), {"warps": (4,)}),
        Row(Case("projected_lstm", T=2, B=2, I=16, hidden=(16,), dtype="float16"), {"warps": (4,)}),
    )),
]  # fmt: skip


@pytest.fixture
def given(monkeypatch, change):
    """A function that makes the planner let the first layer multiply x itself, on a device with these changes."""

    def choose(**device):
        monkeypatch.setattr(planner, "_may_multiply_input", lambda problem, layer: True)
        change(LEAST_GAIN=-1e6, **device)

    return choose


@pytest.mark.parametrize("row", runnable(GIVEN), ids=str)
def test_a_first_layer_that_multiplies_x_itself_agrees_with_float64(given, row):
    given(**row.device)
    require_shown(row)
    forward = launches_of(row.case)[: len(launches_of(row.case)) // 2]
    assert all(launch.tile.given and "input's product of layer" in launch.details for launch in forward)
    comparing.check(row.case, "sim", "persistent")


def test_nobody_waits_for_x(given):
    """Not even for the NaN that elsewhere says that nobody has written yet: it reaches the sequence that has it."""
    given()
    problem = make_problem(Case("rnn_tanh", T=2, B=2, I=4, hidden=(8,)))
    problem.x.view(np.uint32)[0, 1, 2] = exchange.UNWRITTEN
    y = infer(problem.layer("sim", schedule="persistent"), problem)["y"]
    assert np.isnan(y[:, 1]).all() and np.isfinite(y[:, 0]).all()


# ----------------------------------------------------------------------------------------- several groups of chunks
USUAL_TILES = {"mma-registers", "fma-shared", "tf32x3-shared"}  # of rnn_tanh


@pytest.mark.parametrize("tile", [
    pytest.param(tile, marks=[] if tile.case.cell == "rnn_tanh" and f"{tile.math}-{tile.resident}" in USUAL_TILES
                 else full) for tile in CHEAP
], ids=str)  # fmt: skip
def test_several_groups_of_chunks_agree_with_float64(monkeypatch, tile):
    """A warp gathers its columns in several groups, as of large layers."""
    tile.choose(monkeypatch, "sim", profiles.SIMULATOR)
    check(tile.case, 2 if tile.math == "fma" else 1, tile.limit)  # lanes of mma meet in each instruction


@pytest.mark.parametrize("tile", [pytest.param(tile, marks=full if n != 3 else []) for n, tile in
                                  enumerate(MIXED_TILES)], ids=str)  # fmt: skip
def test_weights_in_several_places_give_the_same_bits(monkeypatch, tile):
    found = []
    for seed, resident in enumerate(("shared", tile.resident)):
        with monkeypatch.context() as patched:
            patched.setattr(residence, "MOST_ACCUMULATORS", 1)  # others add in another order
            replace(tile, resident=resident).choose(patched, "sim", profiles.SIMULATOR)
            problem = make_problem(tile.case)
            layer = problem.layer("sim", schedule="persistent")
            with simulator.schedule(seed):
                found.append(infer(layer, problem) | train(layer, problem)[0])
    assert_same_bits(*found)


@pytest.mark.parametrize("case", [
    Case("lstm", T=2, B=27, hidden=(8,), dtype="float16"),
    pytest.param(Case("gru", T=2, B=57, hidden=(8, 8), dtype="bfloat16"), marks=full),  # the last alone
], ids=str)  # fmt: skip
def test_more_sequences_at_once_give_the_same_bits(change, monkeypatch, case):
    """32 of them, in fewer turns, where turns would load weights from shared memory; forward of one layer."""
    monkeypatch.setattr(residence, "_free_registers", lambda tile, room: 0)  # so that weights are in shared memory
    problem, found = make_problem(case), []
    for most in (2, 4):
        change(MOST_N8=most, multiprocessors=100)
        turning = [launch for launch in launches_of(case) if launch.backward or len(case.hidden) == 1]
        assert {launch.tile.n8 for launch in turning} == {most}
        layer = problem.layer("sim", schedule="persistent")
        found.append(infer(layer, problem) | train(layer, problem)[0])
    assert_same_bits(*found, "fewer turns")


# ------------------------------------------------------------------------------------------------------------- TF32
@pytest.mark.parametrize("case, registers", [
    (Case("lstm", T=2, B=2, hidden=(8, 8)), 0),
    pytest.param(Case("gru", T=2, B=2, hidden=(5,)), 65536, marks=full),
], ids=str)  # fmt: skip
def test_tf32_agrees_to_its_own_rounding(change, monkeypatch, case, registers):
    """TF32 has the mantissa of float16: products of numbers rounded to it."""
    change(registers=registers)
    monkeypatch.setattr(tilings, "_math", lambda problem, profile: "tf32")
    assert {launch.tile.math for launch in launches_of(case)} == {"tf32"}
    check(case, limit=replace(case, dtype="float16").limit)


@pytest.mark.parametrize("case, registers", [
    (Case("lstm", T=3, B=2, hidden=(16,)), 65536),
    pytest.param(Case("gru", T=2, B=2, hidden=(13, 7), directions=2), 0, marks=full),
    pytest.param(Case("rnn_relu", T=3, B=9, hidden=(21,)), 65536, marks=full),
], ids=str)  # fmt: skip
def test_three_products_of_tf32_err_as_float32_does(change, case, registers):
    """And one product, where it is allowed, errs more."""
    change(registers=registers)
    tf32.require_float32(tf32.errors(case, "sim"))


# --------------------------------------------------------------------------------------- blocks on the diagonal of R
HEADS = Case("rnn_tanh", T=3, B=2, hidden=(32,), heads=2)


# ------------------------------------------------------------------------------------------------- what is no number
def test_what_is_not_a_number_stays_in_its_head(change):
    """A dense product would multiply it by zeros, and 0 * NaN is NaN."""
    change(warps=(2,), multiprocessors=100)
    problem, layer = make_problem(HEADS), HEADS.layer("sim", schedule="persistent")
    state = problem.h.copy()
    state[0, :, 3], state[0, :, 5] = np.inf, np.nan
    y, _ = layer(problem.x, state)
    assert np.isnan(y[1:, :, :16]).any() and np.isfinite(y[..., 16:]).all()


def test_not_a_number_is_passed_on(change):
    """NaNs in x, in states and in dy, also those whose bits mean "not written yet": nobody waits for them."""
    problem, found = make_problem(Case("gru", T=3, B=2, hidden=(5, 5))), []
    x, state, dy = problem.x.copy(), problem.h.copy(), problem.dy.copy()
    x.view(np.uint32)[1, 0, 2] = state.view(np.uint32)[1, 1, 3] = dy.view(np.uint32)[2, 0, 4] = exchange.UNWRITTEN
    for name in ("stepwise", "persistent"):
        layer = problem.layer("sim", schedule=name)
        y, hy, tape = layer.forward(x, state)
        gradients = layer.backward(tape, dy)
        found.append([np.isnan(array) for array in (y, hy, gradients.x, gradients.state, gradients.weights)])
    for stepwise, persistent in zip(*found, strict=True):
        np.testing.assert_array_equal(persistent, stepwise)
    assert 0 < found[0][0].mean() < 1


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 5e-3)])
def test_weights_that_begin_between_multiples_of_16_bytes(monkeypatch, dtype, tolerance):
    """After one number, gamma, stands what is formed for h: else its rows could be loaded 16 bytes at once."""
    monkeypatch.setattr(formed_loops, "H", 16)
    tiles = tiles_made(monkeypatch)
    layer = formed_loops.layer_of("learned_diffusion", dtype, "sim", schedule="persistent")
    given = formed_loops.problem("learned_diffusion", layer, batch=2, steps=2)
    wanted = formed_loops.expected("learned_diffusion", layer, given)
    formed_loops.assert_close(formed_loops.computed(layer, given), wanted, tolerance)
    assert {tile.backward for tile in tiles} == {False, True}
    assert all(tile.aligned and not tile.loads_pieces for tile in tiles)


# ------------------------------------------------------------------------------------------------------- the catalog
@pytest.mark.parametrize("case", [
    Case("lstm", T=2, B=2, hidden=(5, 5), dropout=0.3),
    pytest.param(Case("gru", T=2, B=2, hidden=(5, 7), directions=2), marks=full),
    pytest.param(Case("rnn_tanh", T=2, B=2, hidden=(8,), dtype="float16"), marks=full),
], ids=str)  # fmt: skip
def test_planned_kernels_are_those_that_are_launched(change, monkeypatch, case):
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
