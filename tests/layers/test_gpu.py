"""LSTM, GRU and RNN on a GPU: the comparison with the reference, streams, memory, and arrays of other libraries.

    python -m pytest -m gpu

Without a GPU these skip themselves (conftest.py); the same kernels run in the simulator (tests/simulated).
"""

from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
from cases import CELLS, Case
from comparing import all_arrays, assert_same_bits
from numbarnn import engines
from problems import make_problem
from running import named_gradients, named_outputs, on_engine, train

pytestmark = pytest.mark.gpu
by_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.fixture
def engine():
    return engines.get("cuda")


# ------------------------------------------------------------------------------------------------- arrays in and out
@by_cell
def test_cupy_in_cupy_out(cupy, cell):
    problem = make_problem(Case(cell, hidden=(33, 5), directions=2))
    layer = problem.layer("cuda")
    assert layer.device == "cuda" and layer.engine.array_module is cupy
    x, state, dy, dstate = on_engine(layer.engine, [problem.x, problem.state, problem.dy, problem.dstate])
    before = [array.copy() for array in all_arrays([x, state, dy, dstate, layer.weights])]
    y, new_state, tape = layer.forward(x, state)
    gradients = layer.backward(tape, dy, dstate)
    results = [y, new_state, gradients.x, gradients.state, gradients.params, gradients.weights, layer.parameters]
    for array in all_arrays(results):
        assert type(array) is cupy.ndarray and array.device.id == 0
    assert all(type(value) is np.ndarray for value in layer.state_dict().values())
    for array, copy in zip(all_arrays([x, state, dy, dstate, layer.weights]), before, strict=True):
        assert (array == copy).all()


def test_auto_is_the_gpu():
    assert nr.LSTM(4, 5).device == "cuda" and engines.get("auto") is engines.get("cuda") is engines.get("cuda:0")


def test_numpy_arrays_are_refused_and_nothing_is_copied():
    problem = make_problem(Case("lstm", hidden=(5, 5)))
    layer = problem.layer("cuda")
    x = on_engine(layer.engine, problem.x)
    with pytest.raises(TypeError, match=r"(?s)x must be on the GPU.*numpy.ndarray.*cupy.asarray"):
        layer(problem.x)
    with pytest.raises(TypeError, match=r"(?s)state\[0\] \(h\) must be on the GPU"):
        layer(x, problem.state)
    _, _, tape = layer.forward(x)
    with pytest.raises(TypeError, match=r"(?s)dy must be on the GPU"):
        layer.backward(tape, problem.dy)
    with pytest.raises(TypeError, match=r"(?s)dw must be on the GPU"):
        layer.backward(tape, None, dw=np.zeros(layer.weights.size, np.float32))
    layer.backward(tape, on_engine(layer.engine, problem.dy))


def test_gpu_arrays_are_refused_on_the_cpu(cupy):
    with pytest.raises(TypeError, match=r"(?s)x is on a GPU.*cupy.asnumpy"):
        nr.LSTM(4, 5, device="cpu")(cupy.ones((7, 3, 4), "float32"))


def test_missing_gpu_says_how_many_there_are(cupy):
    count = cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(RuntimeError, match=f"'cuda:{count}' does not exist: this machine has {count} GPU"):
        engines.get(f"cuda:{count}")


def only(array, *names):
    """An object with these attributes of an array and no others: another library's array."""
    return SimpleNamespace(**{name: getattr(array, name) for name in names})


class OnlyDLPack:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.real_gpu  # the emulated one knows no memory of another library
@pytest.mark.parametrize("protocol", ("__cuda_array_interface__", "DLPack"))
def test_arrays_of_other_libraries(protocol):
    problem = make_problem(Case("gru", hidden=(33,)))
    layer = problem.layer("cuda")
    x, state = on_engine(layer.engine, [problem.x, problem.state])

    def wrap(array):
        return OnlyDLPack(array) if protocol == "DLPack" else only(array, "__cuda_array_interface__")

    expected = named_outputs(layer, *layer(x, state))
    assert_same_bits(named_outputs(layer, *layer(wrap(x), wrap(state))), expected)


def test_torch_tensors_in_and_out(cupy):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    problem = make_problem(Case("lstm", hidden=(33,)))
    layer = problem.layer("cuda")
    expected, _ = train(layer, problem)
    x, h, c, dy, dhy, dcy = (
        torch.tensor(array, device="cuda")
        for array in (problem.x, problem.h, problem.c, problem.dy, problem.dhy, problem.dcy)
    )
    torch.cuda.synchronize()
    y, state, tape = layer.forward(x, (h, c))
    values = named_outputs(layer, y, state)
    assert_same_bits(values | named_gradients(layer, layer.backward(tape, dy, (dhy, dcy))), expected)
    cupy.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(torch.from_dlpack(y).cpu().numpy(), expected["y"])


# -------------------------------------------------------------------------------------------------- streams and memory
def mapped(function, value):
    """A function of every array in nested tuples and lists."""
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, part) for part in value)
    return function(value)


def late(cupy, array):
    """A copy of the array that the current stream fills after some milliseconds of other work; NaN until then."""
    busy, out = cupy.ones((2048, 2048), "float32"), cupy.full_like(array, np.nan)
    for _ in range(20):
        busy = busy @ busy * np.float32(1e-4)
    out[...] = array
    return out


@pytest.mark.real_gpu  # the emulated one does everything at once
@by_cell
def test_everything_runs_on_the_current_stream(cupy, cell):
    """Inputs are ready late on a stream of their own: work on any other stream would read NaN."""
    problem = make_problem(Case(cell, hidden=(33, 5), directions=2, dropout=0.3))
    expected, _ = train(problem.layer("cuda"), problem)
    layer = problem.layer("cuda")
    given = on_engine(layer.engine, [problem.x, problem.state, problem.dy, problem.dstate])
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, state, dy, dstate = mapped(lambda array: late(cupy, array), given)
        y, new_state, tape = layer.forward(x, state)
        gradients = layer.backward(tape, dy, dstate)
        values = named_outputs(layer, y, new_state) | named_gradients(layer, gradients)
    stream.synchronize()
    assert_same_bits(values, expected)
