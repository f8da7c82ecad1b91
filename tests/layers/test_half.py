"""float16 and bfloat16: names, errors, large layers on a GPU. The kernels are in simulated/test_half_simulated.py."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
import torch_peer
from numbarnn.common import precision
from numbarnn.layers import checks
from problems import Case, check, make_problem, train

by_dtype = pytest.mark.parametrize("dtype", precision.HALVES)


def test_what_is_computed_in():
    found = {dtype: precision.compute_dtype(dtype) for dtype in precision.DTYPES}
    assert found == {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}
    assert [dtype for dtype in precision.DTYPES if precision.is_half(dtype)] == list(precision.HALVES)


@pytest.mark.parametrize("dtype", precision.DTYPES)
def test_dtypes_are_known_by_name_and_as_numpys(dtype):
    assert precision.numpy_dtype(dtype).name == dtype
    assert checks.dtype_name(dtype) == checks.dtype_name(precision.numpy_dtype(dtype)) == dtype


@by_dtype
def test_the_cpu_engine_says_where_halves_run(dtype):
    with pytest.raises(ValueError, match=rf"'{dtype}' runs on device 'cuda' .*'sim'.* dtype='float32'"):
        nr.LSTM(3, 4, dtype=dtype, device="cpu")


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


# ------------------------------------------------------------------------------------------------------------- a GPU
def large_cases():
    """Sizes that take many blocks and tensor cores; without the ReLU, of which some are always too near to the kink."""
    for dtype in precision.HALVES:
        for cell in ("lstm", "gru", "rnn_tanh"):
            yield Case(cell, dtype=dtype, T=20, B=16, I=64, hidden=(128,))
            yield Case(cell, dtype=dtype, T=5, B=3, hidden=(129, 65), directions=2, dropout=0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("case", list(large_cases()), ids=str)
def test_gpu_agrees_with_reference(case):
    check(case, "cuda", "auto")


PEERS = [
    Case(cell, dtype=dtype, **sizes)
    for dtype in precision.HALVES
    for cell in ("lstm", "gru")
    for sizes in (dict(hidden=(33,)), dict(T=10, hidden=(9, 9), directions=2))
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", PEERS, ids=str)
def test_gpu_error_is_at_most_twice_torchs(case):
    torch = pytest.importorskip("torch")
    problem = make_problem(case)
    values, _ = train(problem.layer("cuda"), problem)
    expected = problem.expected()
    torch_peer.assert_at_most_twice_torchs_error(case, values, torch_peer.values(torch, problem), expected)


@pytest.mark.gpu
@by_dtype
def test_gpu_takes_torchs_halves(cupy, dtype):
    """A PyTorch tensor of the dtype goes in as it is."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    layer = nr.GRU(3, 4, dtype=dtype, device="cuda", seed=0)
    x = torch.randn(5, 2, 3, device="cuda").to(getattr(torch, dtype))
    torch.cuda.synchronize()
    expected, _ = layer(cupy.asarray(x.float().cpu().numpy().astype(precision.numpy_dtype(dtype))))
    found, _ = layer(x)
    np.testing.assert_array_equal(cupy.asnumpy(found), cupy.asnumpy(expected))
