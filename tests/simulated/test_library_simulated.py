"""Cells of the library in the simulator: several of each structure (stages, sums, vectors, no R), and the rest."""

import pytest

pytest.importorskip("torch")

import numbarnn
from library_cases import NAMES, CellCase, cell_of, check_cell

CASES = [
    CellCase("peephole_lstm", T=3, B=2, hidden=(3, 2), directions=2),
    CellCase("slstm", T=3, B=2, hidden=(3,)),
    CellCase("recurrent_highway 3", T=2, B=2, hidden=(3,), dtype="float64"),
    CellCase("multiplicative_lstm", T=3, B=1, hidden=(2, 3)),
    CellCase("cornn", T=3, B=2, hidden=(3,), directions=2, dtype="float64"),
    CellCase("layer_norm_lstm", T=3, B=2, hidden=(5, 3), directions=2),
    CellCase("layer_norm_gru", T=3, B=3, hidden=(6,), dtype="float64"),
    CellCase("layer_norm_lstm", T=3, B=2, hidden=(4,), dtype="float16"),
    CellCase("projected_lstm", T=3, B=2, hidden=(3, 3), directions=2),
    CellCase("fast_grnn", T=3, B=2, hidden=(3,)),
    CellCase("sru", T=3, B=2, hidden=(2, 3)),
    CellCase("ind_rnn", T=1, B=1, hidden=(3,), dtype="float64"),
    CellCase("gru", T=3, B=2, hidden=(3,)),
    CellCase("slstm", T=3, B=2, hidden=(3,), dtype="float16"),
    CellCase("lem", T=3, B=2, hidden=(3, 2), dtype="float16"),
    CellCase("peephole_lstm", T=3, B=2, hidden=(3,), directions=2, dtype="bfloat16"),
    CellCase("qrnn", T=3, B=2, hidden=(2, 3), dtype="bfloat16"),
]
CASES += [CellCase(name, T=3, B=2, hidden=(3,)) for name in NAMES if name not in {case.name for case in CASES}]


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_loop(case, schedule):
    check_cell(case, "sim", schedule)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    check = numbarnn.gradcheck(cell_of(name), input_size=2, hidden_size=3, steps=2, device="sim")
    assert check.ok and len(check.errors) >= 3
