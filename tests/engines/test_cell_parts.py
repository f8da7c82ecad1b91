"""What names a cell's compiled code on disk: the same for the same equations."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from general_cells import ladder as LADDER
from numbarnn import cells
from numbarnn.cells.definition import Noise
from numbarnn.cells.lstm import lstm_backward, lstm_forward
from numbarnn.compile import native
from numbarnn.compile.plain import Entry
from numbarnn.engines.cpu import cell_steps
from numbarnn.engines.cpu.cell_parts import CellParts, StageParts
from numbarnn.engines.cpu.records import INTERLEAVED


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


def test_a_name_goes_by_sums_and_noise():
    cell, (stage, *stages) = LADDER, LADDER.stages
    noisy = replace(cell, noise=(Noise(0.25),))
    others = [
        noisy,
        replace(noisy, noise=(Noise(0.25, each_step=False),)),
        replace(noisy, noise=(Noise(0.25, kept=2.0),)),
        replace(noisy, noise=(Noise(0.25, mean=0.75),)),
        replace(cell, stages=(replace(stage, sums=("p",)), *stages)),
        replace(cell, stages=(replace(stage, gates=("p", "q"), sums=()), *stages)),
    ]
    assert len({name_of(one) for one in (cell, *others)}) == 7


def test_a_name_does_not_go_by_what_are_arguments():
    """Numbers of random numbers but 1; nor by the name that equations make of them."""
    noisy = replace(LADDER, noise=(Noise(0.25, kept=2.0, mean=0.75),))
    others = Noise(0.5, 2.0, 0.75), Noise(0.25, 3.0, 0.75), Noise(0.25, 2.0, 0.25)
    assert {name_of(replace(noisy, noise=(one,))) for one in others} == {name_of(noisy)}
    assert len({name_of(numbarnn.cell(cells.library.gru, zoneout_h=rate, dropout_n=rate)) for rate in (0.1, 0.3)}) == 1


def test_stages_have_names_of_their_own():
    parts = CellParts(LADDER, "float32")
    assert len({repr(StageParts(parts, number)) for number in range(len(LADDER.stages))} | {repr(parts)}) > 2


# ------------------------------------------------------------------------------------------ machine code
def test_loops_work_on_several_vectors_at_a_time():
    """LLVM is told of each loop, and heeds it: there are several divisions of vectors for each of the cell's."""
    parts, divisions = CellParts(cells.LSTM, "float32"), []
    for interleaved in (None, INTERLEAVED):
        entry = Entry(cell_steps.infer_units.py_func, "a test", interleaved)
        module, others = entry.module("test", (parts,))
        loops = [line for line in str(module).splitlines() if "!llvm.loop" in line]
        assert bool(loops) == bool(interleaved)
        assert len({line.rpartition("!")[2] for line in loops}) == len(loops)  # nodes, of which each loop has its own
        lines = str(native.optimised(module, others)).splitlines()
        divisions.append(sum(" fdiv " in line and " x float>" in line for line in lines))
    assert divisions[1] >= 2 * divisions[0] > 0


# ------------------------------------------------------------------------------------------ what Numba compiles
def comprehended(ax, ah, state):
    """An LSTM's step in words that `numbarnn.compile.plain` does not know."""
    gates = [x + y for x, y in zip(ax, ah)]  # noqa: B905 - Numba does not know `strict`
    none = ax[0] - ax[0]
    return lstm_forward((gates[0], gates[1], gates[2], gates[3]), (none, none, none, none), state)


def without_source():
    names = {"lstm_backward": lstm_backward}
    exec("def backward(*given): saved, state, new_state, d_state = given; return lstm_backward(*given)", names)
    return names["backward"]


WORDS, SOURCE = {"forward": comprehended}, {"backward": without_source()}


@pytest.mark.parametrize("changed, dtype", [  # each of the two and either dtype; Numba takes seconds for one
    pytest.param(WORDS, "float32", id="words-float32"),
    pytest.param(SOURCE, "float64", id="source-float64"),
    pytest.param(WORDS, "float64", id="words-float64", marks=pytest.mark.full),
    pytest.param(SOURCE, "float32", id="source-float32", marks=pytest.mark.full),
])  # fmt: skip
def test_functions_that_are_not_plain_are_compiled_by_numba(dtype, changed, tmp_path, monkeypatch):
    """Cold, and from disk."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(3).normal(size=(4, 3, 5)).astype(dtype)

    def results(cell):
        layer = numbarnn.RNN(cell, 5, 37, device="cpu", seed=1, dtype=dtype)
        y, state, tape = layer.forward(x)
        gradients = layer.backward(tape, y)
        return [y, *state, layer(x)[0], gradients.x, *gradients.params.values()]

    of_lstm = results(cells.LSTM)
    for _ in range(2):  # a new cell's functions are asked for on disk
        monkeypatch.setattr(native, "_addresses", {})
        ours = results(replace(cells.LSTM, name="own", **changed))
        for one, other in zip(ours, of_lstm, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=30 * np.finfo(dtype).eps)
    assert list(tmp_path.glob("*.o"))
