"""What layers of formed_cells.py must compute: their equations by cell_loops.py, and autograd; and what a layer
computes, by the same names.
"""

import numpy as np

import numbarnn as nr
from comparing import all_arrays
from formed_cells import CELLS

T, B, INPUTS, H = 5, 3, 3, 5


def inputs_of(name):
    """I of the first layer."""
    return {"any": INPUTS, "H": H, "more than H": 2 * H - 1}[CELLS[name][1]]


def layer_of(name, dtype="float64", device="cpu", seed=0, **options):
    cell = CELLS[name][0]
    options |= {"proj_size": 3} if cell.projected else {}
    return nr.RNN(cell, inputs_of(name), H, dtype=dtype, device=device, seed=seed, **options)


def loop(name, layer, leaves, x, states):
    """(y, final states) of a network, layer after layer.

    Args:
        leaves: the parameters by their names. states: (L*D, B, H), or a list of one (D, B, H) per layer.
    """
    import torch

    from cell_loops import Eager, run_equations

    cell = CELLS[name][0]
    states = [[row for part in one for row in part] if isinstance(one, list) else one for one in states]
    finals, D = [], layer.stack.directions
    for number in range(layer.num_layers):
        outputs = []
        for direction in range(D):
            place = f"l{number}.{'reverse.' if direction else ''}"
            w = {key.removeprefix(place): leaves[key] for key in leaves if key.startswith(place)}
            w = {key: value for key, value in w.items() if not key.startswith("reverse.")}
            state, y = [part[number * D + direction] for part in states], []
            for x_t in reversed(x) if direction else x:
                state = run_equations(Eager(w, H), cell, x_t, state)
                y.append(state[0])
            outputs.append(torch.stack(y[::-1] if direction else y))
            finals.append(state)
        x = torch.cat(outputs, dim=-1).unbind()
    equal = [len({part.shape for part in parts}) == 1 for parts in zip(*finals, strict=True)]
    finals = zip(zip(*finals, strict=True), equal, strict=True)
    return torch.stack(x), [
        torch.stack(parts) if same else [torch.stack(parts[n : n + D]) for n in range(0, len(parts), D)]
        for parts, same in finals
    ]


def problem(name, layer, batch=B, steps=T, seed=1):
    """x, states, the gradients of y and of the final states, NumPy's."""
    random, stack = np.random.default_rng(seed), layer.stack
    shapes = [stack.h_shapes(batch), *stack.private_shapes(batch)]
    x = random.standard_normal((steps, batch, layer.input_size))

    def drawn(shape):
        return list(map(drawn, shape)) if isinstance(shape, list) else 0.5 * random.standard_normal(shape)

    states, d_states = (list(map(drawn, shapes)) for _ in range(2))
    return x, states, random.standard_normal((steps, batch, stack.directions * stack.output_sizes[-1])), d_states


def full_names(layer):
    return layer.named._views


def expected(name, layer, given):
    """y, final states, gradients of x, states and every parameter by autograd in float64."""
    import torch

    x, states, dy, d_states = given
    leaves = {key: torch.tensor(np.float64(layer.engine.to_host(v))) for key, v in full_names(layer).items()}
    x, states = torch.tensor(x), each(torch.tensor, states)
    for leaf in (x, *all_arrays(states), *leaves.values()):
        leaf.requires_grad_()
    y, finals = loop(name, layer, leaves, x.unbind(), states)
    pairs = zip(all_arrays(finals), all_arrays(d_states), strict=True)
    loss = (y * torch.tensor(dy)).sum() + sum((a * torch.tensor(b)).sum() for a, b in pairs)
    loss.backward()

    def gradient(leaf):
        return np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()

    return (
        {"y": y.detach().numpy(), "x": gradient(x)}
        | by_number("final", each(lambda one: one.detach().numpy(), finals))
        | by_number("state", each(gradient, states))
        | {key: gradient(leaf) for key, leaf in leaves.items()}
    )


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
    """The same of the layer."""
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
