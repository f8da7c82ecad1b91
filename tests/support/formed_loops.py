"""What layers of formed_cells.py must compute, by the engine of NumPy alone; and what a layer computes, by the same
names.
"""

import numpy as np

import numbarnn as nr
from formed_cells import CELLS
from numpy_engine import NumpyEngine

T, B, INPUTS, H = 5, 3, 3, 5


def inputs_of(name):
    """I of the first layer."""
    return {"any": INPUTS, "H": H, "more than H": 2 * H - 1}[CELLS[name][1]]


def layer_of(name, dtype="float64", device="cpu", seed=0, **options):
    cell = CELLS[name][0]
    options |= {"proj_size": 3} if cell.projected else {}
    return nr.RNN(cell, inputs_of(name), H, dtype=dtype, device=device, seed=seed, **options)


def problem(name, layer, batch=B, steps=T, seed=1):
    """x, states, the gradients of y and of the final states, NumPy's."""
    random, stack = np.random.default_rng(seed), layer.stack
    shapes = stack.shapes_of_states(batch)
    x = random.standard_normal((steps, batch, layer.input_size))

    def drawn(shape):
        return list(map(drawn, shape)) if isinstance(shape, list) else 0.5 * random.standard_normal(shape)

    states, d_states = (list(map(drawn, shapes)) for _ in range(2))
    return x, states, random.standard_normal((steps, batch, stack.directions * stack.output_sizes[-1])), d_states


def full_names(layer):
    return layer.named._views


def expected(name, layer, given):
    """What `computed` has to be, in float64 by the engine of NumPy alone (`test_formed.py` compares that with finite
    differences, and with the equations)."""
    options = {"proj_size": layer.proj_size} if layer.proj_size else {}
    oracle = nr.RNN(
        CELLS[name][0], layer.input_size, list(layer.hidden_sizes), bidirectional=layer.bidirectional, dtype="float64",
        device=NumpyEngine(), **options,
    )  # fmt: skip
    oracle.load_state_dict(layer.state_dict())
    return computed(oracle, given)


def each(function, states):
    """The function of every array of states, which may be lists."""
    return [list(map(function, one)) if isinstance(one, list) else function(one) for one in states]


def by_number(what, states):
    """ "final 0" -> array, or "final 0, layer 1" where layers' sizes differ."""
    found = {}
    for n, one in enumerate(states):
        if isinstance(one, list):
            found |= {f"{what} {n}, layer {layer}": part for layer, part in enumerate(one)}
        else:
            found[f"{what} {n}"] = one
    return found


def computed(layer, given, **options):
    """y, final states, gradients of x, states and every parameter of a layer, by name."""
    host = layer.engine.to_host
    x, states, dy, d_states = (
        each(lambda one: layer.engine.from_host(one.astype(layer.dtype)), part if isinstance(part, list) else [part])
        for part in given
    )
    (x,), (dy,) = x, dy
    state, d_state = (tuple(one) if len(one) > 1 else one[0] for one in (states, d_states))
    y, finals, tape = layer.forward(x, state)
    grads = layer.backward(tape, dy, d_state, **options)
    finals, d_before = (one if isinstance(one, tuple) else (one,) for one in (finals, grads.state))
    found = {"y": y, "x": grads.x} | by_number("final", finals) | by_number("state", d_before) | full_names_of(grads)
    return {key: host(value) for key, value in found.items()}


def full_names_of(grads):
    return grads.named._views


def assert_close(found, wanted, tolerance):
    """Relative to the largest number or 1; of a gradient of one number, a sum over units, sequences and steps of terms
    that cancel, to what as many random ones come to."""
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        scale = max(1.0, np.abs(value).max(initial=0), wanted["y"].size ** 0.5 if value.shape == () else 0)
        assert found[key].shape == value.shape, key
        assert np.abs(found[key].astype("float64") - value).max(initial=0) <= tolerance * scale, key
