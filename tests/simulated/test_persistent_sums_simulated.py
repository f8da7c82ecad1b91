"""Cells with sums over units in the persistent schedule: what blocks exchange within a step, in the simulator. All
cells with all options: test_conformance.py. What a wrong exchange looks like is tested here, too.
"""

import inspect

import numpy as np
import pytest
from numba import cuda
from persistent_setup import few_threads
from test_persistent_mutants import LIVELOCK, OUTSIDE, RIGHT, WRONG, replaced, symptom_of, written_anew
from test_persistent_simulated import check
from within_step import check_leftovers, check_silence, check_slices

import numbarnn
from cases import Case
from kernel_mutants import mutant
from numbarnn.cuda import ptx, simulator
from numbarnn.kernels.error_flag import WITHIN, explain, timeout_of
from numbarnn.kernels.persistent import across, within, within_backward, within_forward

full = pytest.mark.full


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


@pytest.fixture(autouse=True)
def order(monkeypatch):
    import test_persistent_mutants

    monkeypatch.setitem(test_persistent_mutants.ORDER, "seed", 0)


CASES = [
    Case("normed", T=4, B=3, hidden=(9, 5), directions=2, dropout=0.4),  # one stage needs the other's sums
    Case("normed", T=3, B=17, hidden=(9,)),  # more sequences than are multiplied at once: turns
    Case("layer_norm_lstm", T=3, B=3, hidden=(8,), lengths=(2, 0, 3), resets=True, dtype="float16"),
    pytest.param(Case("softmax_lstm", T=3, B=2, hidden=(9,)), marks=full),  # the largest of all terms
    pytest.param(Case("layer_norm_gru", T=3, B=9, hidden=(8, 8), dtype="bfloat16"), marks=full),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_over_units_agree_with_float64(case):
    """With the same bits whoever comes first."""
    check(case, orders=2)


def test_sums_of_slices_of_the_batch_agree_with_float64(small):
    """Blocks add up with those that have the same sequences."""
    check_slices(small, Case("normed", T=3, B=10, hidden=(9,)))


def test_more_blocks_than_lanes_add_up():
    """A lane has the words of several blocks, the last of them of none."""
    source = inspect.getsource(inspect.unwrap(across.make_across))
    few = source.replace("range(lane, words.blocks, 32 * looks)", "range(lane % 2, words.blocks, 2 * looks)")
    few = few.replace("n * 32", "n * 2").replace("range(5)", "range(1)").replace("16 >> k", "1")
    assert few.count("% 2, words.blocks, 2 *") == 1
    with mutant(across, "make_across", written_anew(across, "make_across", lambda _: few)):
        check(Case("centred", T=3, B=2, hidden=(21,)))


# ------------------------------------------------------------------------------------------------------ wrong kernels
NORMED = Case("normed", T=4, B=2, hidden=(9,))
SLOW = "        for _ in range(60 * (cuda.blockIdx.x == 0)):\n            ptx.sleep(0)\n"
GATHERS = "        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32\n"
LATE = "            for _ in range(60 * (cuda.threadIdx.x // 32 == 1)):\n                ptx.sleep(0)\n"
MUTANTS = {
    "a block that is slow to read": (across, "make_across", RIGHT, replaced(GATHERS, SLOW + GATHERS)),
    "the own part not published": (
        across, "make_across", LIVELOCK, replaced("publish(words.array, row", "(words.array, row")
    ),
    "published as of the step before": (
        across, "make_across", LIVELOCK, replaced("total, words.step)", "total, words.step - 1)")
    ),
    "what stands there taken for this step's": (
        across, "make_wait_for_word", WRONG, replaced("found[n] >> _STEP_BITS != step", "False")
    ),
    "the step before taken for this one": (
        across, "make_wait_for_word", WRONG, replaced("!= step:", "!= step and step < 2:")
    ),
    "the last unit's term left out": (across, "make_across", WRONG, replaced("owned.units)", "owned.units - 1)")),
    "the next sum's words": (
        across, "_make_row", OUTSIDE, replaced("part.first + k)", "part.first + k + 1)")
    ),
    "terms read before all are there": (within, "make_sums", WRONG, replaced(
        "            cuda.syncthreads()\n            words", "            words"
    )),
    "totals read before all are there": (within, "make_sums", WRONG, lambda source: replaced(
        "            words = words_of", LATE + "            words = words_of"
    )(replaced("part_of(which), words)\n            cuda.syncthreads()\n", "part_of(which), words)\n")(source))),
    "the first stage's terms for all": (within, "_make_put", WRONG, replaced("which == number", "which >= number")),
    "sums kept at the first time": (
        within_forward, "_make_keep", WRONG, replaced("(turn.t * owned.batch", "(0 * owned.batch")
    ),
    "gradients of sums taken for those of others": (
        within_backward, "make_arguments", WRONG, replaced("D_SUMS + pair // U", "D_SUMS")
    ),
}  # fmt: skip


@pytest.mark.parametrize("module, factory, shows, edit", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_exchange_is_found(module, factory, shows, edit):
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert str(symptom_of(NORMED)) == str(shows)


# ------------------------------------------------------------------------------------ nobody waits for h
@numbarnn.cell
def shares(x, h, p):
    """Without a product of h: blocks meet in the sums alone, and may be a step apart."""
    return numbarnn.softmax(p.W.a @ x + h)


def results(device, schedule):
    layer = numbarnn.RNN(shares, 3, 8, device=device, schedule=schedule, seed=0)
    x, dy = (np.random.default_rng(size).standard_normal((4, 1, size), np.float32) for size in (3, 8))
    y, state, tape = layer.forward(x)
    return [y, state, layer.backward(tape, dy).x]


@pytest.mark.parametrize("places", (2, 1))
def test_even_and_odd_steps_have_places_of_their_own(places):
    """The first block is slow to read: one place for all steps it would find overwritten, and wait in vain."""
    in_one_place = replaced("(words.step & 1) * of_all", "0 * of_all")
    row = across._make_row if places == 2 else written_anew(across, "_make_row", in_one_place)
    with mutant(across, "_make_row", row):
        slow = written_anew(across, "make_across", replaced(GATHERS, SLOW + GATHERS))
        with mutant(across, "make_across", slow), simulator.schedule(0):
            if places == 1:
                with pytest.raises(RuntimeError, match="livelock"):
                    results("sim", "persistent")
                return
            found = results("sim", "persistent")
    for one, expected in zip(found, results("cpu", "stepwise"), strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)


def test_words_of_an_earlier_call_are_found(monkeypatch):
    """Where they are not marked: the steps have the same numbers."""
    check_leftovers(monkeypatch, NORMED, lambda array: array.dtype == np.int64, left=0)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_a_block_that_never_publishes_its_sums_is_reported(monkeypatch, backward):
    silent_step, ptx_store, steps = 2, ptx.store, set()

    def store(array, index, value):
        if array.dtype == np.int64 and len(array) > 1:
            steps.add(int(value) >> 32)
        if array.dtype != np.int64 or len(array) == 1 or cuda.blockIdx.x != 1 or int(value) >> 32 != silent_step:
            ptx_store(array, index, value)

    check_silence(monkeypatch, NORMED, silent_step, backward, store)
    assert max(steps) == silent_step, "the others go on"


def test_an_error_tells_what_a_block_waited_for():
    assert "compute in this very step" in explain(timeout_of(3, 1, True) + WITHIN + 7, "LSTM(4, 5)")
