"""`record=`: values of the equations at each step, and the gradients of each step's states."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

T, B, I, H = 5, 3, 3, 4  # noqa: E741
X = np.random.default_rng(0).standard_normal((T, B, I))
DY = np.random.default_rng(1).standard_normal((T, B, H))


def make(cell=None, dtype="float64", **options):
    options = {"device": "cpu", "seed": 0, "dtype": dtype} | options
    return nr.LSTM(I, H, **options) if cell is None else nr.RNN(cell, I, H, **options)


def test_values_of_an_lstm_are_those_of_its_equations():
    layer = make()
    y, (_, c), values = layer(X, record=("i", "f", "g", "o", "c", "h"))
    assert list(values) == ["i", "f", "g", "o", "c", "h"] and all(len(one) == 1 for one in values.values())
    i, f, g, o, c_of_steps, h_of_steps = (one[0] for one in values.values())
    before = np.concatenate([np.zeros((1, B, H)), c_of_steps[:-1]])
    np.testing.assert_allclose(c_of_steps, f * before + i * g, atol=1e-15)
    np.testing.assert_allclose(h_of_steps, o * np.tanh(c_of_steps), atol=1e-15)
    np.testing.assert_allclose(h_of_steps, y, atol=1e-15)
    p = layer.named
    gate = X[0] @ p["W.i"].T + p["b_w.i"] + p["b_r.i"]
    np.testing.assert_allclose(i[0], 1 / (1 + np.exp(-gate)), atol=1e-15)
    np.testing.assert_allclose(c_of_steps[-1], c[0], atol=1e-15)


@pytest.mark.parametrize("name", library.__all__)
def test_states_of_every_cell_and_layer(name):
    """Of the last layer as `output_states` returns them, of each layer as its state at the end."""
    cell = getattr(library, name)
    cell = cell if isinstance(cell, nr.cells.Cell) else cell()
    square = bool(cell.parameters.equal)
    layer = nr.RNN(cell, 8, 8, None if square else 2, bidirectional=not square, device="cpu", seed=0, dtype="float64")
    x, ends = np.tile(X, 3)[..., :8], {"lengths": [5, 0, 3], "resets": np.arange(15).reshape(T, B) % 7 == 6}
    y, state, values = layer(x, record=cell.states, **ends)
    for number, sizes in enumerate(layer.stack.state_sizes):
        own, name = (state if isinstance(state, tuple) else (state,))[number], cell.states[number]
        for place, (value, size) in enumerate(zip(values[name], sizes, strict=True)):
            assert value.shape == (T, B, layer.stack.directions * size)
            final = own[place][0] if isinstance(own, list) else own[place * layer.stack.directions]
            np.testing.assert_allclose(value[-1, 0, :size], final[0], atol=1e-14)
            assert not value[3:, 2].any() and not value[:, 1].any()
    np.testing.assert_allclose(values[cell.states[0]][-1], y, atol=1e-14)


@pytest.mark.parametrize(
    "cell, options",
    [
        (None, dict(num_layers=2, dropout=0.4)),
        (nr.cell(library.lstm, zoneout_h=0.3, drop_R=0.3), dict(num_layers=2)),
        (None, dict(proj_size=2, bidirectional=True, batch_first=True)),
        (None, dict(cell_clip=0.1)),
        (nr.cell(library.slstm, heads=2), dict(dtype="float32")),
        (None, dict(dtype="bfloat16")),
    ],
)
def test_training_records_what_was_drawn_there(cell, options):
    layer = make(cell, **options)
    x = X.swapaxes(0, 1) if layer.batch_first else X
    x = x.astype(layer.weights.dtype)
    y, _, values, _ = layer.forward(x, record=("h", "o"))
    found = values["h"][-1]
    difference = np.abs(found.astype("float64") - y.astype("float64")).max()
    assert difference <= {"float64": 1e-14, "float32": 1e-6, "bfloat16": 1e-2}[layer.dtype]
    assert len(values["o"]) == layer.num_layers and values["o"][0].dtype == y.dtype


@pytest.mark.parametrize("cell", [None, library.slstm, library.peephole_lstm, nr.cell(library.gru)])
def test_gradients_of_states_are_those_of_the_rest_of_the_sequence(cell):
    layer = make(cell)
    tape = layer.forward(X, record=("h",))[-1]
    gradients = layer.backward(tape, DY, need=("x", "states"))
    for t in range(T):
        state = layer(X[: t + 1])[1]
        later = [np.zeros((1, B, H))] * len(layer.stack.cell.states)
        if t + 1 < T:
            _, _, rest = layer.forward(X[t + 1 :], state)
            later = layer.backward(rest, DY[t + 1 :]).state
            later = later if isinstance(later, tuple) else (later,)
        for name, one in zip(layer.stack.cell.states, later, strict=True):
            expected = one[0] + (DY[t] if name == "h" else 0)
            np.testing.assert_allclose(gradients.states[name][0][t], expected, atol=1e-14)
    assert gradients.weights is None
    nothing = layer.backward(layer.forward(X, record=("h",))[-1], need=("states",)).states
    assert not any(one[0].any() for one in nothing.values())


def test_gradients_of_states_of_packed_sequences_and_both_directions():
    layer, lengths = make(num_layers=2, bidirectional=True), [5, 2, 4]
    dy = np.random.default_rng(2).standard_normal((T, B, 2 * H))
    tape = layer.forward(X, lengths=lengths, record=("c",))[-1]
    plain = layer.backward(tape, dy, need=("states",)).states
    packed, d_packed = (nr.pack_padded_sequence(one, lengths, enforce_sorted=False) for one in (X, dy))
    *_, values, tape = layer.forward(packed, record=("c",))
    of_packed = layer.backward(tape, d_packed, need=("states",)).states
    assert [type(one) for one in values["c"]] == [nr.PackedSequence] * 2
    for name in ("h", "c"):
        for one, other in zip(of_packed[name], plain[name], strict=True):
            np.testing.assert_allclose(nr.pad_packed_sequence(one)[0], other, atol=1e-14)
    assert np.abs(plain["h"][1][:2, 1] - dy[:2, 1])[1, :H].max() == 0  # the last step of the forward direction


def test_what_cannot_be_recorded_is_named():
    layer = make()
    with pytest.raises(ValueError, match="record: cell lstm has no value 'q'; it has i, f, g, o, "):
        layer(X, record=("q",))
    with pytest.raises(TypeError, match="record must be a tuple of names"):
        layer.forward(X, record="h")
    with pytest.raises(ValueError, match=r"needs recorded values: call forward with record="):
        layer.backward(layer.forward(X)[-1], DY, need=("states",))
    projected = make(proj_size=2)
    with pytest.raises(ValueError, match="'states' in need cannot go with a projection"):
        projected.backward(projected.forward(X, record=("o",))[-1], DY[..., :2], need=("states",))
    assert layer.training_calls == 1  # a refused call draws nothing


def doubled(v):
    z = nr.sigmoid(v)
    return 2 * z


@nr.cell
def with_a_function(x, h, p):
    z = nr.tanh(p.W.a @ x)
    return z * doubled(p.R.b @ h) + z


def test_a_variable_of_the_equations_comes_before_one_of_a_function_that_they_call():
    layer = make(with_a_function)
    (z,) = layer(X, record=(name for name in ("z",)))[-1]["z"]
    np.testing.assert_allclose(z, np.tanh(X @ layer.named["W.a"].T), atol=1e-15)


def test_gradients_of_states_are_computed_once_and_then_take_no_memory():
    layer = make()
    y, _, _, tape = layer.forward(X, record=("h",))
    layer.backward(tape, y, need=("states",), retain=True)
    dw = np.zeros_like(layer.weights)
    with pytest.raises(ValueError, match="which a tape computes only once: call forward again"):
        layer.backward(tape, y, need=("weights", "states"), dw=dw)
    assert not dw.any()
    layer.backward(tape, y)
    assert tape.insides is None


@nr.cell
def with_noise(x, h, p):
    u = nr.uniform()
    center = p.W.a @ x
    return u * nr.tanh(nr.layer_norm(center + p.R.h @ h))


def test_products_with_x_and_random_numbers_are_recorded_by_their_own_names():
    layer = make(with_noise)
    *_, values, tape = layer.forward(X, record=("u", "center"))
    np.testing.assert_allclose(values["center"][0], X @ layer.named["W.a"].T, atol=1e-15)
    np.testing.assert_array_equal(values["u"][0], layer.noise(tape)[0][0][:, :, 0])
