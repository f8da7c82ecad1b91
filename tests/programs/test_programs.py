"""Programs: what a call does as data, made without an engine, and what they say about its buffers."""

from dataclasses import replace

import pytest

from cases import Case
from comparing import assert_close
from numbarnn.cells import CELLS
from numbarnn.programs.backward import BackwardSpec, backward
from numbarnn.programs.forward import ForwardSpec, forward
from numbarnn.schedules import SCHEDULES, Problem
from numpy_engine import NumpyEngine
from problems import make_problem
from running import train


def problem(cell=CELLS["lstm"], **options):
    """Two layers and directions, T = 5, B = 3, I = 4, H = 6 and 7."""
    sizes = dict(input_size=4, hidden_sizes=(6, 7), directions=2, steps=5, batch=3, training=True)
    return Problem(engine="cpu", cell=cell, **({"dtype": "float32"} | sizes | options))


def builders(case, schedule="stepwise", **options):
    """The `Forward` and `Backward` of a problem."""
    schedule = SCHEDULES[schedule]
    spec = ForwardSpec(case, schedule.plan_forward(case), **options)
    return forward(spec), backward(BackwardSpec(spec, schedule.plan_backward(case)))


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


# ------------------------------------------------------------------------------------------------------ NumPy runs them
CASES = [
    Case("lstm", hidden=(5, 3), directions=2, dropout=0.4, dtype="float64"),
    Case("lstm", hidden=(5, 3), directions=2, lengths=(7, 0, 4), resets=True, dtype="float64"),
    Case("lstm", hidden=(6, 6), proj_size=3, lengths=(7, 2, 4), dtype="float64"),
    Case("gru", hidden=(5, 5), batch_first=True, dtype="float64"),
    Case("rnn_relu", hidden=(4,), input_mode="skip", resets=True, dtype="float64"),
]


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_gets_what_the_cpu_engine_gets(case, schedule):
    problem = make_problem(case)
    found = train(problem.layer(NumpyEngine(), schedule=schedule), problem)[0]
    assert_close(case, found, train(problem.layer("cpu"), problem)[0])
