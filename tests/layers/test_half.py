"""float16 and bfloat16: names, errors, the CPU's way with them, large layers on a GPU.

Results: test_conformance.py; the kernels: simulated/test_kernels_simulated.py."""

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.common import precision
from numbarnn.layers import checks

by_dtype = pytest.mark.parametrize("dtype", precision.HALVES)


def on_the_cpu(dtype, **options):
    """A layer of the dtype, one of float32 with the same numbers, and x, dy, states of the dtype."""
    layer, wide = (nr.LSTM(3, 4, 2, device="cpu", dtype=name, seed=0, **options) for name in (dtype, "float32"))
    wide.load_state_dict({name: value.astype("float32") for name, value in layer.state_dict().items()})
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((5, 2, size)).astype(dtype) for size in (3, 4))
    return layer, wide, x, dy, tuple(rng.standard_normal((2, 2, 2, 4)).astype(dtype))


@by_dtype
@pytest.mark.parametrize("options", [{}, {"dropout": 0.5}, {"batch_first": True}], ids=str)
def test_the_cpu_computes_in_float32_and_rounds_each_result_once(dtype, options):
    layer, wide, x, dy, state = on_the_cpu(dtype, **options)
    if layer.batch_first:
        x, dy = (np.ascontiguousarray(array.swapaxes(0, 1)) for array in (x, dy))
    found, expected = [], []
    for one, results, kind in ((layer, found, dtype), (wide, expected, "float32")):
        given = x.astype(kind), tuple(part.astype(kind) for part in state)
        y, final = one(*given)
        results += [y, *final]
        y, final, tape = one.forward(*given)
        gradients = one.backward(tape, dy.astype(kind), given[1])
        results += [y, *final, gradients.x, *gradients.state, *gradients.params.values(), *one.dropout_masks(tape)]
        results.append(one.stepper(2)(x.reshape(-1, 3)[:2].astype(kind)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other.astype(dtype), strict=True)


def test_what_is_beyond_float16_is_infinite_on_the_cpu():
    layer = nr.RNN(2, 3, nonlinearity="relu", dtype="float16", device="cpu", seed=0)
    layer.weights[...] = 60000
    with warnings.catch_warnings(action="error"):
        assert np.isposinf(layer(np.full((1, 1, 2), 60000, "float16"))[0]).all()


def test_a_missing_ml_dtypes_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(RuntimeError, match=r"'bfloat16' needs .*ml_dtypes.*pip install .*\[bfloat16\]\""):
        nr.LSTM(3, 4, dtype="bfloat16", device="cpu")


def test_an_old_cupy_is_named():
    engine = SimpleNamespace(name="cuda", array_module=SimpleNamespace(__version__="13.6.0"))
    with pytest.raises(RuntimeError, match=r"'bfloat16' needs CuPy 14 .* CuPy 13\.6\.0.*cupy-cuda12x>=14"):
        checks.dtype_on(engine, "bfloat16")
    checks.dtype_on(engine, "float16")
    engine.array_module.__version__ = "14.2.0"
    checks.dtype_on(engine, "bfloat16")


def test_parameters_from_pytorchs_bfloat16_say_how():
    class Tensor:
        def __array__(self, *_, **__):
            raise TypeError("Got unsupported ScalarType BFloat16")  # torch's words

    layer = nr.GRU(3, 4, device="cpu", seed=0)
    state = dict.fromkeys(layer.state_dict(), Tensor())
    with pytest.raises(TypeError, match=r"'weight_ih_l0'.*BFloat16; .*pass its \.float\(\)"):
        layer.load_state_dict(state)
