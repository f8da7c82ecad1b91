"""Layers with a projection in the persistent schedule: what blocks exchange for it within a step, in the simulator. All
options: test_conformance.py. What a wrong exchange looks like is tested here, too.
"""

from dataclasses import replace
from functools import partial

import pytest
from numba import cuda
from persistent_setup import few_threads
from test_blocks_simulated import normed_lstm
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

import numbarnn
from cases import Case
from grouped_tiles import launches_of
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import projection
from numbarnn.kernels.persistent.columns import STAGE

full = pytest.mark.full


@pytest.fixture(autouse=True)
def change(monkeypatch):
    return few_threads(monkeypatch)


@pytest.fixture(autouse=True)
def order(monkeypatch):
    import test_persistent_mutants

    monkeypatch.setitem(test_persistent_mutants.ORDER, "seed", 0)


PROJECTED = partial(Case, "lstm", proj_size=5)
CASES = [  # and how many warps a block has: at least one for each product
    (PROJECTED(T=3, B=2, hidden=(9,)), 2),  # of three blocks one has no output, one a single one
    (PROJECTED(T=3, B=2, hidden=(6, 7), directions=2, dropout=0.4), 2),
    (PROJECTED(T=2, B=17, hidden=(6,)), 2),  # more sequences than are multiplied at once: turns
    (PROJECTED(T=3, B=3, hidden=(16,), proj_size=8, lengths=(2, 0, 3), resets=True, dtype="float16"), 2),
    (PROJECTED(T=2, B=2, hidden=(8, 8), dropout=0.4, resets=True), 4),  # two layers in a launch
    (Case("projected_lstm", T=2, B=2, hidden=(9,)), 2),  # to as many outputs as units
    pytest.param(PROJECTED(T=3, B=3, hidden=(8, 8), directions=2, lengths=(3, 1, 2)), 8, marks=full),
    pytest.param(PROJECTED(T=3, B=2, hidden=(24,), proj_size=16, dtype="bfloat16"), 4, marks=full),  # warps share
]


@pytest.mark.parametrize("case, warps", CASES, ids=str)
def test_projections_agree_with_float64(change, case, warps):
    """With the same bits whoever comes first."""
    change(warps=(warps,))
    if warps >= 4:
        assert {len(launch.layer_range) for launch in launches_of(case)} == {len(case.hidden)}
    check(case, orders=2)


def test_projections_of_slices_of_the_batch_agree_with_float64(change):
    check_slices(change, PROJECTED(T=3, B=10, hidden=(9,)))


@full
def test_gradients_of_a_traced_cell_with_sums_and_a_projection():
    check = numbarnn.gradcheck(normed_lstm, 2, 4, steps=2, device="sim", proj_size=2, schedule="persistent")
    assert "weight_hr_l0" in check.errors


def test_plans_count_the_exchange_and_say_it():
    (launch, _) = launches_of(PROJECTED(T=3, B=2, hidden=(9,)))
    plain = launches_of(Case("lstm", T=3, B=2, hidden=(9,)))[0]
    assert (launch.estimate.rounds, plain.estimate.rounds) == (1, 0)
    assert launch.estimate.step > plain.estimate.step and "exchange once within it" in launch.details
    assert launch.estimate.read_bytes == 2 * 4 * (5 + 9)  # h, and m


# ------------------------------------------------------------------------------------------------------ wrong kernels
ONE, SKIPS = PROJECTED(T=4, B=2, hidden=(9,)), PROJECTED(T=4, B=2, hidden=(9,), lengths=(2, 4))
DROPS = PROJECTED(T=2, B=2, hidden=(8, 8), dropout=0.4)
MUTANTS = mutants_of_late_warps(ONE) | {
    "h not published": (ONE, projection, "make_forward", LIVELOCK, replaced("width, stored, valid)",
                                                                             "width, stored, False)")),
    "h of other sums": (ONE, projection, "make_forward", WRONG, replaced("sums(thread, role, pair)[0]",
                                                                          "sums(thread, role, pair ^ 1)[0]")),
    "h of skipped steps": (
        replace(SKIPS, lengths=(0, 4)), projection, "make_forward", WRONG, replaced("masked and", "False and")
    ),  # where m has been, too, h is W_hr m
    "h after a skipped step from the wrong slot": (
        SKIPS, projection, "make_forward", WRONG, replaced("outputs.before * owned", "(1 - outputs.before) * owned")
    ),
    "what is dropped out not published": (
        DROPS, projection, "make_forward", LIVELOCK, replaced("narrow(widen(stored) * factor), valid)",
                                                               "narrow(widen(stored) * factor), False)")
    ),
    "dropped out by another layer's rows": (
        DROPS, projection, "make_forward", WRONG, replaced("dropout_factor(position,", "dropout_factor(position + 1,")
    ),
    "gradient of h not published": (
        ONE, projection, "make_backward", LIVELOCK, replaced("narrow(d_h), valid)", "narrow(d_h), False)")
    ),
    "only what comes from above": (
        ONE, projection, "make_backward", WRONG, replaced("thread.came[i * M] + thread.came[i * M + 1]\n",
                                                          "thread.came[i * M]\n")
    ),
    "gradients of skipped steps": (
        SKIPS, projection, "make_backward", WRONG, replaced("not (masked and", "not (False and")
    ),
    "the gradient of h carried on": (
        ONE, projection, "make_backward", WRONG, replaced("turn.b0, pair)] = number(0)", "turn.b0, pair)] = d_h")
    ),
    "what comes from above twice": (
        ONE, projection, "make_backward", WRONG, replaced("= number(0), sums(", "= thread.came[i * M], sums(")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case, module, factory, shows, edit", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_projection_is_found(change, case, module, factory, shows, edit):
    check_mutant(change, case, module, factory, shows, edit)


@pytest.mark.parametrize(
    "column, by, shows",
    [
        ("operand", -1, LIVELOCK),
        ("shift", 1, LIVELOCK),
        ("column", 1, LIVELOCK),
        ("columns", -1, WRONG),
        ("weights", 1, WRONG),
        ("units", -1, WRONG),
        ("kind", -STAGE, LIVELOCK),
    ],
    ids=str,
)
def test_a_wrong_table_is_found(monkeypatch, column, by, shows):
    check_wrong_table(monkeypatch, ONE, column, by, shows)


def test_what_an_earlier_call_projected_is_found(monkeypatch):
    """Where it is not marked."""
    check_leftovers(monkeypatch, ONE, lambda array: array.shape == (ONE.T, ONE.B, 9))


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_a_block_that_never_publishes_what_is_projected_is_reported(monkeypatch, backward):
    silent_step, ptx_store, width, slots = 2, ptx.store, 5 if backward else 9, ONE.T + 2 * (not backward)
    slot = ONE.T - 1 - silent_step if backward else silent_step + 1

    def store(array, index, value):
        silent = cuda.blockIdx.x == 1 and index // width // ONE.B == slot
        if not silent or len(array) != slots * ONE.B * width:
            ptx_store(array, index, value)

    check_silence(monkeypatch, ONE, silent_step, backward, store)
