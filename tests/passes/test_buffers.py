"""The table of buffers: every row comes to be in some call, with its shape, once, and for no longer than it says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import numbarnn
from numbarnn.cells import CELLS, library
from numbarnn.passes import buffers
from numbarnn.passes.backward import BackwardPass
from numbarnn.passes.checkpoints import CheckpointedBackward, CheckpointedForward
from numbarnn.passes.forward import ForwardPass
from numbarnn.schedules import Problem
from numbarnn.schedules.persistent import tilings

TABLES = {
    "forward": ForwardPass.table,
    "backward": BackwardPass.table,
    "forward with checkpoints": CheckpointedForward.table,
    "backward with checkpoints": CheckpointedBackward.table,
}


def problem(cell=CELLS["lstm"], **options):
    """Two layers and directions, T = 5, B = 3, I = 4, H = 6 and 7."""
    sizes = dict(input_size=4, hidden_sizes=(6, 7), directions=2, steps=5, batch=3, training=True)
    return Problem(engine="cpu", cell=cell, **({"dtype": "float32", "checkpoint_every": 2} | sizes | options))


def shapes(table, case):
    """(name, key) -> shape, of all buffers of a problem that have memory of their own."""
    _, layout = table.layout(case)
    return {(name, key): shape for rows in layout.values() for name, key, shape, _, within in rows if within is None}


def test_shapes_of_a_problem():
    found = shapes(TABLES["forward"], problem())
    assert found["h", 1] == (7, 3, 14) and found["c", 0] == (7, 3, 12)
    assert found["gates", (1, 0)] == (5, 3, 28) and found["ah", (0, 1)] == (3, 24)
    assert found["hy", None] == [(2, 3, 6), (2, 3, 7)]
    assert ("ax", (0, 0)) not in found  # in the memory of gates
    inference = shapes(TABLES["forward"], problem(training=False))
    assert inference["ax", (0, 0)] == (5, 3, 24) and inference["c", 1] == (2, 3, 14)
    assert not {"gates", "dropped_input", "step_mask", "x_copy"} & {name for name, _ in inference}
    backward = shapes(TABLES["backward"], problem(hidden_sizes=(6, 6)))
    assert backward["dh", None] == (4, 3, 6) and backward["dx", 1] == (5, 3, 12) and backward["dx", 0] == (5, 3, 4)
    assert backward["dw", None] == (numbarnn.LSTM(4, 6, 2, bidirectional=True, device="cpu").weights.size,)


@pytest.mark.parametrize("table", ("forward", "backward"))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_block_of_a_persistent_kernel_has_its_words_of_sums(table, dtype):
    """However few units the planner gives to blocks: a block beyond the buffer would write into another one."""
    case = problem(library.layer_norm_lstm, dtype=dtype, hidden_sizes=(33, 33), checkpoint_every=0)
    blocks = -(-33 // min(tilings.UNITS))
    slots, sums, batch, *rest = shapes(TABLES[table], case)["words", (1, 1)]
    assert (slots, sums, batch) == (2, case.cell.num_sums, 3) and np.prod(rest) >= blocks


def problems():
    """Problems that have every buffer between them."""
    options = product((True, False), (False, True), (False, True), (0, 2), ("float32", "float16"))
    for name, (training, batch_major, masked, projection, dtype) in product(("lstm", "gru"), options):
        masks = {"padded": masked, "resets": masked, "dropout": 0.5}
        sizes = {"training": training, "batch_major": batch_major, "projection": projection, "dtype": dtype}
        yield problem(CELLS[name], **masks, **sizes)
    yield from (problem(segment_of=9, padded=padded) for padded in (False, True))
    yield problem(directions=1)
    yield problem(library.gru)  # whose b_r is formed: one of its gates has a bias
    yield from (problem(keeps_states=True, batch_major=batch_major) for batch_major in (True, False))
    odd = replace(CELLS["lstm"], heads=2, drop_connect=(0.5, 0, 0, 0), noise=(0.1,))
    yield problem(cell=odd, hidden_sizes=(6, 6))
    two_products = numbarnn.GRU(4, 6, reset_after=False, device="cpu").stack.cell
    for cell in (library.layer_norm_gru, library.peephole_lstm, two_products):
        yield from (problem(cell, training=training) for training in (True, False))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_exists_in_some_problem_and_not_in_all_that_say_when(name):
    table, cases = TABLES[name], list(problems())
    for row, when in zip(table.rows, table._when, strict=True):
        found = {bool(eval(when, {}, {"p": case, "cell": case.cell})) for case in cases}
        assert True in found, row
        assert not row.when or False in found, row


@pytest.mark.parametrize("name", TABLES)
def test_no_buffer_is_declared_twice_for_one_need(name):
    for case in problems():
        for rows in TABLES[name].layout(case)[1].values():
            places = [row[:2] for row in rows]
            assert len(set(places)) == len(places)


def test_the_table_is_printed_whole():
    lines = buffers.as_text().splitlines()
    assert buffers.TABLES == {title: table.rows for title, table in TABLES.items()}
    assert len(lines) == sum(2 + len(rows) for rows in buffers.TABLES.values())
    assert all(row.name in line and row.shape in line for row, line in zip(buffers.FORWARD, lines[2:], strict=False))


def test_what_a_tape_keeps():
    """Neither scratch of steps nor what only the call needed; one memory for x Wᵀ, what is saved and its gradient."""
    layer = numbarnn.LSTM(4, (6, 7), dropout=0.5, device="cpu")
    y, _, tape = layer.forward(np.ones((5, 3, 4), np.float32))
    work = tape.forward
    assert not work.ax and not work.ah and not work.dropped_input and set(work.gates) == {(0, 0), (1, 0)}
    kept = {name if isinstance(name, str) else name[0] for name in work._made}
    assert kept == {"h", "c", "x", "masks", "gates"} <= TABLES["forward"].kept
    layer.backward(tape, y)
    for place, gates in work.gates.items():
        assert tape.backward.dax[place] is tape.backward.dah[place] is gates
    assert layer(np.ones((5, 3, 4), np.float32))[0].shape == (5, 3, 7)
