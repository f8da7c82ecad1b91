"""Programs: what a call does as data, made without an engine, and what they say about its buffers."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import CELLS, library
from numbarnn.programs.backward import BackwardSpec, Need, backward
from numbarnn.programs.forward import ForwardSpec, forward, tape_buffers
from numbarnn.schedules import SCHEDULES, Problem
from numbarnn.schedules.persistent import tilings


def problem(cell=CELLS["lstm"], **options):
    """Two layers and directions, T = 5, B = 3, I = 4, H = 6 and 7."""
    sizes = dict(input_size=4, hidden_sizes=(6, 7), directions=2, steps=5, batch=3, training=True)
    return Problem(engine="cpu", cell=cell, **({"dtype": "float32"} | sizes | options))


def builders(case, schedule="stepwise", **options):
    """The `Forward` and `Backward` of a problem."""
    schedule = SCHEDULES[schedule]
    spec = ForwardSpec(case, schedule.plan_forward(case), **options)
    return forward(spec), backward(BackwardSpec(spec, schedule.plan_backward(case)))


def shapes(builder):
    return {name: buffer.shape for name, buffer in builder.program.made.items()}


def test_shapes_of_a_problem():
    one, other = (shapes(builder) for builder in builders(problem()))
    one |= {name: shape for name, shape, _ in tape_buffers(problem())}  # which are in the reserve
    assert one["h", 1] == (7, 3, 14) and one["c", 0] == (7, 3, 12) and one["hy", 1] == (2, 3, 7)
    assert one["gates", (1, 0)] == (5, 3, 28) and one["ah", (0, 1)] == (3, 24)
    assert ("ax", (0, 0)) not in one  # in the memory of gates
    assert other["dh", 0] == (2, 3, 6) and other["dx", 1] == (5, 3, 12) and other["dx", 0] == (5, 3, 4)
    assert other["dw"] == nr.LSTM(4, (6, 7), bidirectional=True, device="cpu").weights.shape
    case = problem(training=False)
    inference = shapes(forward(ForwardSpec(case, SCHEDULES["stepwise"].plan_forward(case))))
    assert inference["ax", (0, 0)] == (5, 3, 24) and inference["c", 1] == (2, 3, 14)
    assert not any(name[0] in ("gates", "dropped_input") for name in inference)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_block_of_a_persistent_kernel_has_its_words_of_sums(dtype):
    """However few units the planner gives to blocks: a block beyond the buffer would write into another one."""
    case = problem(library.layer_norm_lstm, dtype=dtype, hidden_sizes=(33, 33))
    blocks = -(-33 // min(tilings.UNITS))
    for builder in builders(case):
        slots, sums, batch, *rest = builder.words[1, 1].shape
        assert (slots, sums, batch) == (2, case.cell.num_sums, 3) and np.prod(rest) >= blocks


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize(
    "options", ({}, {"dropout": 0.5}, {"padded": True, "resets": True}, {"batch_major": True}), ids=str
)
def test_buffers_live_from_their_first_job_to_their_last(options, schedule):
    for builder in builders(problem(**options), schedule):
        program, alive, ever = builder.program, set(), set()
        for job, first, last in zip(program.jobs, program.first_uses, program.last_uses, strict=True):
            new = {one.name for one in first}
            assert not new & ever
            alive, ever = alive | new, ever | new
            used = {
                name
                for name in program.made
                if any(repr(program.made[name].name) and name in views(op) for op in job.operations)
            }
            assert used <= alive
            alive -= set(last)
        assert ever == set(program.made) and alive <= program.kept


def views(operation):
    """Names of the buffers of an operation."""
    from numbarnn.programs.views import with_views

    found = set()
    with_views((operation.operands, operation.options), lambda view: found.add(view.name) or view)
    return found


def test_equal_calls_have_one_program_and_it_is_printed():
    one, other = builders(problem()), builders(replace(problem()))
    assert one[0] is other[0] and one[1] is other[1]
    text = str(one[1].program)
    assert text.startswith("stepwise backward") and "weight_gradients({" in text and "dx[1] (5, 3, 12) float32" in text


def test_what_is_not_needed_is_not_in_the_program():
    case, plan = problem(), SCHEDULES["stepwise"]
    spec = ForwardSpec(case, plan.plan_forward(case))
    for need in (Need(x=False), Need(weights=False), Need(again=True)):
        built = backward(BackwardSpec(spec, plan.plan_backward(case, need.weights, need.x), need))
        names = set(built.program.made)
        assert (("dx", 0) in names) == need.x and ("dw" in names) == need.weights
        assert (("dax", (0, 0)) in names) == need.again  # else in the memory of gates


def test_what_a_tape_keeps():
    """Neither scratch of steps nor what only the call needed; one memory for x Wᵀ, what is saved and its gradient."""
    layer = nr.LSTM(4, (6, 7), dropout=0.5, device="cpu")
    y, _, tape = layer.forward(np.ones((5, 3, 4), np.float32))
    assert set(tape.forward.arrays) == {"reserve", "x", "masks", "flat", "no_bias"}
    reserve, before = tape.forward.reserve, tape.forward.reserve.copy()
    layer.backward(tape, y)
    assert not np.array_equal(reserve, before)
