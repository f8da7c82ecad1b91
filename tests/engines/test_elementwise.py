"""Expressions of matrices element by element, compiled, against NumPy."""

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.cells.layout import Term
from numbarnn.engines.cpu import elementwise

A, B, C, s = (Term("parameter", data=name) for name in "ABCs")


def op(name, *args):
    return Term(name, args)


TERMS = {  # name -> (term, its value)
    "transposed": (
        op("sub", op("sub", A, op("transpose", A)), op("mul", s, Term("eye", data=203))),
        lambda a, b, c, s: a - a.T - s * np.eye(203),
    ),
    "two transposed": (
        op("mul", op("add", op("transpose", A), op("neg", op("transpose", op("mul", B, A)))), Term("lower", data=203)),
        lambda a, b, c, s: (a.T - (b * a).T) * np.tril(np.ones((203, 203))),
    ),
    "as it lies": (
        op("divide", op("sub", C, op("mul", Term("number", data=0.5), C)), s),
        lambda a, b, c, s: 0.5 * c / s,
    ),
}


@pytest.mark.parametrize(
    "name, dtype, add",
    [(name, "float64", True) for name in TERMS] + [("transposed", "float32", False), ("as it lies", "float32", False)],
)
def test_agrees_with_numpy(name, dtype, add):
    """Of 203 rows, more than whole tiles and vectors; in rows that lie apart; the operands' too."""
    term, expected = TERMS[name]
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 203, 210)).astype(dtype)[:, :, 3:206]
    values = {"A": a, "B": b, "C": random.standard_normal((203, 83)).astype(dtype), "s": np.array(0.7, dtype)}
    wanted = expected(*(values[key].astype("float64") for key in "ABCs"))
    wide = np.full((203, wanted.shape[1] + 5), 2, dtype)
    out = wide[:, 2:-3]
    number = {"number": lambda term: term.data, "parameter": lambda term: values[term.data]}
    assert engines.get("cpu").elementwise(out, term, lambda one: number[one.op](one), add)
    np.testing.assert_allclose(out, wanted + 2 * add, atol=1e-5 if dtype == "float32" else 1e-14)
    assert (wide[:, :2] == 2).all() and (wide[:, -3:] == 2).all()


def test_small_matrices_are_left_to_numpy():
    out = np.zeros((3, 4))
    assert out.size < elementwise.FROM and not engines.get("cpu").elementwise(out, C, None)
    assert not engines.get("cpu").elementwise(np.zeros(1 << 15), C, None)
