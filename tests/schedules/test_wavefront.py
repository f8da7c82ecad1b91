"""The wavefront schedule on the CPU engine: how it is cut, and that it computes what stepwise computes."""

import random
from itertools import product

import pytest

from cases import Case
from comparing import assert_close, assert_equals_stepwise, assert_same_bits
from numbarnn.engines.cpu import engine as cpu
from numbarnn.schedules import wavefront
from problems import make_problem
from running import train

CELLS = ("lstm", "gru", "rnn_tanh")  # rnn_relu is rnn_tanh with another function
HIDDEN = ((5,), (5, 33), (7, 3, 6))


def cases():
    """Every cell with 1 to 3 layers of unequal sizes, and T of one step, one step per block, and several per block."""
    for number, (cell, hidden, T) in enumerate(product(CELLS, HIDDEN, (1, 7, 19))):
        yield Case(cell, T=T, B=2, hidden=hidden, directions=1 + number % 2, dtype="float64")
        yield Case(cell, T=T, B=2, hidden=hidden, directions=2 - number % 2, dtype="float64", dropout=0.4)


by_case = pytest.mark.parametrize("case", list(cases()), ids=str)


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


# ----------------------------------------------------------------------------------------------------------- the cut
def test_block_steps():
    assert [wavefront.block_steps(1, steps) for steps in (1, 7, 1000)] == [1, 7, 1000]  # nothing to overlap
    assert [wavefront.block_steps(2, steps) for steps in (1, 7, 8, 9, 1000)] == [1, 1, 1, 2, 125]
    assert wavefront.block_steps(4, 100) == 5


def test_blocks_of_a_layer_overlap_with_those_above():
    """Two layers of n blocks take n + 2 units of time in the recurrences' lanes, not 2 n: one input product between."""
    plan = wavefront.plan_forward(2, 1, 80)
    steps = [span for span in plan.timeline() if span.task.kind == "steps"]
    assert len(steps) == 16 and max(span.end for span in steps) == 1 + 8 + 2
    backward = [span for span in wavefront.plan_backward(2, 1, 80).timeline() if span.task.kind == "steps"]
    assert max(span.end for span in backward) == 8 + 2


def test_directions_overlap_and_layers_wait_for_both():
    plan = wavefront.plan_forward(2, 2, 16)
    spans = {str(span.task): span for span in plan.timeline()}
    assert spans["steps    layer 0 → steps 0..2"].start == spans["steps    layer 0 ← steps 0..2"].start
    names = [str(need) for need in spans["input    layer 1 → steps 0..2"].task.needs]
    assert names == ["steps    layer 0 → steps 0..2", "steps    layer 0 ← steps 14..16"]
    assert spans["input    layer 1 → steps 8..10"].start < spans["steps    layer 0 → steps 14..16"].start


# ----------------------------------------------------------------------------------------------------- its results
@by_case
def test_equals_stepwise_to_rounding(case):
    """A block's products may be added up in another order than all steps': T B rows or fewer."""
    assert_equals_stepwise(case, "cpu", "wavefront")


def test_threads_and_their_timing_do_not_change_the_bits(engine):
    case = Case("gru", T=21, B=3, hidden=(33, 17, 20), directions=2, dropout=0.3)
    problem = make_problem(case)
    results = []
    for threads in (1, 2, 2, 4):
        engine.set_num_threads(threads)
        results.append(train(problem.layer("cpu", schedule="wavefront", seed=2), problem)[0])
    for values in results[1:]:
        assert_same_bits(values, results[0])


# ------------------------------------------------------------------------------------------------ what engines get


@pytest.mark.parametrize("options", ({}, {"batch_first": True}, {"dropout": 0.5, "batch_first": True}), ids=str)
def test_jobs_in_any_order_that_their_needs_allow_give_the_same_bits(monkeypatch, options):
    """Also the copies before and after the tasks: threads take any job that is ready, whatever its lane."""

    def in_order_of(seed):
        def run_jobs(engine, make_jobs, key, arrays):
            jobs, done, order = make_jobs(), set(), random.Random(seed)
            runs = [job.bind() for job in jobs]
            while len(done) < len(jobs):
                ready = [n for n, job in enumerate(jobs) if n not in done and done.issuperset(job.needs)]
                chosen = order.choice(ready)
                runs[chosen]()
                done.add(chosen)

        return run_jobs

    case, found = Case("gru", T=6, B=3, hidden=(7, 33), directions=2, **options), []
    problem = make_problem(case)
    for seed in range(6):
        monkeypatch.setattr(cpu.CpuEngine, "run_jobs", in_order_of(seed))
        found.append(train(problem.layer("cpu", schedule="wavefront", seed=3), problem)[0])
    for values in found[1:]:
        assert_same_bits(values, found[0])
    assert_close(case, found[0], train(problem.layer("cpu", schedule="stepwise", seed=3), problem)[0])
