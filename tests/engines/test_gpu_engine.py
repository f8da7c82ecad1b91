"""The CUDA engine's own parts on a GPU: products, sums, dropout, copies; and its time loops in a CUDA graph."""

import numpy as np
import pytest

from cases import Case
from comparing import assert_close, assert_same_bits
from numbarnn import engines
from problems import make_problem
from running import on_engine, train

pytestmark = pytest.mark.gpu


@pytest.fixture
def engine():
    return engines.get("cuda")


# ------------------------------------------------------------------------------------------------------- time loops


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("dropout", (0.0, 0.4))
@pytest.mark.parametrize("cell", ("lstm", "gru", "rnn_tanh"))
def test_wavefront_gives_the_same_bits_on_streams_and_in_graphs(engine, cell, dropout, directions):
    """The first call runs on streams, the later ones are replays: the same bits for the same masks."""
    case = Case(cell, T=19, B=5, hidden=(33, 70, 20), directions=directions, dropout=dropout)
    problem = make_problem(case)
    step = train(problem.layer("cuda", schedule="stepwise", seed=3), problem)[0]
    layer = problem.layer("cuda", schedule="wavefront", seed=3)
    x, state, dy, dstate = on_engine(engine, [problem.x, problem.state, problem.dy, problem.dstate])
    dw, replays, runs = engine.zeros(layer.weights.shape, "float32"), engine.streams.replays, []
    for _ in range(6):
        layer.training_calls = 0  # the same dropout masks
        dw.fill(0)
        y, _, tape = layer.forward(x, state)
        gradients = layer.backward(tape, dy, dstate, dw=dw)
        runs.append({"y": engine.to_host(y), "dx": engine.to_host(gradients.x)})
        runs[-1] |= {f"d{name}": engine.to_host(view) for name, view in gradients.params.items()}
        del y, tape, gradients  # so that the next call gets the same memory
    assert_close(case, runs[0], {name: step[name] for name in runs[0]})
    for values in runs[1:]:
        assert_same_bits(values, runs[0])
    assert engine.streams.replays > replays


def test_arrays_may_be_written_over_after_each_call(cupy, engine):
    """Those that a call was given, while its tape and replays live on; other arrays each time, all results kept."""
    problem, found = make_problem(Case("lstm", T=16, B=4, hidden=(32, 32))), []
    layers = [problem.layer("cuda", schedule="stepwise") for _ in range(2)]
    for turn in range(7):
        for layer in layers:
            x, dy, state, dstate = on_engine(engine, [problem.x, problem.dy, problem.state, problem.dstate])
            x *= turn
            y, hy, tape = layer.forward(x, state)
            for array in (x, *state) if layer is layers[1] else ():
                array.fill(np.nan)
            gradients = layer.backward(tape, dy, dstate)
            for array in (dy, *dstate):
                array.fill(np.nan)
            found.append((y, *hy, gradients.x, *gradients.state, gradients.weights))
    found = [[engine.to_host(array) for array in arrays] for arrays in found]
    for expected, arrays in zip(found[::2], found[1::2], strict=True):
        for one, other in zip(expected, arrays, strict=True):
            np.testing.assert_array_equal(one, other)
        assert np.isfinite(expected[0]).all() and not np.array_equal(found[0][0], found[-1][0])


@pytest.mark.real_gpu  # the emulated one does everything at once
@pytest.mark.parametrize("own_stream", (False, True))
def test_wavefront_keeps_to_the_callers_stream(cupy, engine, own_stream):
    """Work that the caller gave its stream before comes first, what it gives afterwards comes last."""
    problem = make_problem(Case("gru", T=40, B=8, hidden=(128, 128, 128)))
    layer = problem.layer("cuda", schedule="wavefront")
    big, expected = cupy.ones((3000, 3000), "float32"), None
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) if own_stream else cupy.cuda.Stream.null:
        x = cupy.zeros(problem.x.shape, "float32")
        for turn in range(6):
            x.fill(0)
            for _ in range(20):
                big = big @ big / 3000  # keeps the stream busy
            x += engine.from_host(problem.x) * big[0, 0]
            y = layer(x)[0]
            total = y.copy()
            y.fill(np.nan)
            expected = engine.to_host(total) if expected is None else expected
            np.testing.assert_array_equal(engine.to_host(total), expected, err_msg=f"turn {turn}")
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0.1
