"""Sums over units and random numbers of cells in the simulator: each kernel against NumPy, steps against PyTorch's
autograd, layers against the CPU engine, and what is drawn against another Philox.

A block has four threads here and of each sum two parts (kernels/row_sums.py), so that nine units are several turns of a
block and five threads have no parts of their own.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

pytest.importorskip("torch")

from one_step import Step, joined, nans, normal, split
from test_sums_cpu import backward_of, buffers, check, run

from general_problem import GeneralCase, GeneralProblem, infer, train
from helpers import assert_close, assert_same_bits
from numbarnn import engines
from numbarnn.cells import Cell
from numbarnn.cells.definition import Stage
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.step import pointwise, stages, unit_sums
from philox_reference import philox4x32
from sum_cells import DRAWN, NOISE_CELLS, SUM_CELLS

CELLS = SUM_CELLS | NOISE_CELLS
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
by_direction = pytest.mark.parametrize("direction", (0, 1))
by_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
# A cell's launches in the order of a forward step: its products' stages, and the cell itself.
LAUNCHES = [
    pytest.param(cell, stage, id=f"{name}-{stage}")
    for name, cell in CELLS.items()
    for stage in range(len(cell.stages) + 1)
    if stage == len(cell.stages) or cell.stages[stage].gates
]
by_launch = pytest.mark.parametrize("cell, stage", LAUNCHES)


def columns_of(cell, numbers):
    """Columns of the sums of some stages."""
    return [k for stage in numbers for k in range(cell.first_sum(stage), cell.first_sum(stage + 1))]


def assert_near(value, expected):
    """Up to a hundred operations on numbers below 10, and their cancellation in a norm."""
    np.testing.assert_allclose(value, expected, rtol=0, atol=2000 * np.finfo(value.dtype).eps)


def assert_only(array, place, expected):
    """Those elements are what is expected, all others NaN still."""
    assert_near(array[place], expected)
    array[place] = np.nan
    assert np.isnan(array).all()


# ---------------------------------------------------------------------------------------------------------- kernels
class ForwardLaunch:
    """A launch of a forward step before it runs. `stage`: its number; len(cell.stages) is the cell itself."""

    def __init__(self, cell, stage, dtype, direction, save=True, step=Step):
        s = self.step = step(cell, dtype, direction)
        s.draws, self.cell, self.stage, self.save = save, cell, stage, save
        self.made = columns_of(cell, cell.sums_before(stage))
        last = len(cell.stages)
        *_, sums, _ = self.arguments = s.forward_arguments(stage if stage < last else None)
        self.expected_sums = joined(sums[1:], s.B)
        slots, Q, known = s.T if save else 1, cell.num_sums, self.expected_sums.shape[1]
        self.slot, self.sums = s.t if save else 0, nans(dtype, slots, s.B, Q)
        self.sums[self.slot, :, :known] = self.expected_sums
        self.sums[self.slot, :, self.made] = np.nan
        s.ah[:, cell.first_of_stage(stage) * s.H :] = np.nan  # later products
        self.c, self.v = s.c, nans(dtype, slots, s.B, cell.num_products * s.H)
        if not save:
            self.c = nans(dtype, 2, *s.c.shape[1:])
            self.c[s.before % 2] = s.c[s.before]

    def run(self):
        s, options = self.step, {"sums": self.sums, "noise": self.step.words if self.save else None}
        given = s.h, self.c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, None, s.direction, self.save
        if self.stage == len(self.cell.stages):
            pointwise.bind_forward(self.cell, *given, **options)(s.t, s.before)
        else:
            stages.bind_forward(self.cell, self.stage, self.v, *given, **options)(s.t, s.before)

    def check_sums(self):
        known = self.expected_sums.shape[1]
        assert_only(self.sums, (self.slot, slice(None), slice(known)), self.expected_sums)


@by_dtype
@by_direction
@pytest.mark.parametrize("save", (True, False), ids=("training", "inference"))
@by_launch
def test_forward_kernel(cell, stage, save, direction, dtype):
    """The sums right before it, and what they are for; sums of later stages are left open."""
    launch = ForwardLaunch(cell, stage, dtype, direction, save)
    s, last = launch.step, len(cell.stages)
    expected = s.expected() if stage == last else cell.stages[stage].forward(*launch.arguments)
    launch.run()
    launch.check_sums()
    if stage < last:
        first = cell.product_number(stage) * s.H
        assert_only(launch.v, (launch.slot, slice(None), slice(first, first + s.H)), expected)
        return
    new_state, saved = expected
    assert_near(s.h[s.t + 1, :, s.h_columns], new_state[0])
    if cell.num_private:
        slot = s.t + 1 if save else (s.t + 1) % 2
        assert_near(launch.c[slot, :, s.c_columns], joined(new_state[1:], s.B))
    if save and saved:
        assert_near(s.ax[s.t, :, : cell.num_saved * s.H], joined(saved, s.B))


class BackwardLaunch:
    """Likewise of a backward step; stage -1 is the cell itself. `expected`: name -> (place in the array, value)."""

    def __init__(self, cell, stage, dtype, direction):
        s = self.step = Step(cell, dtype, direction)
        self.cell, self.stage, H, B = cell, stage, s.H, s.B
        new_state, saved = s.expected()
        self.sums = nans(dtype, s.T, B, cell.num_sums)
        self.sums[s.t] = joined(s.forward_arguments()[4][1:], B)
        s.keep(new_state)
        self.dy = normal(dtype, s.T, B, 2 * H, seed=7)
        self.dh, self.dc = normal(dtype, B, H, seed=8), normal(dtype, B, cell.num_private * H, seed=9)
        self.d_v = normal(dtype, B, cell.num_products * H, seed=11)
        wide_dc, wide_d_v = self.dc.astype(np.float64), self.d_v.astype(np.float64)
        d_state = self.dy[s.t, :, s.h_columns].astype(np.float64) + self.dh, *split(wide_dc, cell.num_private)
        given = saved, s.state_before, new_state, d_state, split(wide_d_v, cell.num_products)
        *_, self.expected_d_sums, _ = arguments = s.backward_arguments(*given, stage)
        self.known = columns_of(cell, range(stage + 1, len(cell.stages)))
        self.d_sums = nans(dtype, B, cell.num_sums)
        for k in self.known:
            self.d_sums[:, [k]] = self.expected_d_sums[k]
        self.d_sums[:, columns_of(cell, cell.sums_after(stage))] = np.nan
        self.d_v[:, : cell.product_number(stage + 1) * H] = np.nan  # its own and earlier ones' come later
        self.dax = nans(dtype, s.T, B, s.width)
        self.dax[s.t, :, : cell.num_saved * H] = joined(saved, B)
        self.dah = self.dax if cell.same_gradient and stage < 0 else nans(dtype, s.T, B, cell.num_ah * H)
        self.d_per_unit = nans(dtype, s.T, B, s.per_unit.size)
        self.found = s.expected_gradients(*given) if stage < 0 else cell.stages[stage].backward(*arguments)

    def run(self):
        s, options = self.step, {"sums": self.sums, "d_sums": self.d_sums, "noise": self.step.words}
        if self.stage < 0:
            gradients = self.dh, self.dc, self.dax, self.dah, self.d_per_unit, self.dy
            given = *gradients, s.h, s.c, s.per_unit, self.d_v, None, s.direction
            pointwise.bind_backward(self.cell, *given, **options)(s.t, s.before)
        else:
            gradients = self.dah, self.dax, self.dh, self.dc, self.dy
            given = *gradients, s.h, s.c, s.per_unit, self.d_v, None, s.direction
            stages.bind_backward(self.cell, self.stage, *given, **options)(s.t, s.before)

    def check_sums(self):
        for k in self.known:
            assert_near(self.d_sums[:, [k]], self.expected_d_sums[k])
        self.d_sums[:, self.known] = np.nan
        assert np.isnan(self.d_sums).all()


@by_dtype
@by_direction
@pytest.mark.parametrize("cell, stage", [
    pytest.param(cell, stage, id=f"{name}-{stage}")
    for name, cell in CELLS.items() for stage in (-1, *range(len(cell.stages)))
    if stage < 0 or cell.stages[stage].gates
])  # fmt: skip
def test_backward_kernel(cell, stage, direction, dtype):
    """The gradients of the sums right after it, and what they are for; those of earlier sums are left open."""
    launch = BackwardLaunch(cell, stage, dtype, direction)
    s, H = launch.step, launch.step.H
    launch.run()
    launch.check_sums()
    if stage >= 0:
        place = s.t, slice(None), cell.rows_of_stage(stage, H)
        assert_only(launch.dah, place, joined(s.wide(launch.found), s.B))
        return
    d_ax, d_ah, d_before, d_own = launch.found
    assert_near(launch.dax[s.t, :, : cell.num_gates * H], joined(d_ax, s.B))
    if not cell.same_gradient:
        assert_only(launch.dah, (s.t, slice(None), slice(cell.num_recurrent * H)), joined(d_ah, s.B))
    assert_only(launch.d_per_unit, s.t, joined(d_own, s.B))
    assert_near(launch.dh, d_before[0])
    assert_near(launch.dc, joined(d_before[1:], s.B))


class WideStep(Step):
    """As many sequences as no grid of the test has rows, and fewer units than threads."""

    B, H = 5, 3


@pytest.mark.parametrize("step", (Step, WideStep))
@pytest.mark.parametrize("threads", (1, 2, 3, 4))
@pytest.mark.parametrize("blocks", (1, 2, 7))
def test_sums_are_right_for_any_grid_one_block_wide(monkeypatch, blocks, threads, step):
    """Of fewer threads, too; of one shape always the same bits, whatever the order in which threads run."""
    found = []
    config = LaunchConfig((1, blocks), threads)
    monkeypatch.setattr(stages, "launch_config", lambda *_: config)
    for seed in range(4):
        launch = ForwardLaunch(SUM_CELLS["ladder"], 4, "float64", 0, step=step)
        with simulator.schedule(seed=seed):
            launch.run()
        found.append((launch.sums.copy(), launch.v))
        launch.check_sums()
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def many_sums(count):
    """A cell with a stage of so many sums."""

    def terms(ax, ah, state, per_unit, sums, noise):
        return (ax[0],) * count

    stage = Stage((), terms, terms, sums=tuple(f"s{k}" for k in range(count)))
    return Cell("many", ("a",), ("h",), (), terms, terms, general=True, stages=(stage,))


@pytest.mark.parametrize("count, dtype, threads", [
    (1, "float32", 256), (45, "float32", 256), (46, "float32", 128), (23, "float64", 128), (128, "float64", 32),
])  # fmt: skip
def test_many_sums_get_fewer_threads(monkeypatch, count, dtype, threads):
    """So that shared memory holds all their terms."""
    monkeypatch.setattr(unit_sums, "THREADS_PER_BLOCK", 256)
    monkeypatch.setattr(unit_sums, "PARTS", 16)
    cell = many_sums(count)
    assert unit_sums.threads(cell, dtype, (0,)) == threads
    assert count * (threads + 16) * np.dtype(dtype).itemsize <= unit_sums.SHARED_BYTES
    assert unit_sums.threads(cell, dtype, ()) == 0


# ------------------------------------------------------------------------------------------------------------ steps
SMOOTH = {name: cell for name, cell in CELLS.items() if cell is not DRAWN}
by_smooth = pytest.mark.parametrize("cell", SMOOTH.values(), ids=SMOOTH)


@by_direction
@pytest.mark.parametrize("B, H, dtype", [(1, 1, "float64"), (3, 5, "float32"), (2, 9, "float64")])
@by_smooth
def test_steps_agree_with_autograd(cell, B, H, dtype, direction):
    check(engines.get("sim"), cell, direction, dtype, T=3, B=B, H=H)


@by_direction
@by_smooth
def test_lengths_and_resets(cell, direction):
    """What skipped steps and those that begin anew must not read is NaN."""
    check(engines.get("sim"), cell, direction, T=4, B=4, H=5, masked=True, spoiled=True)


@by_direction
def test_draws_are_those_of_another_philox(direction):
    """In forward and in backward, each number by itself; in inference the mean."""
    T, B, H, engine = 3, 2, 5, engines.get("sim")
    forward = buffers(DRAWN, direction, T=T, B=B, H=H)
    words, weights, found = forward.noise, backward_of(forward), run(engine, forward)
    drawn, of_kind = np.zeros((T, B, H)), {True: 0, False: 0}
    for k, one in enumerate(DRAWN.noise):
        number = of_kind[one.each_step]
        of_kind[one.each_step] += 1
        for t, b, j in np.ndindex(T, B, H):
            counter = b * H + j, t if one.each_step else 2**32 - 1, int(words[2]) + number // 4, int(words[3])
            drawn[t, b, j] += 2**k * (philox4x32(counter, words[:2])[number % 4] >= round(one.rate * 2**32))
    assert len(np.unique(drawn)) > 15
    np.testing.assert_array_equal(found["h"], drawn)
    d_y = np.split(weights.dy, 2, axis=2)[direction].copy()
    d_y[0 if direction else -1] += weights.dh
    np.testing.assert_array_equal(found["dax"], drawn.astype(np.float32) * d_y)
    inferred = run(engine, buffers(DRAWN, direction, save=False, T=T, B=B, H=H))["h"]
    np.testing.assert_array_equal(inferred, 0.5 * (2**7 - 1))


# ----------------------------------------------------------------------------------------------------------- layers
@dataclass(frozen=True)
class SumCase(GeneralCase):
    """One problem; the cell is one of `CELLS`, or of the library."""

    @property
    def definition(self):
        return CELLS[self.cell]

    @property
    def limit(self):
        """Norms pass errors on several times as large: in each step each is divided by a deviation of 0.3 or more."""
        return 8 * super().limit


def in_float32(case):
    """The problem of a case in 16 bits with the same numbers in float32, which the CPU computes with."""
    problem, given = GeneralProblem(replace(case, dtype="float32")), GeneralProblem(case)

    def widened(value):
        if isinstance(value, np.ndarray):
            return value.astype(np.float32)
        return [widened(part) for part in value] if isinstance(value, list) else value

    for name in ("x", "dy", "states", "d_states"):
        setattr(problem, name, widened(getattr(given, name)))
    problem.parameters = {name: widened(value) for name, value in given.parameters.items()}
    return problem


def agrees_with_the_cpu_engine(case, schedule):
    """Inference and two training calls, whose noise differs."""
    problem = GeneralProblem(case)
    other = in_float32(case) if case.dtype in ("float16", "bfloat16") else problem
    layers = problem.layer("sim", schedule=schedule), other.layer("cpu")
    pairs = list(zip(layers, (problem, other), strict=True))
    for call in (infer, *[lambda layer, problem: train(layer, problem)[0]] * 2):
        assert_close(case, *(call(*pair) for pair in pairs))


def dtypes_of(name):
    """The dtypes of a cell's cases: those that the CPU engine computes alike, as it takes long to compile."""
    return ("float32", "float16", "bfloat16") if list(SMOOTH).index(name) % 2 == 0 else ("float64",)


def cases():
    """Each cell, with options and dtypes taking turns."""
    options = (
        dict(T=3, B=2, hidden=(5,), directions=2),
        dict(T=4, B=3, hidden=(3, 2), lengths=(3, 0, 4), padding_value=-0.5),
        dict(T=3, B=2, hidden=(9,), resets=True, batch_first=True),
        dict(T=4, B=3, hidden=(5, 5), directions=2, lengths=(3, 1, 4), resets=True),
        dict(T=2, B=2, hidden=(3, 4), directions=2, dropout=0.4, state=False, bias="input"),
        dict(T=1, B=1, hidden=(6,), bias="none"),
    )
    for name in SMOOTH:
        for number, option in enumerate(options):
            yield SumCase(name, **option, dtype=dtypes_of(name)[number % len(dtypes_of(name))])


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_stepwise_agrees_with_the_cpu_engine(case):
    agrees_with_the_cpu_engine(case, "stepwise")


@by_smooth
def test_wavefront_agrees_with_the_cpu_engine(cell):
    case = SumCase(cell.name, T=4, B=3, hidden=(3, 2), directions=2, lengths=(3, 0, 4), dtype=dtypes_of(cell.name)[0])
    agrees_with_the_cpu_engine(case, "wavefront")


@pytest.mark.parametrize("batch_first", (False, True))
def test_layers_draw_the_same_numbers_on_both_engines(batch_first):
    """Each layer, direction and call its own; again after setting the number of calls back."""
    case = SumCase("drawn", T=3, B=2, hidden=(4, 4), directions=2, dtype="float64", batch_first=batch_first)
    problem, calls = GeneralProblem(case), []
    for device in ("sim", "cpu"):
        layer = problem.layer(device, schedule="wavefront")
        calls.append([train(layer, problem)[0], train(layer, problem)[0]])
        layer.training_calls = 0
        calls[-1].append(train(layer, problem)[0])
    for one, other in zip(*calls, strict=True):
        assert_same_bits({"y": one["y"]}, {"y": other["y"]})
    first, second, again = calls[0]
    assert_same_bits(first, again)
    assert (first["y"] != second["y"]).mean() > 0.5
    y = np.swapaxes(first["y"], 0, 1) if batch_first else first["y"]
    assert (y[..., :4] != y[..., 4:]).mean() > 0.5 and (y[0] != y[1]).mean() > 0.5
