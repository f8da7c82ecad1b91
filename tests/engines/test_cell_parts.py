"""What names a cell's compiled code on disk: the same for the same equations."""

from dataclasses import replace

import numbarnn
from general_cells import ladder as LADDER
from numbarnn import cells
from numbarnn.cells.definition import Noise
from numbarnn.cells.lstm import lstm_forward
from numbarnn.compile import native
from numbarnn.compile.plain import Entry
from numbarnn.engines.cpu import cell_steps
from numbarnn.engines.cpu.cell_parts import CellParts


def own_forward(ax, ah, state):
    return lstm_forward(ah, ah, state)


OWN = replace(cells.LSTM, name="own", forward=own_forward)


def name_of(cell):
    return repr(CellParts(cell, "float32"))


def test_a_name_goes_by_the_equations():
    again = replace(cells.LSTM, name="own", forward=lambda ax, ah, state: lstm_forward(ax, ah, state))
    names = {name_of(cell) for cell in (OWN, again, replace(OWN, saved=("i", "f", "g")), cells.LSTM)}
    assert len(names) == 4 and name_of(replace(OWN)) in names
    assert repr(CellParts(OWN, "float64")) not in names


def test_a_name_does_not_go_by_what_are_arguments():
    """Numbers of random numbers but 1; nor by the name that equations make of them."""
    noisy = replace(LADDER, noise=(Noise(0.25, kept=2.0, mean=0.75),))
    others = Noise(0.5, 2.0, 0.75), Noise(0.25, 3.0, 0.75), Noise(0.25, 2.0, 0.25)
    assert {name_of(replace(noisy, noise=(one,))) for one in others} == {name_of(noisy)}
    assert len({name_of(numbarnn.cell(cells.library.gru, zoneout_h=rate, dropout_n=rate)) for rate in (0.1, 0.3)}) == 1


# ------------------------------------------------------------------------------------------ machine code
def test_loops_work_on_several_vectors_at_a_time():
    """LLVM is told of each loop, and heeds it: there are several divisions of vectors for each of the cell's."""
    parts, divisions = CellParts(cells.LSTM, "float32"), []
    for interleaved in (None, lambda parts: parts.interleaved):
        entry = Entry(cell_steps.infer_units.py_func, "a test", interleaved)
        module = entry.module("test", (parts,))
        loops = [line for line in str(module).splitlines() if "!llvm.loop" in line]
        assert bool(loops) == bool(interleaved)
        assert len({line.rpartition("!")[2] for line in loops}) == len(loops)  # nodes, of which each loop has its own
        lines = str(native.optimized(module)).splitlines()
        divisions.append(sum(" fdiv " in line and " x float>" in line for line in lines))
    assert divisions[1] >= 2 * divisions[0] > 0
