"""The library's cells on the CPU engine, against independent loops (cell_loops.py).

Compiling is nearly all of the time, some seconds a cell: each has one dtype here.
"""

import pytest

pytest.importorskip("torch")

from library_cases import NAMES, CellCase, check_cell, quick_and_slow

SHAPES = [
    dict(hidden=(5, 3), directions=2),
    dict(hidden=(33,), dtype="float64", B=1),
    dict(hidden=(4, 4), T=1, dtype="float64", directions=2),
    dict(hidden=(3, 7, 2), T=9, B=2),
]
SHAPE_OF = {"projected_lstm": 2, "layer_norm_lstm": 1}  # one size in all layers; of two units a norm leaves but signs
CASES = [CellCase(name, **SHAPES[SHAPE_OF.get(name, k % len(SHAPES))]) for k, name in enumerate(NAMES)]


@pytest.mark.parametrize("case", quick_and_slow(CASES, lambda case: case.name), ids=str)
def test_agrees_with_loop(case):
    for schedule in ("stepwise", "wavefront"):
        check_cell(case, "cpu", schedule)
