"""The options of the float64 reference: biases, skip input, projection, clipping, lengths and resets.

Against finite differences, and what follows from their definitions.
"""

import numpy as np
import pytest

from reference_problem import (
    CELLS,
    Problem,
    assert_gradients_are_differences,
    assert_same,
    assert_same_gradients,
    gradients_by_name,
)

RESETS = np.array([[False, True, False], [True, False, False], [False, False, True], [True, False, True]])

DIFFERENCED = {
    "bias-input": dict(bias="input"),
    "bias-recurrent": dict(bias="recurrent", D=2),
    "skip-bidirectional": dict(skip=True, D=2, bias="none"),
    "everything": dict(
        T=4, B=3, D=2, masks=True, skip=True, bias="recurrent", lengths=[2, 0, 4], resets=RESETS, padding_value=-1.0
    ),
}
LSTM_DIFFERENCED = {
    "projected-bidirectional-one-step": dict(proj=1, D=2, T=1),
    "clip-unsymmetrical-projected": dict(cell_clip=(-1.1, 0.9), proj=2),
    "everything-clip-projected": DIFFERENCED["everything"] | dict(cell_clip=(-0.3, 0.3), proj=2),
}


def differenced_cases():
    for cell in CELLS:
        for name, options in (DIFFERENCED | (LSTM_DIFFERENCED if cell == "lstm" else {})).items():
            yield pytest.param(cell, options, id=f"{cell}-{name}")


@pytest.mark.parametrize("cell, options", list(differenced_cases()))
def test_backward_against_finite_differences(cell, options):
    assert_gradients_are_differences(Problem(cell, **options))


# ------------------------------------------------------------------------------------------------------------ clipping
def steps_of(result):
    return [step for layer in result.tape.walks for pieces in layer for walk in pieces for step in walk]


def test_no_gradient_goes_through_what_is_held():
    """All cell states beyond a bound: only the output gate still learns, and the last step, of the gradient of cy."""
    problem = Problem("lstm", H=(4,), cell_clip=(-9.0, -8.0))
    problem.dcy[0][...] = 0
    result = problem.forward()
    assert all(step["saved"]["held"].all() for step in steps_of(result))
    gradients = problem.backward(result)
    for name, gradient in gradients.params.items():
        i, f, g, o = np.split(gradient, 4)
        assert not (i.any() or f.any() or g.any()), name
        assert o.all(), name
    assert not gradients.dcx[0].any()


@pytest.mark.parametrize("propagate", [True, False])
def test_a_cell_state_that_is_no_number(propagate):
    problem = Problem("lstm", H=(4,), T=1, cell_clip=(-0.1, 0.2), clip_propagate_nan=propagate)
    problem.c0[0][0, 1, 2] = np.nan
    result = problem.forward()
    others = problem.c0[0] == problem.c0[0]
    assert np.isfinite(result.cy[0][others]).all()
    if propagate:
        assert np.isnan(result.cy[0][0, 1, 2]) and np.isnan(result.y[0, 1, 2])
    else:
        assert np.isfinite(result.cy[0]).all() and np.isfinite(result.y).all()


# --------------------------------------------------------------------------------------------------- lengths and resets
@pytest.mark.parametrize("cell", CELLS)
def test_padding_is_not_read(cell):
    problem = Problem(cell, T=4, B=3, D=2, masks=True, lengths=[2, 0, 4], resets=RESETS, padding_value=0.5)
    expected, gradients = problem.forward(), problem.backward()
    padding = problem.padding()
    problem.x[padding] = problem.dy[padding] = np.nan
    problem.options["resets"] = RESETS ^ padding  # there they mean nothing
    result = problem.forward()
    assert_same(result.y, expected.y)
    np.testing.assert_array_equal(result.y[padding], 0.5)
    assert_same_gradients(problem.backward(result), gradients)
    assert not problem.backward(result).dx[padding].any()


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_of_length_zero_hands_its_state_on(cell):
    problem = Problem(cell, T=4, B=3, D=2, lengths=[2, 0, 4], resets=np.ones((4, 3), bool))
    result, gradients = problem.forward(), problem.backward()
    for layer in range(2):
        assert_same(result.hy[layer][:, 1], problem.h0[layer][:, 1])
        assert_same(gradients.dhx[layer][:, 1], problem.dhy[layer][:, 1])
        if cell == "lstm":
            assert_same(result.cy[layer][:, 1], problem.c0[layer][:, 1])
            assert_same(gradients.dcx[layer][:, 1], problem.dcy[layer][:, 1])


# -------------------------------------------------------------------------------------------------------------- errors


def test_longdouble_with_every_option():
    options = dict(lengths=[2, 0, 4], resets=RESETS, cell_clip=(-0.3, 0.3), padding_value=0.1)
    problem = Problem("lstm", T=4, B=3, D=2, skip=True, bias="input", proj=2, **options)
    expected, expected_gradients = problem.forward(), gradients_by_name(problem.backward())

    def wide(value):
        if isinstance(value, dict):
            return {name: wide(part) for name, part in value.items()}
        return [wide(part) for part in value] if isinstance(value, list) else value.astype(np.longdouble)

    for name in ("x", "parameters", "h0", "c0", "dy", "dhy", "dcy"):
        setattr(problem, name, wide(getattr(problem, name)))
    problem.options["padding_value"] = np.longdouble(0.1)
    result = problem.forward()
    gradients = gradients_by_name(problem.backward(result))
    for value, plain in [(result.y, expected.y), *((gradients[n], expected_gradients[n]) for n in gradients)]:
        assert value.dtype == np.longdouble
        np.testing.assert_allclose(value.astype(np.float64), plain, rtol=1e-12, atol=1e-13)
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        assert (result.y != result.y.astype(np.float64)).any()
