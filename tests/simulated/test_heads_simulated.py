"""Blocks on the diagonal of R (`heads`) in persistent kernels: a block of the grid multiplies the columns of its own
head alone, and what comes of it is what a dense R gives."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from persistent_setup import few_threads

import comparing
from cases import Case
from comparing import assert_same_bits
from grouped_tiles import launches_of
from numbarnn.engines.gpu import launches
from numbarnn.kernels.persistent.columns import RECURRENT, WARP
from numbarnn.schedules.persistent import shares, tables
from problems import make_problem
from running import infer, train

TWO_HEADS = Case("rnn_tanh", T=3, B=2, hidden=(32,), heads=2)


@pytest.fixture(autouse=True)
def change(monkeypatch):
    return few_threads(monkeypatch)


@pytest.fixture
def alter():
    """A function alter(owner, name, value) for what plans and tables are made of: they are made anew."""
    with pytest.MonkeyPatch.context() as patched:

        def set_to(owner, name, value):
            patched.setattr(owner, name, value)
            tables.forget()

        yield set_to
    tables.forget()


@pytest.fixture
def multiplied(monkeypatch):
    """What warps of launches multiply with the state before: for each launch (first column, columns) -> warps."""
    found, make_tables = [], launches.make_tables

    def noted(*arguments):
        blocks, warps = make_tables(*arguments)
        own = warps[(warps[..., WARP.kind] == RECURRENT) & (warps[..., WARP.columns] > 0)]
        found.append(Counter((int(row[WARP.column]), int(row[WARP.columns])) for row in own))
        return blocks, warps

    monkeypatch.setattr(launches, "make_tables", noted)
    return found


@pytest.mark.parametrize(
    "case, warps",
    [
        (TWO_HEADS, 2),
        (Case("lstm", T=2, B=2, hidden=(8, 16), heads=2, directions=2, dropout=0.3), 8),
        (Case("lstm", T=2, B=3, hidden=(16, 16), heads=2, dtype="float16"), 6),
        pytest.param(Case("lstm", T=2, B=2, hidden=(16,), heads=4), 4, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_heads_agree_with_reference(change, multiplied, case, warps):
    """Forward and backward, several layers and directions, in halves."""
    change(warps=(warps,), multiprocessors=100)
    comparing.check(case, "sim", "persistent")
    widest = max(case.hidden) // case.heads
    assert multiplied and all(columns <= widest for launch in multiplied for _, columns in launch)


def test_columns_are_those_of_the_head(change, multiplied):
    change(warps=(4,), multiprocessors=100)
    train(TWO_HEADS.layer("sim", schedule="persistent"), make_problem(TWO_HEADS))
    case = replace(TWO_HEADS, cell="lstm")
    train(case.layer("sim", schedule="persistent"), make_problem(case))
    by_head = {(0, 16): 4, (16, 16): 4}  # four blocks of four units for each head
    assert multiplied[:2] == [by_head, by_head]
    assert multiplied[2:] == [by_head, {(32 * gate + head, 16): 4 for gate in range(4) for head in (0, 16)}]


@pytest.mark.parametrize("cell, warps", [("rnn_tanh", 2), ("lstm", 8)])
def test_the_same_bits_as_dense(change, alter, multiplied, cell, warps):
    """Where a warp's columns are those of one head in both: zeros add nothing."""
    case, found = replace(TWO_HEADS, cell=cell), []
    problem = make_problem(case)
    for dense in (False, True):
        change(warps=(warps,), multiprocessors=100 + dense)  # another device: plans are remembered
        if dense:
            alter(shares, "_sources_of_head", lambda *_: [])
        layer = problem.layer("sim", schedule="persistent")
        found.append(infer(layer, problem) | train(layer, problem)[0])
    assert_same_bits(*found, "dense")
    of_heads, dense = multiplied[:3], multiplied[3:]
    assert [{place: 2 * warps for place, warps in each.items()} for each in of_heads] == dense


@pytest.mark.parametrize(
    "case, warps",
    [
        (Case("rnn_tanh", T=2, B=2, hidden=(12,), heads=2), 2),  # a head of 6 units, blocks of 4
        (Case("lstm", T=2, B=2, hidden=(8,), heads=2), 2),  # backward four gates for two warps
        (Case("rnn_tanh", T=2, B=2, hidden=(8,), heads=2, dtype="float16"), 2),  # a head's row of 8 bytes
    ],
    ids=str,
)
def test_dense_where_heads_do_not_suit_the_blocks(change, case, warps):
    change(warps=(warps,), multiprocessors=100)
    comparing.check(case, "sim", "persistent")
    launch = launches_of(case)[-1]
    problem = case.layer("sim", schedule="persistent").stack.problem(case.T, case.B, True)
    (source,) = shares.sources(problem, 0, 0, 1, True, launch.tile)
    assert source.columns == source.width == case.definition.num_recurrent * case.hidden[0]


def test_what_is_not_a_number_stays_in_its_head(change):
    """A dense product would multiply it by zeros, and 0 * NaN is NaN."""
    change(warps=(2,), multiprocessors=100)
    problem, layer = make_problem(TWO_HEADS), TWO_HEADS.layer("sim", schedule="persistent")
    state = problem.h.copy()
    state[0, :, 3] = np.inf
    state[0, :, 5] = np.nan
    y, _ = layer(problem.x, state)
    assert np.isnan(y[1:, :, :16]).any() and np.isfinite(y[..., 16:]).all()


def test_the_first_heads_columns_for_all_are_found(change, alter):
    change(warps=(2,), multiprocessors=100)
    alter(shares.Source, "first_column", lambda source, unit: source.start)
    with pytest.raises(AssertionError, match="errors above"):
        comparing.check(TWO_HEADS, "sim", "persistent")
