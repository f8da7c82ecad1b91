"""Cells whose kernels read what is derived of parameters, against NumPy's engine in float64, and finite differences."""

import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import numbarnn as nr
import numbarnn.torch as nrt
from formed_cells import CELLS
from formed_loops import INPUTS, H, assert_close, computed, each, expected, full_names, inputs_of, layer_of, problem
from numpy_engine import NumpyEngine

by_cell = pytest.mark.parametrize("name", CELLS)
# Each is compiled in float64; in float32, too, one of each form, or all if `full`.
FORMS = {
    "learned_diffusion", "janet", "small_context", "large_memory", "tgru_of_wide_x", "projected_beside_memory",
    "sak_lstm", "products_and_masks", "of_input", "running",
}  # fmt: skip
by_form = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FORMS else [pytest.mark.full]) for name in CELLS]
)


@by_cell
def test_numpys_engine_agrees_with_equations_and_differences(name):
    cell = CELLS[name][0]
    assert nr.gradcheck(
        cell, inputs_of(name), H, steps=2, device=NumpyEngine(), **({"proj_size": 3} if cell.projected else {})
    ).ok


@by_cell
@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}), ids=("one", "stack"))
def test_agrees_with_numpys_engine(name, options):
    """Small calls, bound; and one that is not bound as it is given lengths that are all T."""
    if options and CELLS[name][1] == "H":
        options = {"num_layers": 3}  # else the second layer's x is wider than its h
    layer = layer_of(name, **options)
    given = problem(name, layer)
    assert_close(computed(layer, given), expected(name, layer, given), 1e-12)
    layer.weights += 0.01  # what is formed is formed anew
    assert_close(computed(layer, given), expected(name, layer, given), 1e-12)


@by_form
@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
def test_schedules_on_large_calls_in_float32(name, schedule):
    """Beyond what is bound, in several threads; tolerance: float32, of sums of a few hundred."""
    layer = layer_of(name, "float32", num_layers=2, schedule=schedule)
    given = problem(name, layer, batch=70, steps=20)
    assert_close(computed(layer, given), expected(name, layer, given), 2e-5)


@by_form
def test_halves(name):
    """On the CPU they are computed in float32 and rounded once."""
    layer = layer_of(name, "float16")
    rounded = lambda one: one.astype("float16").astype("float64")  # noqa: E731
    given = [each(rounded, part) if isinstance(part, list) else rounded(part) for part in problem(name, layer)]
    assert_close(computed(layer, given), expected(name, layer, given), 2e-3)


@by_cell
def test_gradients_are_added(name):
    layer = layer_of(name)
    given = problem(name, layer)
    once, dw = expected(name, layer, given), np.ones_like(layer.weights)
    twice = computed(layer, given, dw=dw)
    assert_close(twice, once | {key: value + 1 for key, value in once.items() if key in full_names(layer)}, 1e-12)


@by_cell
def test_in_pytorch(name):
    """The module's parameters as a flat buffer, and from elsewhere; autograd through them."""
    cell = CELLS[name][0]
    layer, options = layer_of(name), {"proj_size": 3} if cell.projected else {}
    module = nrt.Recurrent(cell, inputs_of(name), H, dtype=torch.float64, **options)
    module.load_state_dict({key: torch.tensor(value) for key, value in layer.state_dict().items()})
    given = problem(name, layer)
    wanted = expected(name, layer, given)
    x, states, dy, d_states = given
    for way in ("flat", "elsewhere"):
        own = {key: value.detach().clone().requires_grad_() for key, value in module.named_parameters()}
        inputs = torch.tensor(x), [torch.tensor(state) for state in states]
        arguments = inputs[0], tuple(inputs[1]) if len(states) > 1 else inputs[1][0]
        module.zero_grad()
        if way == "flat":
            y, finals = module(*arguments)
            own = dict(module.named_parameters())
        else:
            y, finals = torch.func.functional_call(module, own, arguments)
        finals = finals if isinstance(finals, tuple) else (finals,)
        loss = (y * torch.tensor(dy)).sum()
        loss = loss + sum((a * torch.tensor(b)).sum() for a, b in zip(finals, d_states, strict=True))
        loss.backward()
        flat = {part.name: own[part.name].grad.reshape(-1) for part in layer.stack.space.parameters}
        found = {
            key: flat[part.name][where.start - part.offset : where.stop - part.offset].reshape(shape).numpy()
            for blocks in layer.stack.space.blocks.values()
            for key, (part, where, shape) in ((f"l0.{name}", block) for name, block in blocks.items())
        }
        assert_close({"y": y.detach().numpy()} | found, {key: wanted[key] for key in ("y", *found)}, 1e-12)


# ------------------------------------------------------------------------------------------------------ beside the rest
def test_sizes_are_checked_when_the_layer_is_made():
    with pytest.raises(
        ValueError, match=r"layer 0: x is used itself, .* so its hidden size 5 and input size 3 must be equal"
    ):
        nr.RNN(CELLS["highway_lstm"][0], 3, 5)
    with pytest.raises(
        ValueError, match=r"layer 1: x is used itself, .* so its hidden size 5 and input size 10 must be"
    ):
        nr.RNN(CELLS["highway_lstm"][0], 5, 5, 2, bidirectional=True)
    with pytest.raises(
        ValueError, match=r"a constant \(5, 5\) is a matrix of the equations, so its 5 and hidden size 4"
    ):
        nr.RNN(CELLS["products_and_masks"][0], 3, 4)
    with pytest.raises(ValueError, match=r"p.W.a multiplies more than x, but layer 0 has no matrices for x"):
        nr.RNN(MULTIPLIES_BOTH, 5, 5, input_mode="skip")


@nr.cell
def both(x, h, p):
    return nr.tanh(p.W.a @ x + p.R.a @ h + p.W.a @ h)


MULTIPLIES_BOTH = both


def test_a_matrix_of_x_and_of_h():
    nr.gradcheck(both, 4, 4)
    assert both.rows == {"weight_ih": ("W.a",), "weight_hh": ("R.a",)}


def test_a_matrix_of_two_vectors_of_different_sizes_is_refused():
    """With its name, both vectors and their sizes, when a layer is made; also in a further layer, whose x is wider."""
    tied = nr.cell(lambda x, h, p: nr.tanh(p.W @ x + p.W @ h), name="tied")
    for make in (nr.RNN, nrt.Recurrent, nr.gradcheck):
        for inputs, units in ((5, 12), (12, 5)):
            with pytest.raises(
                ValueError, match=rf"p.W stands in p.W @ x and p.W @ h .*size {inputs} and hidden size {units}"
            ):
                make(tied, inputs, units)
    for function, products in (
        (lambda x, h, p: nr.tanh(p.W.T @ h + p.W @ x), r"p.W @ x and p.W.T @ h"),
        (lambda x, h, p: nr.tanh((p.W + p.R) @ h + p.W @ x), r"p.W @ x and \(p.W \+ p.R\) @ h"),
    ):
        with pytest.raises(ValueError, match=rf"p.W stands in {products} .*input size 5 and hidden size 12 must be"):
            nr.RNN(nr.cell(function), 5, 12)
    with pytest.raises(ValueError, match=r"layer 1: p.W stands in p.W @ x and .* input size 10 and hidden size 5 must"):
        nr.RNN(tied, 5, 5, num_layers=2, bidirectional=True)
    context = nr.cell(lambda x, h, s, p: (nr.tanh(p.W @ x + p.R @ h), p.Q @ nr.sized(s, 3) + p.Q @ x), name="context")
    with pytest.raises(ValueError, match=r"p.Q stands in p.Q @ x and p.Q @ s .*input size 4 and 3 must be equal"):
        nr.RNN(context, 4, 6)
    nr.gradcheck(tied, 5, 5, num_layers=2)
    nr.gradcheck(context, 3, 6)


def test_heads_of_a_matrix_that_multiplies_two_vectors():
    @nr.cell
    def traced(x, h, c, p):
        R = nr.heads(p.R.a, 2)
        return nr.tanh(p.W.a @ x + R @ h + R @ c), 0.5 * c + nr.heads(p.R.b, 2) @ h

    nr.gradcheck(traced)
    assert nr.RNN(traced, 3, 4, device="cpu").named["R.a"].shape == (4, 2)


def test_dropped_weights_beside_formed_ones():
    @nr.cell
    def traced(x, h, p):
        return nr.tanh(p.W.a @ x + nr.drop_connect(p.R.a, 0.5) @ h + (p.R.b - p.R.b.T) @ h)

    layer = nr.RNN(traced, 3, 4, dtype="float64", device="cpu", seed=0)
    _, _, tape = layer.forward(np.zeros((2, 1, 3)))
    mask = layer.drop_connect_masks(tape)["weight_hh_l0"]
    assert mask.shape == (8, 4) and set(np.unique(mask[:4])) == {0, 2} and (mask[4:] == 1).all()
    nr.gradcheck(traced)


def test_a_state_of_another_layer_of_the_same_cell_is_not_seen():
    """What is formed belongs to a buffer of weights: two layers, by turns, with a tape of the first between."""
    first, second = layer_of("antisymmetric", seed=0), layer_of("antisymmetric", seed=1)
    x = np.random.default_rng(0).standard_normal((3, 2, INPUTS))
    y, _, tape = first.forward(x)
    expected_grads = first.backward(tape, np.ones_like(y)).weights.copy()
    y, _, tape = first.forward(x)
    second(x)
    kept = first.weights.copy()
    first.named["R.h"][...] += 1
    first(x)  # formed anew
    first.named["R.h"][...] -= 1
    first.weights[...] = kept
    np.testing.assert_array_equal(first.backward(tape, np.ones_like(y)).weights, expected_grads)


def test_a_step_of_a_stream_sees_new_weights():
    layer = layer_of("learned_diffusion")
    step, x = layer.stepper(2), np.random.default_rng(0).standard_normal((2, INPUTS))
    for _ in range(3):
        step.state = None
        np.testing.assert_array_equal(step(x), layer(x[None])[0][0])
        layer.named["scalar.gamma"] = float(layer.named["scalar.gamma"]) + 0.5
        layer.named["R.a"][0, 1] += 0.5


def test_scalars_begin_where_they_are_told_and_are_listed():
    cell = CELLS["janet"][0]
    layer = nr.RNN(cell, 3, 4, 2, device="cpu", seed=0)
    assert [layer.named[f"l{k}.scalar.beta"] for k in range(2)] == [1, 1] and layer.named["l0.scalar.beta"].shape == ()
    assert layer.parameters["scalar_beta_l1"].shape == () and "scalar.beta ()" in repr(cell)
    assert nrt.Recurrent(cell, 3, 4).scalar_beta_l0.item() == 1
    text = nr.show(CELLS["learned_diffusion"][0])
    assert "((p.R.a - p.R.a.T) - (p.scalar.gamma * eye))" in text and "scalar_gamma ()" in text


def test_expressions_are_vectors_too():
    """Where they do not stand left of @: one number per unit, of p.a and p.scalar.b."""

    @nr.cell
    def traced(x, h, p):
        gain = 1 - p.a / p.scalar.b
        return nr.tanh(p.W.a @ x + gain * h) * (p.a - 2 * p.c)

    nr.gradcheck(traced)
    assert set(traced.per_unit) == {"a", "c", "scalar_b"} and traced.parameters.own["scalar.b"] == ()


def test_functions_of_scalars_times_matrices():
    """They multiply the products, so that nothing is formed of them; a matrix is formed where it is one."""

    @nr.cell
    def traced(x, h, p):
        R, gain = p.R.h * nr.sigmoid(p.scalar.a), nr.exp(p.scalar.b)
        of_h = R @ h + (gain * (p.R.k - p.R.k.T)) @ h + (p.R.m / gain).T @ h
        return nr.tanh(p.W.h @ x + of_h) * (nr.tanh(p.scalar.a) * p.g)

    nr.gradcheck(traced)
    assert traced.rows == {"weight_ih": ("W.h",), "weight_hh": ("R.h",)} and traced.recurrent[0] == "h"
    h, p = np.ones((4, 1)), nr.RNN(traced, 3, 4, dtype="float64", device="cpu").named.p()
    np.testing.assert_allclose(traced.function(np.zeros((3, 1)), h, p).shape, h.shape)


# ----------------------------------------------------------------------------------------------------------- x itself
@nr.cell
def residual(x, h, c, p):
    g = nr.sigmoid(p.W.g @ x + p.R.g @ h + p.b.g)
    return g * nr.tanh(p.W.c @ x + p.R.c @ h) + (1 - g) * x, 0.5 * c + x


@nr.cell
def residual_by_a_matrix(x, h, c, p):
    g, same = nr.sigmoid(p.W.g @ x + p.R.g @ h + p.b.g), p.W.same @ x
    return g * nr.tanh(p.W.c @ x + p.R.c @ h) + (1 - g) * same, 0.5 * c + same


@pytest.mark.parametrize("options", ({}, {"num_layers": 2}, {"batch_first": True}), ids=("one", "two", "batch first"))
@pytest.mark.parametrize("batch", (1, 40))
def test_x_itself_is_copied(options, batch):
    """The same bits as a product with an identity; gradients to rounding. On several threads, and in panels."""
    layer, other = (
        nr.RNN(cell, 37, 37, dtype="float32", device="cpu", seed=0, **options)
        for cell in (residual, residual_by_a_matrix)
    )
    assert layer.stack.problem(2, 2, True).copied_gates == (1,) * layer.num_layers
    for name in other.named:
        other.named[name][...] = np.eye(37) if name.endswith("same") else layer.named[name]
    x = np.random.default_rng(0).standard_normal((20, batch, 37), dtype=np.float32)
    x = x.swapaxes(0, 1) if options.get("batch_first") else x
    (y, finals, tape), (wanted, wanted_finals, other_tape) = layer.forward(x), other.forward(x)
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(finals[1], wanted_finals[1])
    grads, expected_grads = layer.backward(tape, y), other.backward(other_tape, y)
    np.testing.assert_allclose(grads.x, expected_grads.x, rtol=1e-4, atol=1e-4)
    for name in layer.named:
        np.testing.assert_allclose(grads.named[name], expected_grads.named[name], rtol=1e-4, atol=2e-3)


def test_x_itself_alone():
    """No product with x is left; what is no number stays with its unit."""

    @nr.cell
    def traced(x, h, p):
        return nr.tanh(x + p.u * h)

    nr.gradcheck(traced, 4, 4, 2)
    layer = nr.RNN(traced, 4, 4, device="cpu", seed=0)
    x = np.zeros((2, 3, 4), "float32")
    x[0, 1, 2] = np.nan
    y = layer(x)[0]
    assert np.isnan(y[:, 1, 2]).all() and np.isnan(y).sum() == 2


# -------------------------------------------------------------------------------------------------- constants of any H
decay, lower = nr.constant(lambda H: np.linspace(0.5, 0.9, H)), nr.constant(lambda H: np.tril(np.ones((H, H))))


@nr.cell
def with_constants(x, h, p, shift=1.0):
    return nr.tanh(p.W.h @ x + (lower * p.R.a) @ h + lower @ h + (shift - decay) * h - decay / 2)


def test_constants_that_depend_on_the_hidden_size():
    text = nr.show(with_constants)
    assert "constant_1  (H,)       not learnt: a constant of H" in text and "(a constant of H * p.R.a)" in text
    for size in (4, 6):
        nr.gradcheck(with_constants, 3, size)
        layer = nr.RNN(with_constants, 3, size, dtype="float64", device="cpu", seed=0)
        x, h = np.random.default_rng(0).standard_normal((2, size, 1))
        y = layer(x[None, :3].transpose(0, 2, 1), h.T[None])[0]
        np.testing.assert_allclose(y[0].T, with_constants.function(x[:3], h, layer.named.p()), atol=1e-14)
    copied = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(copied(np.ones((2, 1, 3)))[0], layer(np.ones((2, 1, 3)))[0])


def test_constants_are_shown_and_checked():
    @nr.cell
    def traced(x, h, p):
        return nr.tanh(p.W.h @ x + np.arange(8.0) * h)

    assert "constant_1  (8,)       not learnt: 0 1 2 3 4 5 ..." in nr.show(traced)

    @nr.cell
    def of_wrong_shape(x, h, p):
        return nr.tanh(p.W.h @ x + decay @ h)

    with pytest.raises(
        ValueError, match=r"a constant of H is of shape \(5,\) for a hidden size of 5; expected \(5, 5\)"
    ):
        nr.RNN(of_wrong_shape, 3, 5)
    with pytest.raises(TypeError, match=r"constant takes a function of H, such as lambda H: numpy.arange\(H\), got 3"):
        nr.constant(3)


def test_a_constant_is_not_a_bias():
    """Added to a product it stays what it is."""
    five = np.arange(5.0)
    cell = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + five + p.R.a @ h))
    assert cell.bias == "none" and cell.num_per_unit == 1
    twice = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + five * h) * (2 - five.copy()))
    assert twice.num_per_unit == 2  # five, and 2 - five as NumPy computed it
    with pytest.raises(ValueError, match=r"an array of the equations has .* any H.*, so its 5 and hidden size 4"):
        nr.RNN(cell, 3, 4, device="cpu")


@pytest.mark.parametrize("array", (np.eye(4), np.arange(4.0)), ids=("matrix", "vector"))
def test_constants_are_copies(array):
    """What is written into an array that equations had while they were traced changes no cell."""
    array = array.copy()
    traced = nr.cell(lambda x, h, p: nr.tanh(p.W.h @ x + (array @ h if array.ndim == 2 else array * h)))
    x, results = np.ones((3, 2, 3), np.float32), []
    for _ in range(2):
        results.append(nr.RNN(traced, 3, 4, device="cpu", seed=0)(x)[0])
        array *= 3
    np.testing.assert_array_equal(*results)
