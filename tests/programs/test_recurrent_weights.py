"""R of blocks on the diagonal, DropConnect, and projections of general cells, on the CPU: threads, masks, what
layers say of it. What they compute is in test_conformance.py."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from cases import Case
from comparing import assert_same_bits
from equations import weighted as make_cell
from numbarnn import engines
from numbarnn.cells import Cell, library
from numbarnn.cells.definition import Noise
from numbarnn.layers import Stack
from numbarnn.reference.philox import philox4x32
from problems import blocks, dense, make_problem
from running import train_and_draw


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("gates, heads, size, width", [(1, 1, 1, 1), (4, 2, 3, 3), (3, 5, 1, 2), (2, 3, 4, 1)])
def test_spread_blocks(gates, heads, size, width, dtype):
    x = np.random.default_rng(0).standard_normal((gates * heads * size, width)).astype(dtype)
    out = np.full((len(x), heads * width), np.nan, dtype)
    engines.get("cpu").spread_blocks(out, x, gates)
    np.testing.assert_array_equal(out, dense(x, gates, heads), strict=True)
    np.testing.assert_array_equal(blocks(out, gates, heads), x)


# ---------------------------------------------------------------------------------------------------------------- masks
def test_masks_have_the_rates_of_the_gates():
    """Within five standard deviations of the rate; what is kept makes up for what is not."""
    case = Case("lstm", T=1, hidden=(128, 128), directions=2, heads=2, drop=0.6)
    layer = case.layer()
    masks = layer.drop_connect_masks(layer.forward(np.zeros((1, 1, 4), np.float32))[2])
    assert list(masks) == [name for name in layer.parameters if name.startswith("weight_hh")]
    parts = [part for mask in masks.values() for part in np.split(mask, 4)]
    for part, rate in zip(parts, case.rates * 4, strict=True):
        assert part.shape == (128, 64) and set(np.unique(part)) <= {0, np.float32(1 / (1 - rate))}
        assert abs((part == 0).mean() - rate) < 5 * (rate * (1 - rate) / part.size) ** 0.5
    kept = [part > 0 for part in parts]
    for number, one in enumerate(kept):  # and none is another's: as alike as chance has it
        for other, rate in zip(kept[:number], case.rates * 4, strict=False):
            chance = case.rates[number % 4] * rate + (1 - case.rates[number % 4]) * (1 - rate)
            assert abs((one == other).mean() - chance) < 6 * (0.25 / one.size) ** 0.5


def test_training_resumes_with_the_same_masks():
    case = Case("rnn_tanh", hidden=(6,), heads=2, drop=0.5)
    problem = make_problem(case)
    layer = problem.layer()
    runs = [train_and_draw(layer, problem) for _ in range(3)]
    masks = [drawn.drops["weight_hh_l0"] for _, drawn in runs]
    assert not np.array_equal(masks[0], masks[1]) and not np.array_equal(masks[1], masks[2])
    resumed = problem.layer()
    resumed.training_calls = 2
    values, drawn = train_and_draw(resumed, problem)
    np.testing.assert_array_equal(drawn.drops["weight_hh_l0"], masks[2])
    assert_same_bits(values, runs[2][0])
    other = case.layer(seed=2)
    other.training_calls = 2
    found = other.drop_connect_masks(other.forward(problem.x)[2])["weight_hh_l0"]
    assert not np.array_equal(found, masks[2])


def test_everything_may_be_dropped():
    """Then steps do not see each other, and R has no gradient."""
    cell = make_cell("rnn_tanh", 1, (1.0,), False)
    layer = numbarnn.RNN(cell, 4, 5, device="cpu", seed=0)
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    y, _, tape = layer.forward(x)
    for t in range(3):
        np.testing.assert_allclose(y[t], layer(x[t : t + 1])[0][0], rtol=1e-6)
    assert not layer.backward(tape, np.ones_like(y)).params["weight_hh_l0"].any()


def test_plain_cells_have_no_r_of_their_own():
    """No arrays, no calls; inference has none where weights are only dropped."""
    x = np.zeros((2, 1, 4), np.float32)
    for cell, drops in ((library.lstm, False), (make_cell("lstm", 1, (0.0,) * 4, False), False),
                        (make_cell("lstm", 1, (0.3,) * 4, False), True)):  # fmt: skip
        layer = numbarnn.RNN(cell, 4, 6, device="cpu")
        tape = layer.forward(x)[2]
        assert (tape.forward.program.recurrent is not None) == drops and bool(layer.drop_connect_masks(tape)) == drops
        assert layer.noise(tape) == []


# ----------------------------------------------------------------------------------------------------------- parameters
def test_parameters():
    layer = numbarnn.RNN(make_cell("gru_reset_before", 2, (), False), 3, 6, 2, device="cpu", bidirectional=True)
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    assert shapes["weight_hh_l0"] == shapes["weight_hh_l1_reverse"] == (18, 3)
    assert shapes["weight_ih_l0"] == (18, 3) and shapes["weight_ih_l1"] == (18, 12) and shapes["bias_ih_l0"] == (18,)
    assert layer.weights.size == sum(np.prod(shape) for shape in shapes.values())
    bound = 1 / 6**0.5
    assert 0.9 * bound < np.abs(layer.parameters["weight_hh_l0"]).max() <= bound
    for write in (numbarnn.convert.to_torch, numbarnn.convert.to_onnx, numbarnn.convert.to_keras):
        with pytest.raises(ValueError, match="which no other format knows"):
            write(layer)


@pytest.mark.parametrize("cell, sizes, options, message", [
    (make_cell("lstm", 4, (), False), 6, {}, "hidden_size must be a multiple of the 4 heads of cell own_lstm, but"),
    (make_cell("lstm", 2, (), False), [4, 3], {}, "hidden_size must be a multiple of the 2 heads .* but is 3"),
    (make_cell("lstm", 2, (), True), 4, {"proj_size": 3}, "proj_size must be a multiple of the 2 heads .* but is 3"),
    (replace(library.lstm, heads=0), 4, {}, "heads of cell lstm must be at least 1, not 0"),
    (replace(library.lstm, drop_connect=(0.5,)), 4, {}, "drop_connect of cell lstm must have one probability for each "
     "of the 4 gates of R, but has 1"),
    (replace(library.rnn_tanh, drop_connect=(1.5,)), 4, {}, r"drop_connect of cell rnn_tanh must be in \[0, 1\]"),
    (make_cell("lstm", 1, (), True), [4, 3], {}, "proj_size must be given: own_lstm projects its output, and the lay"),
    (replace(library.gru_reset_before, projected=True), 4, {"proj_size": 2}, "has further products, of H numbers, and"),
    (library.lstm, 4, {"proj_size": 2}, "proj_size must be left out: the equations of lstm have no projection; to "
     "have one, write `return p.P.h @ ..., ...`"),
    ("lstm", 4, {"proj_size": 4}, "proj_size must be smaller than every hidden size"),
    ("gru", 4, {"proj_size": 2}, "proj_size is for the LSTM, a gru has no projection"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(cell, sizes, options, message):
    with pytest.raises(ValueError, match=message):
        Stack(cell, 3, sizes, device="cpu", **options)


def test_a_tape_of_another_layer_has_no_masks_here():
    layers = [numbarnn.RNN(make_cell("rnn_tanh", 1, (0.5,), False), 3, 4, device="cpu") for _ in range(2)]
    tape = layers[0].forward(np.zeros((2, 1, 3), np.float32))[2]
    for call in (layers[1].drop_connect_masks, layers[1].noise):
        with pytest.raises(ValueError, match="tape was made by another layer"):
            call(tape)


# ---------------------------------------------------------------------------------------------------------- parameters
@pytest.mark.parametrize("cell, hidden, names", [
    ("blend", 5, {
        "weight_ih_l0": (15, 4), "weight_hh_l0": (20, 5), "bias_ih_l0": (15,), "bias_hh_l0": (20,), "peep_l0": (5,),
        "scale_l0": (5,),
    }),
    ("light", 3, {"weight_ih_l0": (6, 4), "bias_ih_l0": (6,), "peep_l0": (3,)}),
])  # fmt: skip
def test_parameters_of_cells_written_by_hand(cell, hidden, names):
    layer = Case(cell, hidden=(hidden,)).layer()
    assert {name: value.shape for name, value in layer.state_dict().items()} == names


def test_states_come_one_by_one():
    problem = make_problem(Case("light", hidden=(5, 5), directions=2))
    layer = problem.layer()
    y, states = layer(problem.x, problem.state)
    assert y.shape == (7, 3, 10) and [state.shape for state in states] == [(4, 3, 5)] * 3
    with pytest.raises(TypeError, match=r"state must be a tuple \(h, c, n\), not 2 items"):
        layer(problem.x, states[:2])


# ---------------------------------------------------------------------------------------------------------- projections
@pytest.mark.parametrize("options", (dict(), dict(bidirectional=True, num_layers=2, lengths=(4, 0, 7)),
                                     dict(batch_first=True, dtype="float64", num_layers=2)), ids=str)  # fmt: skip
def test_a_projected_cell_is_the_lstm_with_projection(options):
    options = {"dtype": "float32", "device": "cpu", "seed": 3, "proj_size": 2} | options
    lengths = options.pop("lengths", None)
    ours = numbarnn.RNN(make_cell("lstm", 1, (), True), 3, 5, **options)
    theirs = numbarnn.LSTM(3, 5, bias="input", **options)
    assert repr(ours).startswith("RNN(own_lstm, 3, 5, ") and "proj_size=2" in repr(ours)
    assert {name: view.shape for name, view in ours.parameters.items()} == {
        name: view.shape for name, view in theirs.parameters.items()
    }
    np.testing.assert_array_equal(ours.weights, theirs.weights)
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal((3, 7, n) if ours.batch_first else (7, 3, n)).astype(ours.dtype)
             for n in (3, 2 * (1 + ours.bidirectional)))  # fmt: skip
    found = []
    for layer in (ours, theirs):
        y, state = layer(x, lengths=lengths)
        trained_y, trained_state, tape = layer.forward(x, lengths=lengths)
        gradients = layer.backward(tape, dy, trained_state)
        found.append([y, *state, trained_y, *trained_state, gradients.x, *gradients.state, gradients.weights])
    tolerance = 100 * np.finfo(ours.dtype).eps  # the same equations, in another order
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_gradcheck_of_projections_and_of_what_is_drawn():
    """Differences of one and the same training call; with others, the masks' jumps would be taken for gradients."""
    projected = numbarnn.cells.library.projected_lstm
    check = numbarnn.gradcheck(projected, 2, 3, 2, steps=2, proj_size=4, bidirectional=True, dropout=0.4)
    assert {"h", "c"} <= check.errors.keys()
    numbarnn.gradcheck(NOISY, 3, 4, 2, steps=3)


# ---------------------------------------------------------------------------------------------------------------- noise
KINDS = (Noise(0.5), Noise(0.3, 2.0, 1.0, False), *[Noise(0.1 * n, 1.5) for n in range(2, 6)])


def noisy_forward(ax, ah, state, given):
    return (given.noise[0] * ax[0] + given.noise[1] * ah[0] + given.noise[5], given.noise[1], given.noise[4]), ()


def noisy_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    nothing = state[0] - state[0]
    return (given.noise[0] * d_state[0],), (given.noise[1] * d_state[0],), (nothing, nothing, nothing), ()


# A cell whose states show some of its random numbers.
NOISY = Cell(
    "noisy", ("a",), ("h", "n", "m"), (), noisy_forward, noisy_backward, same_gradient=False, recurrent=("a",),
    noise=KINDS, general=True,
)  # fmt: skip


def drawn(kind, number, seed, place, call, T, B, H):
    """(T, B, H) by NumPy's own Philox: number `number` of its kind."""
    t, position = np.meshgrid(np.arange(T), np.arange(B * H), indexing="ij")
    counter = np.empty((T, B * H, 4), np.uint32)
    counter[..., 0], counter[..., 1] = position, t if kind.each_step else 2**32 - 1
    counter[..., 2], counter[..., 3] = 2**31 + 256 * place + number // 4, call
    words = philox4x32(counter, (seed % 2**32, seed >> 32))[..., number % 4]
    return np.where(words >= round(kind.rate * 2**32), kind.kept, 0.0).reshape(T, B, H)


def test_noise_is_what_the_cell_drew():
    T, B, H, seed = 4, 3, 5, (7 << 32) + 5
    layer = numbarnn.RNN(NOISY, 2, H, 2, device="cpu", seed=seed, bidirectional=True, bias=False, dtype="float64")
    layer.forward(np.zeros((T, B, 2)))
    _, states, tape = layer.forward(np.zeros((T, B, 2)))
    found = layer.noise(tape)
    assert [(one.shape, one.dtype.name) for one in found] == [((2, T, B, 6, H), "float64")] * 2
    numbers = (0, 0, 1, 2, 3, 4)  # among those of their kind
    for place in range(4):
        own = found[place // 2][place % 2]
        for n, (kind, number) in enumerate(zip(KINDS, numbers, strict=True)):
            np.testing.assert_array_equal(own[:, :, n], drawn(kind, number, seed, place, 1, T, B, H))
        last = T - 1 if place % 2 == 0 else 0  # the step whose states are final
        np.testing.assert_array_equal(states[1][place], own[last, :, 1])
        np.testing.assert_array_equal(states[2][place], own[last, :, 4])
