"""Files of layers of any cell: ONNX models with a `Scan`, run by onnxruntime, and safetensors; and back."""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from equations import BUILT_IN_TOO, LIBRARY
from general_cells import WRITTEN
from numbarnn import convert
from numbarnn.cells import library
from numbarnn.programs.states import state_arrays

needs_onnx = pytest.mark.usefixtures("onnx_is_there")


@pytest.fixture
def onnx_is_there():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")


def fed(layer, steps, batch, random):
    """Arguments of a call: x, lengths and positive states, of the layer; and by the names of the model's inputs."""
    x = random.standard_normal((steps, batch, layer.input_size)).astype(layer.dtype)
    lengths = random.integers(1, steps + 1, batch, dtype=np.int32)
    shapes = layer.stack.shapes_of_states(batch)
    draw = lambda shape: random.uniform(0.2, 1, shape).astype(layer.dtype)  # noqa: E731
    state = [list(map(draw, one)) if isinstance(one, list) else draw(one) for one in shapes]
    inputs = {"x": x, "lengths": lengths}
    for name, one in zip(layer.stack.cell.states, state, strict=True):
        parts = {f"{name}x_l{n}": part for n, part in enumerate(one)} if isinstance(one, list) else {f"{name}x": one}
        inputs |= parts
    return (x, tuple(state) if len(state) > 1 else state[0]), lengths, inputs


def run_by_onnxruntime(model, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {one.name: inputs[one.name] for one in session.get_inputs()})


def results(layer, x, state=None, lengths=None):
    y, state = layer(x, state, lengths=lengths)
    return [y, *(array for one in (state if isinstance(state, tuple) else (state,)) for array in state_arrays(one))]


def assert_near(found, ours, exact):
    """Within 1e-5 of the results in float64, or ten times our own error where rounding grows from step to step."""
    for one, own, truth in zip(found, ours, exact, strict=True):
        scale = max(1.0, float(np.abs(truth).max()))
        assert np.abs(one - truth).max() <= max(1e-5 * scale, 10 * np.abs(own - truth).max())


def in_double(value):
    if isinstance(value, (tuple, list)):
        return type(value)(map(in_double, value))
    return value.astype("float64")


@needs_onnx
@pytest.mark.parametrize("name", LIBRARY)
def test_onnxruntime_computes_every_cell_for_any_sizes(name):
    cell, random = Case(name).definition, np.random.default_rng(0)
    layers = {"num_layers": 2, "bidirectional": True} if not cell.parameters.equal else {}
    layer = nr.RNN(cell, 6, 6, **layers, device="cpu", seed=0)
    exact = nr.RNN(cell, 6, 6, **layers, device="cpu", dtype="float64")
    exact.load_state_dict(layer.state_dict())
    model, alone = convert.to_onnx(layer, state=True, lengths=True), convert.to_onnx(layer)
    for steps, batch in ((1, 1), (7, 3), (100, 2)):
        (x, state), lengths, inputs = fed(layer, steps, batch, random)
        ours = results(layer, x, state, lengths)
        truth = results(exact, in_double(x), in_double(state), lengths)
        assert_near(run_by_onnxruntime(model, inputs), ours, truth)
        assert_near(run_by_onnxruntime(alone, inputs), results(layer, x), results(exact, in_double(x)))
    back = convert.from_onnx(model, cell=cell, device="cpu")
    assert all(np.array_equal(one, other) for one, other in zip(results(back, x), results(layer, x), strict=True))


@nr.cell
def leaky(x, h, m, p, rate=0.5):
    """A custom cell with a constant, an expression of matrices and a state of another size."""
    m = nr.sized(m, 4)
    m_new = rate * m + p.B @ x
    return nr.tanh(p.W.h @ x + (p.R.h - p.R.h.T) @ h + p.P @ m + p.b.h), m_new


@nr.cell
def other(x, h, m, p):
    return nr.tanh(p.W.h @ x + p.R.h @ h + p.P @ m), m


@needs_onnx
@pytest.mark.parametrize(
    "make, options",
    [
        (nr.LSTM, dict(proj_size=4, num_layers=2, bidirectional=True)),
        (nr.LSTM, dict(cell_clip=0.05, batch_first=True)),
        (nr.LSTM, dict(proj_size=2, dtype="float64")),
        (nr.LSTM, dict(input_mode="skip", proj_size=3)),
        (nr.RNN, dict(cell=leaky)),
        (nr.RNN, dict(cell=nr.cell(library.lstm, drop_R=0.3), dropout=0.2, num_layers=2)),
        (nr.RNN, dict(cell=nr.cell(library.slstm, heads=2))),
        (nr.RNN, dict(cell=library.slstm, hidden_size=[6, 3], bidirectional=True)),
    ],
)
def test_options_in_onnx_and_back(make, options, tmp_path):
    sizes = {"input_size": 6, "hidden_size": 6} | options
    layer, random = make(**sizes, device="cpu", seed=0), np.random.default_rng(0)
    (x, state), lengths, inputs = fed(layer, 5, 3, random)
    if layer.batch_first:
        inputs["x"] = x = np.ascontiguousarray(x.swapaxes(0, 1))
    model = convert.to_onnx(layer, tmp_path / "model.onnx", state=True, lengths=True)
    for one, ours in zip(run_by_onnxruntime(model, inputs), results(layer, x, state, lengths), strict=True):
        np.testing.assert_allclose(one, ours, atol=1e-5)
    cell = options.get("cell") if options.get("cell") is not library.slstm else None
    back = convert.from_onnx(tmp_path / "model.onnx", cell=cell, device="cpu")
    assert repr(back) == repr(layer)
    assert all(map(np.array_equal, results(back, x, state, lengths), results(layer, x, state, lengths)))


@pytest.mark.parametrize("name", [*BUILT_IN_TOO, "lstm with given input", "leaky", "slstm"])
def test_safetensors_of_any_cell_and_back(name, tmp_path):
    pytest.importorskip("safetensors")
    own = {"leaky": leaky, "slstm": library.slstm}.get(name)
    make = nr.LSTM if name.startswith("lstm") else nr.RNN
    options = {"input_mode": "given"} if "given" in name else {"cell": own or getattr(library, name.split()[0])}
    layer = make(24, 6, **{} if make is nr.LSTM and "given" not in name else options, device="cpu", batch_first=True)
    convert.save_safetensors(layer, tmp_path / "layer.safetensors")
    back = convert.load_safetensors(tmp_path / "layer.safetensors", leaky if own is leaky else None, device="cpu")
    assert repr(back) == repr(layer) and all(map(np.array_equal, back.weights[None], layer.weights[None]))


def test_a_file_of_another_cell_is_refused(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "layer.safetensors"
    convert.save_safetensors(nr.RNN(leaky, 3, 4, device="cpu"), path)
    with pytest.raises(ValueError, match=r"layer of the cell 'leaky', .*\. Pass cell="):
        convert.load_safetensors(path)
    with pytest.raises(ValueError, match=r"'leaky', but cell= is 'other'"):
        convert.load_safetensors(path, other)
    with pytest.raises(ValueError, match="with other equations"):
        convert.load_safetensors(path, nr.cell(other, name="leaky"))
    with pytest.raises(TypeError, match="hidden_size must be left out"):
        convert.load_safetensors(path, leaky, hidden_size=5)


def test_what_onnx_cannot_hold_is_named():
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="float16, float32 or float64"):
        convert.to_onnx(nr.RNN(library.slstm, 3, 4, device="cpu", dtype="bfloat16"))
    with pytest.raises(ValueError, match=r"need a cell.s equations, but cell .* is written as functions"):
        convert.to_onnx(nr.RNN(next(iter(WRITTEN.values())), 3, 4, device="cpu"))
    with pytest.raises(TypeError, match="cell must be left out"):
        convert.from_onnx(convert.to_onnx(nr.LSTM(3, 4, device="cpu")), cell=library.slstm)


@needs_onnx
def test_functions_that_onnxruntime_lacks_in_float64():
    def bent(x, h, p):
        a = p.W @ x + p.R @ h
        return nr.elu(a, 0.7) * nr.leaky_relu(a, 0.2) + nr.selu(a)

    layer = nr.RNN(nr.cell(bent), 6, 6, device="cpu", dtype="float64", seed=0)
    x = np.random.default_rng(0).standard_normal((4, 3, 6))
    y = run_by_onnxruntime(convert.to_onnx(layer), {"x": x})[0]
    np.testing.assert_allclose(y.reshape(4, 3, 6), layer(x)[0], atol=1e-12)
