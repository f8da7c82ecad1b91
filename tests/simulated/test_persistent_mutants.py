"""Wrong persistent kernels are found out in the simulator, in every order tried: each synchronisation taken away, each
number of the tables moved, and more. What waits in vain ends, with an error that says where.
"""

import inspect
import re

import numpy as np
import pytest
from half_cases import HalfCase
from helpers import Case, assert_close, infer, make_problem, train
from numba import cuda
from persistent_setup import few_threads, mutant

from numbarnn import engines
from numbarnn.kernels import exchange, persistent, ptx, simulator, slices
from numbarnn.schedules import persistent as schedule

PATIENCE = 1000  # turns in vain before the simulator reports a livelock: more than a kernel here waits


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


TWO_LAYERS = Case("lstm", T=3, B=2, hidden=(5, 5))
SEEDS = range(3)
SOURCES = {name: inspect.getsource(getattr(persistent, name)) for name in ("make_forward", "make_backward")}


def escapes(case):
    """The seeds under which a wrong kernel computes the right result."""
    problem = make_problem(case)
    expected, _ = train(problem.layer("sim", schedule="stepwise"), problem)
    right = []
    for seed in SEEDS:
        layer = problem.layer("sim", schedule="persistent")
        try:
            with simulator.schedule(seed), np.errstate(all="ignore"):
                assert_close(case, train(layer, problem)[0], expected)
            right.append(seed)
        except (AssertionError, RuntimeError):
            pass
    return right


def written_anew(factory, edit):
    """The factory of that name in `persistent`, with its source changed by a function text -> text."""
    text = edit(SOURCES[factory])
    assert text != SOURCES[factory]
    namespace = dict(vars(persistent))
    exec(compile(text, "mutant", "exec"), namespace)
    return namespace[factory]


def slow(source):
    """An edit that lets the first warp of the layer that waits for another one come late to the cell: still right."""
    late = "for _ in range(40 * (warp == 0) * (1 - blocks[block, READS_GATES])):\n" + " " * 20 + "ptx.sleep(0)\n"
    text, places = re.subn(r" *# \d\. The cell, for the block's units\n", " " * 16 + late, source)
    assert places == 1
    return text


def without_barrier(number):
    """An edit that takes a barrier out of the loop over the steps."""

    def edit(source):
        before, loop, steps = source.partition("for step in range(")
        parts = steps.split("cuda.syncthreads()")
        assert len(parts) == 3, "other barriers than those of which mutants are made here"
        parts[number : number + 2] = [parts[number] + "pass" + parts[number + 1]]
        return before + loop + "cuda.syncthreads()".join(parts)

    return edit


def replaced(old, new, count=1):
    """An edit that replaces a text that stands `count` times."""

    def edit(source):
        assert source.count(old) == count, f"{old!r} stands {source.count(old)} times"
        return source.replace(old, new)

    return edit


KERNEL_MUTANTS = {
    "without the barrier after the products": without_barrier(0),
    "without the barrier after the cell": lambda source: without_barrier(1)(slow(source)),
    "all warps' sums belong to the state before": replaced(
        "sums(shared, at, 0, split)", "sums(shared, at, 0, working)"
    ),
    "the last warp's sum forgotten": replaced("sums(shared, at, 0, split)", "sums(shared, at, 0, split - 1)"),
}


@pytest.mark.parametrize("edit", KERNEL_MUTANTS.values(), ids=KERNEL_MUTANTS)
@pytest.mark.parametrize("factory", ("make_forward", "make_backward"))
def test_a_wrong_kernel_is_found(factory, edit):
    with mutant(persistent, factory, written_anew(factory, edit)):
        assert escapes(TWO_LAYERS) == []


@pytest.mark.parametrize("factory", ("make_forward", "make_backward"))
def test_slow_threads_do_no_harm(factory):
    with mutant(persistent, factory, written_anew(factory, slow)):
        assert escapes(TWO_LAYERS) == list(SEEDS)


FORWARD_MUTANTS = {
    "takes x W of the step before": replaced("next_t = t + move if last else t", "next_t = t"),
    "stores the state of the step before": replaced("position + batch * width, stored", "position, stored"),
    "drops out by the next unit's mask": replaced("dropout_factor(position,", "dropout_factor(position + 1,"),
    "publishes before dropping out": replaced("narrow(widen(stored) * factor)", "stored"),
    "keeps the first h": replaced("shared[own] = widen(stored)", "pass"),
    "writes c to the slot of the step before": replaced("slot = t + 1 if save", "slot = t if save"),
    "keeps the first c": replaced("store_private(shared, own + 1, 1, new_state[1:])", "pass"),
}


@pytest.mark.parametrize("edit", FORWARD_MUTANTS.values(), ids=FORWARD_MUTANTS)
def test_a_wrong_forward_kernel_is_found(edit):
    with mutant(persistent, "make_forward", written_anew("make_forward", edit)):
        found = [escapes(Case(cell, T=3, B=2, hidden=(5, 5), dropout=0.5)) == [] for cell in ("lstm", "gru")]
    assert any(found)  # the LSTM's equations do not use h, the GRU has no c


BACKWARD_MUTANTS = {
    "carries no gradient to the initial state": replaced("range(steps + 1)", "range(steps)"),
    "state before taken for the one after": replaced("slot = t + 2 * direction", "slot = t + 1"),
    "no gradient from above": replaced("output = sums(shared, at, split, working)[0]", "output = number(0)"),
    "no dropout of the gradient": replaced("output *= dropout_factor(position, masks, mask, scale)", "pass"),
    "publishes the other gradient": replaced("at, hidden, d_ah, valid", "at, hidden, d_ax, valid"),
}


@pytest.mark.parametrize("edit", BACKWARD_MUTANTS.values(), ids=BACKWARD_MUTANTS)
def test_a_wrong_backward_kernel_is_found(edit):
    with mutant(persistent, "make_backward", written_anew("make_backward", edit)):
        assert escapes(Case("gru", T=3, B=2, hidden=(5, 5), dropout=0.5)) == []


def test_without_waiting_is_found():
    """What is not there yet is NaN."""
    with mutant(exchange, "make_newest", lambda *_: lambda words: np.uint32(0)):
        assert escapes(TWO_LAYERS) == []


@pytest.mark.parametrize("what", (np.nan, 0.5))
def test_unmarked_buffers_are_found(monkeypatch, what):
    """What another call left is taken for what this call computes."""
    monkeypatch.setattr(engines.get("sim"), "mark_unwritten", lambda array: array.fill(what), raising=False)
    assert escapes(TWO_LAYERS) == []


@pytest.mark.parametrize("column, by", [("SHIFT", 1), ("SHIFT", -1), ("COLUMN", 1), ("COUNT", -1), ("WEIGHTS", 1)])
@pytest.mark.parametrize("kind", (slices.RECURRENT, slices.INPUT), ids=("recurrent", "input"))
def test_a_wrong_table_is_found(monkeypatch, kind, column, by):
    """A warp that reads another step, other columns or other weights, or leaves one out; waits for itself."""
    make_tables = schedule.make_tables

    def wrong(*arguments):
        blocks, warps = make_tables(*arguments)
        working = (warps[..., slices.COUNT] > 0) & (warps[..., slices.KIND] == kind)
        warps[..., getattr(slices, column)][working] += by
        return blocks, warps

    monkeypatch.setattr(schedule, "make_tables", wrong)
    assert escapes(TWO_LAYERS) == []


@pytest.mark.parametrize(
    "swap",
    [
        lambda a, b: (a, (b[1], b[0])),
        lambda a, b: ((a[0], a[2], a[1], a[3]), b),
        lambda a, b: ((a[2], a[3], a[0], a[1]), b),
    ],
    ids=("words of B", "rows and columns of A", "columns of A"),
)
def test_swapped_operands_of_mma_are_found(swap):
    mma = ptx.mma_float16
    with mutant(ptx, "mma_float16", lambda a, b, sums: mma(*swap(a, b), sums)):
        assert escapes(HalfCase("rnn_tanh", T=2, B=2, hidden=(16,))) == []


# ------------------------------------------------------------------------------------------------------ never a hang
@pytest.mark.parametrize("direction", (0, 1))
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("seed", range(2))
def test_a_block_that_never_publishes_is_reported(monkeypatch, seed, backward, direction):
    """The kernel ends, the error says which layer, direction and step waited in vain; then the layer works again."""
    case, silent_step = Case("rnn_tanh", T=4, B=1, hidden=(5, 5), directions=2), 2
    problem, layer = make_problem(case), case.layer("sim", schedule="persistent")
    last = 0 if backward else 1  # the layer for which nobody waits but itself
    block, width = (last * 2 + direction) * 2 + 1, 5 if backward else 2 * 5
    backwards = direction == (0 if backward else 1)
    silent_time = case.T - 1 - silent_step if backwards else silent_step
    ptx_store = ptx.store

    def store(array, index, value):
        time = index // (case.B * width) - (not backward)
        if cuda.blockIdx.x != block or time != silent_time or len(array) != (case.T + 2 * (not backward)) * width:
            ptx_store(array, index, value)

    message = f"gave up: layer {last}, direction {direction}, .* at step {silent_step + 1} of the "
    monkeypatch.setattr(schedule, "POLLS", 400)
    monkeypatch.setattr(schedule, "POLLS_PER_STEP", 0)
    with simulator.schedule(seed, PATIENCE), mutant(ptx, "store", store):
        if backward:
            tape = layer.forward(problem.x)[2]
            with pytest.raises(RuntimeError, match=message + "backward pass"):
                layer.backward(tape, problem.dy)
        else:
            with pytest.raises(RuntimeError, match=message + "forward pass"):
                layer.forward(problem.x)
    assert_close(case, infer(layer, problem), infer(case.layer("sim", schedule="stepwise"), problem))
