"""jvp and hvp with every option of a layer, every dtype and schedule; identities; gradients per sequence."""

from functools import partial

import numpy as np
import pytest

import numbarnn as nr
from directions import Line, by_autograd, error, flat, mapped, positive
from numbarnn.cells import library
from numbarnn.engines.base import Engine
from numbarnn.engines.cpu.engine import CpuEngine

RNG = np.random.default_rng(5)
SIMPLE = {"dtype": "float64", "device": "cpu", "seed": 1}
RESETS = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]], bool)


@nr.cell
def divided(x, h, p):
    return nr.tanh(p.W.a @ x + p.R.a @ (h / nr.exp(p.W.d @ x)) - nr.mean(h))


at_random = nr.cell(library.lstm, zoneout_h=0.3, zoneout_c=0.2, dropout_g=0.2, drop_R=0.3)
ENDS = {"lengths": [4, 0, 2], "resets": RESETS}

OPTIONS = {  # name -> class, options of the layer, of the calls
    "lstm": (nr.LSTM, {"bidirectional": True}, ENDS),
    "one step of one sequence": (nr.LSTM, {}, {"steps": 1, "batch": 1}),
    "batch first": (nr.LSTM, {"bidirectional": True, "batch_first": True}, {"lengths": [4, 0, 2], "resets": RESETS.T}),
    "relu": (lambda *args, **options: nr.RNN(*args, nonlinearity="relu", **options), {}, {}),
    "projection": (nr.LSTM, {"proj_size": 2, "bidirectional": True}, {}),
    "projection, ends": (nr.LSTM, {"proj_size": 2, "bidirectional": True}, ENDS),
    "clip": (nr.LSTM, {"cell_clip": (-0.3, 0.2)}, ENDS),
    "clip without NaN": (nr.LSTM, {"cell_clip": 0.2, "clip_propagate_nan": False, "proj_size": 2}, {}),
    "dropout": (nr.GRU, {"bidirectional": True, "dropout": 0.5}, {"training": True, **ENDS}),
    "zoneout, drop_connect": (
        lambda *args, **options: nr.RNN(at_random, *args, **options), {"bidirectional": True, "dropout": 0.3},
        {"training": True, **ENDS},
    ),
    "skip": (nr.GRU, {"inputs": 5, "input_mode": "skip", "bidirectional": True}, {}),
    "skip, projection": (nr.LSTM, {"inputs": 5, "input_mode": "skip", "proj_size": 2}, ENDS),
    "given input": (nr.GRU, {"inputs": 30, "input_mode": "given", "bidirectional": True}, {}),
    "given input, reset before": (nr.GRU, {"inputs": 15, "input_mode": "given", "reset_after": False}, {}),
    "unequal sizes": (nr.LSTM, {"hidden": [5, 4], "bidirectional": True}, ENDS),
    "unequal sizes, projection": (nr.LSTM, {"hidden": [5, 4], "proj_size": 2}, {}),
    "heads": (
        lambda *args, **options: nr.RNN(nr.cell(library.slstm, heads=2), *args, **options), {"hidden": [6, 4]},
        {"adjust": positive},
    ),
    "checkpoints": (nr.LSTM, {"checkpoint_every": 2, "dropout": 0.3}, {"training": True, **ENDS}),
    **{f"bias {mode}": (nr.GRU, {"bias": mode}, {}) for mode in ("none", "input", "recurrent")},
    **{f"reset before, bias {mode}": (nr.GRU, {"bias": mode, "reset_after": False}, {})
       for mode in ("double", "none", "recurrent")},
    "projected, input bias": (nr.LSTM, {"bias": "input", "proj_size": 3}, {}),
    "sums over units, division": (lambda *args, **options: nr.RNN(divided, *args, **options), {}, ENDS),
    "narrow state, unequal sizes": (
        lambda *args, **options: nr.RNN(library.structurally_constrained, *args, **options), {"hidden": [6, 5]}, ENDS,
    ),
}  # fmt: skip


def made(kind, inputs=3, hidden=(5, 5), **options):
    return kind(inputs, list(hidden), **SIMPLE | options)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name):
    kind, options, calls = OPTIONS[name]
    line = Line(made(kind, **options), **{"batch": 3, **calls})
    errors = line.errors()
    assert np.max(errors[::2]) < 1e-14 and np.max(errors) < 1e-8, errors


def test_inference_has_the_means_of_what_is_drawn():
    line = Line(nr.RNN(at_random, 3, 4, 2, dropout=0.5, **SIMPLE), **ENDS, batch=3)
    results, tangents, _ = line.jvp()
    assert error(results, line.results()) < 1e-14
    assert error(tangents, (flat(line.results(1e-6)) - flat(line.results(-1e-6))) / 2e-6) < 1e-8


def test_masks_are_those_of_the_training_call_in_its_place():
    layers = [nr.LSTM(3, 5, 3, dropout=0.5, **SIMPLE) for _ in range(2)]
    x = RNG.standard_normal((4, 2, 3))
    for call in range(2):
        expected = layers[0].forward(x)[0]
        assert error(layers[1].jvp(x, x, training=True)[0], expected) < 1e-14
        assert layers[1].training_calls == call + 1


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_nothing_is_read_beyond_a_sequence(packed):
    torch = pytest.importorskip("torch") if packed else None
    layer, lengths = nr.LSTM(3, 5, 2, bidirectional=True, proj_size=2, **SIMPLE), [4, 1, 2]
    x, dx = RNG.standard_normal((2, 4, 3, 3))
    dy, ddy = RNG.standard_normal((2, 4, 3, 4))

    def both(change, **options):
        y, ty, h, th, tape = layer.jvp(change(x), change(dx), weights=layer.weights, tape=True, **options)
        found = layer.hvp(tape, change(dy), ddy=change(ddy))
        return (y, ty, h, th, *((one.x, one.state, one.weights) for one in found))

    def spoiled(array):
        array = array.copy()
        for b, length in enumerate(lengths):
            array[length:, b] = np.nan
        return array

    expected = both(lambda array: array, lengths=lengths)
    if not packed:
        np.testing.assert_array_equal(flat(both(spoiled, lengths=lengths)), flat(expected))
        return

    def pack(array):
        found = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(array), lengths, enforce_sorted=False)
        return nr.PackedSequence(
            found.data.numpy(), found.batch_sizes.numpy(), found.sorted_indices.numpy(), found.unsorted_indices.numpy()
        )

    y, ty, h, th, (gx, *g), (hx, *h_rest) = both(pack)
    y_, ty_, h_, th_, (gx_, *g_), (hx_, *h_rest_) = expected
    for found, wanted in ((y, y_), (ty, ty_), (gx, gx_), (hx, hx_)):
        np.testing.assert_array_equal(found.data, pack(wanted).data)
    np.testing.assert_array_equal(flat([h, th, g, h_rest]), flat([h_, th_, g_, h_rest_]))


# ----------------------------------------------------------------------------------------------------------- precision
@pytest.mark.parametrize("kind", [nr.LSTM, nr.GRU, nr.RNN])
def test_float32_errs_at_most_twice_as_much_as_an_unfused_loop(kind):
    """The loop is PyTorch's, of small operations; float64 is the truth. Which errs less by few roundings is luck."""
    torch = pytest.importorskip("torch")
    module = getattr(torch.nn, kind.__name__)(12, 16).requires_grad_(False)
    layer, wide = (kind(12, 16, **SIMPLE | {"dtype": dtype}) for dtype in ("float32", "float64"))
    wide.weights[...] = layer.weights
    line = Line(layer, 20, 4)

    def loop(x, state, parameters):
        state = state if len(state) > 1 else state[0]
        with torch.backends.mkldnn.flags(enabled=False):  # whose LSTM is one operation
            results = torch.func.functional_call(module, parameters, (x, state))
        return tuple(torch.utils._pytree.tree_leaves(results))

    exact = line.astype("float64", wide).everything()
    for ours, theirs, truth in zip(line.everything(), by_autograd(line, loop, layer.parameters), exact, strict=True):
        errors = error(ours, truth), error(theirs, truth)
        assert errors[0] < max(2 * errors[1], 4 * np.finfo("float32").eps), errors


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded_once(dtype):
    pytest.importorskip("ml_dtypes")
    dropping = nr.cell(library.lstm, drop_R=0.3, name="lstm_dropping")
    layer, wide = (nr.RNN(dropping, 3, 4, 2, dropout=0.5, **SIMPLE | {"dtype": one}) for one in (dtype, "float32"))
    wide.weights[...] = layer.weights.astype("float32")
    line = Line(layer, training=True)
    expected = line.astype("float32", wide).everything()
    rounded = mapped(lambda one: one.astype(layer.weights.dtype), expected)
    np.testing.assert_array_equal(flat(line.everything()), flat(rounded))


# ---------------------------------------------------------------------------------------------------- other schedules
@pytest.mark.parametrize("schedule", ["stepwise", "wavefront", "persistent"])
@pytest.mark.parametrize("kind, options", [(nr.LSTM, {"num_layers": 2}), (nr.GRU, {"bidirectional": True})])
def test_the_simulator_by_every_schedule(kind, options, schedule):
    """As the CPU, in float32; the persistent schedule runs the tangents."""
    on_cpu, layer = (
        kind(3, 4, dtype="float32", seed=1, **options, **where)
        for where in ({"device": "cpu"}, {"device": "sim", "schedule": schedule})
    )
    lines = [Line(one, 2, 2, **({} if schedule == "persistent" else {"lengths": [2, 1]})) for one in (on_cpu, layer)]
    assert error(lines[1].everything(), lines[0].everything()) < 1e-5


# ---------------------------------------------------------------------------------------------------------- identities
def two_lines(name):
    """Two lines of one layer through one point, with the same gradients of y and of the final state."""
    kind, options, calls = OPTIONS[name]
    lines = [Line(made(kind, **options), **{"batch": 3, "seed": seed, **calls}) for seed in (0, 9)]
    for same in ("x", "state", "weights", "dy", "of_state", "training_calls"):
        if hasattr(lines[0], same):
            setattr(lines[1], same, getattr(lines[0], same))
    for line in lines:
        line.ddy, line.dd_state = (mapped(np.zeros_like, one) for one in (line.ddy, line.dd_state))
    return lines


@pytest.mark.parametrize("name", ["lstm", "projection, ends", "zoneout, drop_connect", "heads", "checkpoints"])
def test_hessians_are_symmetric(name):
    """<u, H v> = <v, H u>, of a loss that is linear in y."""
    u, v = two_lines(name)
    directions = [flat((one.dx, one.dstate, one.dweights)) for one in (u, v)]
    products = [flat(one.hvp(one.jvp()[2])[1]) for one in (u, v)]
    np.testing.assert_allclose(directions[0] @ products[1], directions[1] @ products[0], rtol=1e-10)


@pytest.mark.parametrize("name", ["lstm", "projection, ends", "dropout", "unequal sizes"])
def test_forward_and_backward_are_each_others_transpose(name):
    """<dy, J v> = <J^T dy, v>."""
    line = two_lines(name)[0]
    _, tangents, tape = line.jvp()
    gradients, _ = line.hvp(tape)
    along = flat((line.dx, line.dstate, line.dweights))
    np.testing.assert_allclose(flat((line.dy, line.of_state)) @ flat(tangents), flat(gradients) @ along, rtol=1e-10)


def test_a_gauss_newton_product_both_ways():
    """J^T J v by jvp and backward, and from the Jacobian, a column for each unit vector."""
    layer = nr.GRU(2, 3, **SIMPLE)
    x, v = RNG.standard_normal((3, 2, 2)), RNG.standard_normal(layer.weights.shape)
    product = layer.backward(layer.forward(x)[-1], layer.jvp(x, weights=v)[1]).weights
    jacobian = np.stack([layer.jvp(x, weights=unit)[1].ravel() for unit in np.eye(v.size)], axis=1)
    np.testing.assert_allclose(product, jacobian.T @ jacobian @ v, rtol=1e-10, atol=1e-13)


# ---------------------------------------------------------------------------------------------- gradients per sequence
@pytest.mark.parametrize("name", [*OPTIONS, "library"])
def test_gradients_of_each_sequence_are_those_of_its_own_dy(name):
    if name == "library":
        layer, calls = nr.RNN(library.layer_norm_lstm, 3, 5, 2, **SIMPLE), {}
    else:
        kind, options, calls = OPTIONS[name]
        if "checkpoint_every" in options:
            return
        layer = made(kind, **options)
    line = Line(layer, **{"batch": 3, **calls})
    batch_axis = 0 if layer.batch_first else 1

    def gradients(weight, **options):
        layer.training_calls = line.calls
        tape = layer.forward(*line.moved(0.0), **line.about)[-1]
        shape = [1] * 3
        shape[batch_axis] = -1
        of_state = mapped(lambda one: one * weight.reshape(1, -1, 1), line.of_state)
        return layer.backward(tape, line.dy * weight.reshape(shape), of_state, **options)

    batch = line.x.shape[batch_axis]
    found = gradients(np.ones(batch), per_sequence=True)
    for b, one in enumerate(np.eye(batch)):
        np.testing.assert_allclose(found.weights[b], gradients(one).weights, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found.x, gradients(np.ones(batch)).x, rtol=1e-12, atol=1e-14)
    for views, plain in ((found.params, layer.parameters), (found.named, layer.named)):
        assert {key: one.shape for key, one in views.items()} == {k: (batch, *v.shape) for k, v in plain.items()}


@pytest.mark.parametrize("name", ["LSTM", "GRU", "library"])
def test_gradients_of_each_sequence_have_the_bits_of_one_product_after_another(name, monkeypatch):
    cell = getattr(nr, name, None) or partial(nr.RNN, library.peephole_lstm)
    layer, found = cell(32, 64, 2, device="cpu", seed=1), []
    x, dy = RNG.standard_normal((2, 40, 5, 64)).astype("float32")
    tape, threads = layer.forward(x[:, :, :32])[-1], nr.get_num_threads()
    try:
        for count in (1, 2, 3):
            nr.set_num_threads(count)
            found.append(layer.backward(tape, dy, retain=True, per_sequence=True).weights)
        monkeypatch.setattr(CpuEngine, "each", Engine.each)
        found.append(layer.backward(tape, dy, per_sequence=True).weights)
    finally:
        nr.set_num_threads(threads)
    for one in found[:-1]:
        np.testing.assert_array_equal(one, found[-1])


def test_gradients_of_each_sequence_are_refused_where_they_cannot_be():
    x, dy = np.zeros((4, 2, 3)), np.zeros((4, 2, 5))
    layer, checkpointed = nr.GRU(3, 5, **SIMPLE), nr.GRU(3, 5, checkpoint_every=2, **SIMPLE)
    with pytest.raises(ValueError, match="per_sequence cannot go with dw: pass dw=None"):
        layer.backward(layer.forward(x)[-1], dy, dw=np.zeros_like(layer.weights), per_sequence=True)
    with pytest.raises(ValueError, match="per_sequence cannot go with checkpoint_every"):
        checkpointed.backward(checkpointed.forward(x)[-1], dy, per_sequence=True)
