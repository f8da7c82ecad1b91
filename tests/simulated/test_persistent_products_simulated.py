"""Cells with further products in the persistent schedule: what blocks publish and multiply within a step, in the
simulator. All cells with all options: test_conformance.py. What a wrong exchange looks like is tested here, too.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numba import cuda
from persistent_setup import few_threads
from test_persistent_mutants import LIVELOCK, WRONG, replaced
from test_persistent_simulated import check
from within_step import (
    check_leftovers,
    check_mutant,
    check_silence,
    check_slices,
    check_wrong_table,
    mutants_of_late_warps,
)

import numbarnn as nr
from cases import Case
from grouped_tiles import launches_of
from numbarnn.cells import library
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import exchange, within, within_backward, within_forward
from numbarnn.kernels.persistent.columns import STAGE

full = pytest.mark.full


@pytest.fixture(autouse=True)
def change(monkeypatch):
    return few_threads(monkeypatch)


@pytest.fixture(autouse=True)
def order(monkeypatch):
    import test_persistent_mutants

    monkeypatch.setitem(test_persistent_mutants.ORDER, "seed", 0)


RESET = partial(Case, "gru_reset_before")
CASES = [  # and how many warps a block has: at least one for each product
    (RESET(T=3, B=2, hidden=(5, 6), directions=2, dropout=0.4), 2),
    (RESET(T=2, B=17, hidden=(5,)), 2),  # more sequences than are multiplied at once: turns
    (RESET(T=3, B=3, hidden=(8,), lengths=(2, 0, 3), resets=True, dtype="float16"), 2),
    (RESET(T=2, B=2, hidden=(8, 8), dropout=0.4), 4),  # two layers in a launch
    (Case("chain", T=3, B=2, hidden=(9,)), 4),  # two stages
    (Case("ladder", T=3, B=2, hidden=(9,)), 4),  # sums and products
    pytest.param(RESET(T=3, B=2, hidden=(24,)), 4, marks=full),  # two warps share a product
    pytest.param(Case("blend", T=3, B=3, hidden=(8, 8), resets=True, dtype="bfloat16"), 4, marks=full),
    pytest.param(Case("multiplicative_lstm", T=3, B=9, hidden=(9,)), 2, marks=full),
]


@pytest.mark.parametrize("case, warps", CASES, ids=str)
def test_products_within_a_step_agree_with_float64(change, case, warps):
    """With the same bits whoever comes first."""
    change(warps=(warps,))
    if warps == 4:
        assert {len(launch.layer_range) for launch in launches_of(case)} == {len(case.hidden)}
    check(case, orders=2)


def test_products_of_slices_of_the_batch_agree_with_float64(change):
    check_slices(change, RESET(T=3, B=10, hidden=(9,)))


def test_blocks_multiply_their_own_head_in_each_product(change):
    change(warps=(4,))
    case = RESET(T=3, B=2, hidden=(16,), heads=2)
    columns = {launch.backward: launch.estimate.read_bytes // (case.B * 4) for launch in launches_of(case)}
    assert columns == {False: 2 * 8, True: 3 * 8}
    check(case)


# ------------------------------------------------------------------------------------------------------ wrong kernels
ONE, TWO = RESET(T=4, B=2, hidden=(9,)), Case("chain", T=4, B=2, hidden=(9,))
SKIPS = RESET(T=4, B=2, hidden=(9,), lengths=(2, 4))
MUTANTS = mutants_of_late_warps(ONE) | {
    "what they multiply not waited for": (
        ONE, exchange, "make_wait", WRONG,
        replaced("== GIVEN) or found", "== GIVEN) or role.warp.kind >= STAGE or found")
    ),
    "all warps of the first stage": (
        TWO, within, "make_multiply", LIVELOCK, replaced("warp.kind == kind", "warp.kind >= STAGE")
    ),
    "sums of other warps": (
        ONE, within, "make_stage_sums", WRONG, replaced("begin, end = begin_of(role)", "begin, end = 0")
    ),
    "the last warp's sum forgotten": (
        ONE, within, "make_stage_sums", WRONG, replaced("end_of(role)", "end_of(role) - 1")
    ),
    "the first stage's sums for all": (
        replace(TWO, T=2), within, "make_stage_sums", WRONG, replaced("_make_end(product - 1)", "_make_end(-1)")
    ),
    "not published": (ONE, within_forward, "_make_product", LIVELOCK, replaced("unit, narrow(vector), valid)",
                                                                              "unit, narrow(vector), False)")),
    "published at the next time": (
        ONE, within_forward, "_make_product", LIVELOCK, replaced("(turn.t * owned", "((turn.t + 1) % 4 * owned")
    ),
    "the biases of the gates before": (
        ONE, within_forward, "_make_product", WRONG, replaced("BIASES + GATE * U", "BIASES + (GATE - 1) * U")
    ),
    "the first stage's gates for all": (
        TWO, within_forward, "_make_product", WRONG, replaced("i * PRE + GATE", "i * PRE + cell.num_gates + 1")
    ),
    "gradients not published": (
        ONE, within_backward, "_make_product", LIVELOCK, replaced("gates, valid)", "gates, False)")
    ),
    "gradients of skipped steps": (
        SKIPS, within_backward, "_make_product", WRONG, replaced("not (masked and", "not (False and")
    ),
    "the gradient of the first stage's vector for all": (
        TWO, within_backward, "_make_product", WRONG, replaced("thread.d_v[i * S + product]", "thread.d_v[i * S]")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case, module, factory, shows, edit", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_product_within_a_step_is_found(change, case, module, factory, shows, edit):
    check_mutant(change, case, module, factory, shows, edit)


@pytest.mark.parametrize(
    "column, by, shows",
    [
        ("shift", 1, LIVELOCK),
        ("column", 1, LIVELOCK),
        ("columns", -1, WRONG),
        ("weights", 1, WRONG),
        ("kind", -STAGE, LIVELOCK),
    ],
    ids=str,
)
def test_a_wrong_table_is_found(monkeypatch, column, by, shows):
    check_wrong_table(monkeypatch, ONE, column, by, shows)


def test_what_an_earlier_call_multiplied_is_found(monkeypatch):
    """Where it is not marked; h is a part of a larger array."""
    shape = ONE.T, ONE.B, 9
    check_leftovers(monkeypatch, ONE, lambda array: array.base is None and array.shape == shape)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_a_block_that_never_publishes_what_is_multiplied_is_reported(monkeypatch, backward):
    silent_step, ptx_store, H = 2, ptx.store, 9
    gates = 3 if backward else 1  # of a row, of which the last is the stage's
    time = ONE.T - 1 - silent_step if backward else silent_step

    def store(array, index, value):
        row, gate = index // (gates * H), index % (gates * H) // H
        silent = cuda.blockIdx.x == 1 and row // ONE.B == time and gate == gates - 1
        if not silent or len(array) != ONE.T * ONE.B * gates * H:
            ptx_store(array, index, value)

    check_silence(monkeypatch, ONE, silent_step, backward, store)


@pytest.mark.parametrize("depth", (3, 8))
def test_layers_of_up_to_eight_products_run_in_the_simulator(depth):
    cell, x = library.recurrent_highway(depth), np.random.default_rng(0).normal(size=(2, 1, 3))
    ours = nr.RNN(cell, 3, 5, device="sim", schedule="persistent", seed=0)
    exact = nr.RNN(cell, 3, 5, device="cpu", dtype="float64", seed=0)
    exact.load_state_dict(ours.state_dict())
    (y, _, tape), (y_exact, _, tape_exact) = ours.forward(x.astype(np.float32)), exact.forward(x)
    np.testing.assert_allclose(y, y_exact, atol=1e-6)
    gradients, expected = (
        one.backward(kept, np.ones(y.shape, one.dtype)) for one, kept in ((ours, tape), (exact, tape_exact))
    )
    np.testing.assert_allclose(gradients.weights, expected.weights, rtol=1e-5, atol=1e-6)


def test_the_refusal_of_nine_products_begins_with_their_number():
    layer = nr.RNN(library.recurrent_highway(9), 3, 5, device="sim", schedule="persistent")
    with pytest.raises(RuntimeError, match=r"fit on simulator.*: 9 products per step, of at most 8, .*\. Use sch"):
        layer(np.zeros((2, 1, 3), np.float32))
