"""States of other sizes than h, smaller and larger, from call to call, step by step, in stacks and beside options."""

import copy
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import numbarnn as nr
import numbarnn.torch as nrt
from comparing import all_arrays
from formed_cells import CELLS
from formed_loops import INPUTS, H, layer_of, problem
from numbarnn import functional
from numbarnn.cells import library

SMALL, LARGE = ("small_context", "tgru"), ("large_memory", "tgru_of_wide_x", "projected_beside_memory")
COMPILED = "projected_beside_memory"  # by PyTorch, as it has most


def test_sizes_of_states():
    cell = CELLS["small_context"][0]
    own = cell.parameters
    assert own.states == (2, "H") and own.own["P"] == ("H", 2) and own.own["B"] == (2, "I") and own.own["C"] == (2, 2)
    assert own.own["b.s"] == own.own["alpha"] == (2,) and own.rows == {"W": ("A",), "R": ("R",), "b_w": ("b.h",)}
    assert "P (H, 2)" in nr.show(cell) and "states h s (2) c" in nr.show(cell)
    layer = nr.RNN(cell, 3, 5, 2, bidirectional=True, device="cpu")
    h, s, c = layer(np.zeros((4, 2, 3), "float32"))[1]
    assert (h.shape, s.shape, c.shape) == ((4, 2, 5), (4, 2, 2), (4, 2, 5))
    with pytest.raises(ValueError, match=r"state\[1\] \(s\) must have shape \(4, 2, 2\)"):
        layer(np.zeros((4, 2, 3), "float32"), (h, c, c))


@pytest.mark.parametrize("name", SMALL + LARGE)
def test_states_from_call_to_call(name):
    """In pieces, a step at a time, and of every step; with lengths and resets."""
    layer = layer_of(name, num_layers=2)
    random = np.random.default_rng(0)
    x = random.standard_normal((6, 3, layer.input_size))
    y, finals, every = layer(x, output_states=True)
    first, state = layer(x[:2])
    rest, state = layer(x[2:], state)
    np.testing.assert_allclose(np.concatenate([first, rest]), y, atol=1e-14)
    step = layer.stepper(3)
    for x_t, y_t in zip(x, y, strict=True):
        np.testing.assert_allclose(step(x_t), y_t, atol=1e-14)
    for one, other, own in zip(all_arrays(state), all_arrays(finals), all_arrays(step.state), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)
        np.testing.assert_allclose(own, other, atol=1e-14)
    for of_all, final in zip(every, finals[1:], strict=True):
        np.testing.assert_array_equal(of_all[-1], final[-1][0] if isinstance(final, list) else final[-1])
    lengths, resets = np.array([6, 4, 1]), np.zeros((6, 3), bool)
    resets[3, 0] = True
    y, finals = layer(x, lengths=lengths, resets=resets)
    np.testing.assert_allclose(y[3:, :1], layer(x[3:, :1])[0], atol=1e-14)
    for one, other in zip(all_arrays(finals), all_arrays(layer(x[:4, 1:2])[1]), strict=True):
        np.testing.assert_allclose(one[..., 1:2, :], other, atol=1e-14)


@pytest.mark.parametrize("name, size", (("small_context", 2), ("large_memory", 15)))
def test_gradients_of_states_of_every_step(name, size):
    layer = layer_of(name)
    random = np.random.default_rng(0)
    x, states = random.standard_normal((3, 2, INPUTS)), [random.standard_normal((1, 2, n)) for n in (H, size, H)]
    weights = [random.standard_normal((3, 2, n)) for n in (size, H)]

    def loss(s):
        every = layer.forward(x, (states[0], s, states[2]), output_states=True)[2]
        return sum((one * weight).sum() for one, weight in zip(every, weights, strict=True))

    tape = layer.forward(x, tuple(states), output_states=True)[-1]
    found = layer.backward(tape, dstates=tuple(weights)).state[1]
    for where in np.ndindex(found.shape):
        moved = np.zeros_like(found)
        moved[where] = 1e-6
        assert abs((loss(states[1] + moved) - loss(states[1] - moved)) / 2e-6 - found[where]) < 1e-7


@pytest.mark.parametrize("name", LARGE)
def test_gradients_of_sequences_of_different_lengths(name):
    """Those of all together are those of each alone, with the batch first and in both directions too."""
    layer = layer_of(name, bidirectional=True, num_layers=2, batch_first=True)
    x, state, _, d_state = problem(name, layer, batch=3, steps=6)
    x = x.transpose(1, 0, 2)
    dy = np.random.default_rng(2).standard_normal((3, 6, 2 * layer.stack.output_sizes[-1]))
    lengths, apart = np.array([6, 2, 4]), np.zeros_like(layer.weights)
    _, _, tape = layer.forward(x, tuple(state), lengths=lengths)
    together = layer.backward(tape, dy, tuple(d_state))
    for n, length in enumerate(lengths):
        of_one = [[part[:, n : n + 1] for part in one] if isinstance(one, list) else one[:, n : n + 1] for one in state]
        d_one = [
            [part[:, n : n + 1] for part in one] if isinstance(one, list) else one[:, n : n + 1] for one in d_state
        ]
        _, _, tape = layer.forward(x[n : n + 1, :length], tuple(of_one))
        grads = layer.backward(tape, dy[n : n + 1, :length], tuple(d_one), dw=apart)
        np.testing.assert_allclose(together.x[n, :length], grads.x[0], atol=1e-12)
        for one, other in zip(all_arrays(together.state), all_arrays(grads.state), strict=True):
            np.testing.assert_allclose(one[:, n], other[:, 0], atol=1e-12)
    np.testing.assert_allclose(together.weights, apart, atol=1e-12)


# ------------------------------------------------------------------------------------ states of more units than h has
def test_sizes_of_large_states():
    """Callers see the sizes of the equations; kernels have those of the largest state, and say so."""
    layer = nr.RNN(library.tgru, 40, [5, 60, 8], bidirectional=True, device="cpu")
    y, (h, before), tape = layer.forward(np.zeros((4, 2, 40), "float32"))
    assert y.shape == (4, 2, 16) and [one.shape for one in h] == [(2, 2, 5), (2, 2, 60), (2, 2, 8)]
    assert [one.shape for one in before] == [(2, 2, 40), (2, 2, 10), (2, 2, 120)]
    assert layer.hidden_size == (5, 60, 8) and layer.stack.widths == (40, 60, 120)
    assert layer.parameters["weight_ih_l2"].shape == (24, 120) and layer.named["l1.V.z"].shape == (60, 10)
    grads = layer.backward(tape, np.ones_like(y))
    assert grads.x.shape == (4, 2, 40) and [one.shape for one in grads.state[0]] == [one.shape for one in h]
    text = layer.explain((4, 2, 40))
    assert "layer 0: kernels have 40 units, as many as its largest state; h has 5" in text and "layer 1: k" not in text
    with pytest.raises(ValueError, match=r"state\[0\] \(h\)\[0\] must have shape \(2, 2, 5\)"):
        layer(np.zeros((4, 2, 40), "float32"), ([one[..., :3] for one in h], before))
    with pytest.raises(ValueError, match=r"dy must have shape \(4, 2, 16\)"):
        layer.backward(layer.forward(np.zeros((4, 2, 40), "float32"))[2], np.zeros((4, 2, 240), "float32"))


def test_copies_and_state_dicts():
    layer = layer_of("large_memory", num_layers=2, bidirectional=True)
    x = problem("large_memory", layer)[0]
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer_of("large_memory", num_layers=2,
                  bidirectional=True, seed=1)):  # fmt: skip
        other.load_state_dict(layer.state_dict(named=True))
        np.testing.assert_array_equal(other(x)[0], layer(x)[0])


@pytest.mark.parametrize("bidirectional", (False, True))
def test_dropout_between_layers(bidirectional):
    """It is of y as callers would see it: layers one by one, with the masks between them, compute the same."""
    name, options = "large_memory", {"bidirectional": bidirectional}
    layer = layer_of(name, num_layers=2, dropout=0.4, **options)
    x, _, dy, _ = problem(name, layer)
    y, _, tape = layer.forward(x)
    (mask,) = layer.dropout_masks(tape)
    assert mask.shape == (*x.shape[:2], H * layer.stack.directions) and {0.0} < set(np.unique(mask))
    first, second = layer_of(name, **options), nr.RNN(layer._cell, mask.shape[2], H, dtype="float64", device="cpu",
                                                      **options)  # fmt: skip
    for number, one in enumerate((first, second)):
        one.load_state_dict({key.replace(f"_l{number}", "_l0"): value for key, value in layer.state_dict().items()
                             if f"_l{number}" in key})  # fmt: skip
    below, _, of_first = first.forward(x)
    above, _, of_second = second.forward(below * mask)
    np.testing.assert_allclose(y, above, atol=1e-14)
    grads = first.backward(of_first, second.backward(of_second, dy).x * mask)
    np.testing.assert_allclose(layer.backward(tape, dy).x, grads.x, atol=1e-13)


def test_units_beyond_are_finite_where_the_last_one_is():
    """What kernels compute beyond h's units is not seen, and must not be NaN either: a state may be one that is never 0
    where it is given."""

    @nr.cell
    def divided(x, h, m, s, p):
        m, s = nr.sized(m, 6), nr.sized(s, 4)
        return nr.tanh(p.W.h @ x + p.R.h @ h + p.P @ (m / (1 + m * m)) + p.Q @ (1 / s)), p.B @ x + p.C @ m, s

    layer = nr.RNN(divided, 2, 3, dtype="float64", device="cpu", seed=0)
    given = np.ones((1, 2, 3)), np.ones((1, 2, 6)), np.full((1, 2, 4), 2.0)
    y, _, tape = layer.forward(np.ones((3, 2, 2)), given)
    grads = layer.backward(tape, np.ones_like(y))
    assert np.isfinite(y).all() and all(np.isfinite(one).all() for one in (grads.weights, grads.x, *grads.state))


@pytest.mark.parametrize("name", LARGE)
def test_in_pytorch(name):
    """Layer by layer as dropout has it, of no sequences, with states of every step; one of them compiled."""
    layer = layer_of(name, num_layers=2, bidirectional=True)
    options = {"proj_size": 3} if layer.proj_size else {}
    module = nrt.Recurrent(CELLS[name][0], layer.input_size, H, 2, bidirectional=True, dtype=torch.float64, **options)
    module.load_state_dict({key: torch.tensor(value) for key, value in layer.state_dict().items()})
    x, states, _, _ = problem(name, layer)
    y, finals, every = layer(x, tuple(states), output_states=True)
    tensors = tuple([*map(torch.tensor, one)] if isinstance(one, list) else torch.tensor(one) for one in states)
    by_layer = nrt.Recurrent(CELLS[name][0], layer.input_size, H, 2, bidirectional=True, dtype=torch.float64,
                             dropout=0.5, **options).eval()  # fmt: skip
    by_layer.load_state_dict(module.state_dict())
    for one in (module, by_layer):
        found_y, found, found_every = one(torch.tensor(x), tensors, output_states=True)
        np.testing.assert_allclose(found_y.detach(), y, atol=1e-14)
        for a, b in zip(all_arrays(found), all_arrays(finals), strict=True):
            np.testing.assert_allclose(a.detach(), b, atol=1e-14)
        for a, b in zip(found_every, every, strict=True):
            np.testing.assert_allclose(a.detach(), b, atol=1e-14)
    nothing, (h, *_) = module(torch.zeros(2, 0, layer.input_size, dtype=torch.float64))
    assert nothing.shape == (2, 0, y.shape[2]) and all_arrays([h])[0].shape[1] == 0
    if name != COMPILED:
        return
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = torch.tensor(x, requires_grad=True)
    results = [torch.autograd.grad(one(x, tensors)[0].square().sum(), x)[0] for one in (module, compiled)]
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)


def test_what_states_of_other_sizes_cannot_have():
    @nr.cell
    def summed(x, h, s, p):
        s = nr.sized(s, 2)
        return nr.tanh(p.W.h @ x + p.R.h @ s + nr.sum(s)), nr.tanh(p.W.s @ x)

    with pytest.raises(
        ValueError, match=r"s has 2 units, and what meets .* has one size .* so its hidden size 4 and 2 must be"
    ):
        nr.RNN(summed, 3, 4)

    @nr.cell
    def beside(x, h, s, p):
        s = nr.sized(s, 2)
        return nr.tanh(p.W.h @ x + s), s

    with pytest.raises(
        ValueError, match=r"s has 2 units, and what meets .* has one size .* so its hidden size 4 and 2 must be"
    ):
        nr.RNN(beside, 3, 4)
    nr.gradcheck(beside, 3, 2)
    with pytest.raises(nr.CellError, match="the size of h, whose size is the layer's hidden_size; expected a state"):
        nr.cell(lambda x, h, p: nr.tanh(p.W.h @ x + nr.sized(h, 2)))
    with pytest.raises(nr.CellError, match=r"heads cannot go with states of other sizes than H"):
        nr.cell(lambda x, h, s, p: (nr.tanh(nr.heads(p.R, 2).h @ nr.sized(s, 2)), nr.tanh(p.W.h @ x)))


def test_what_large_states_cannot_be_beside():
    @nr.cell
    def summed(x, h, m, p):
        m = nr.sized(m, 8)
        return nr.softmax(p.W.h @ x + p.R.h @ h + p.P @ m), m + p.B @ x

    message = "layer 0: a state of 8 units, more than the hidden size 4, cannot go with sums over units"
    with pytest.raises(ValueError, match=message):
        nr.RNN(summed, 3, 4)
    nr.gradcheck(summed, 3, 8)

    @nr.cell
    def with_heads(x, h, m, p):
        m = nr.sized(m, 8)
        return nr.tanh(p.W.h @ x + nr.heads(p.R.h, 2) @ h), 0.5 * m

    with pytest.raises(ValueError, match="cannot go with matrices of 2 heads; take a hidden size of 8 or more"):
        nr.RNN(with_heads, 3, 4)
    cell = CELLS["large_memory"][0]
    with pytest.raises(
        ValueError, match="more than the hidden size 4, cannot go with input_mode 'skip'; take a hidden size of"
    ):
        nr.RNN(cell, 4, 4, input_mode="skip")
    rnn = functional.Descriptor(cell, 3, 4, device="cpu")
    with pytest.raises(ValueError, match=r"has \(15,\) units: cuDNN's calls have no form"):
        functional.forward_inference(rnn, np.zeros((1, 1, 3), "float32"), w=rnn.zeros_weights())
