"""What layers of formed_cells.py must compute: a loop of their steps in PyTorch, in float64, and autograd; and what a
layer computes, by the same names.
"""

import numpy as np

import numbarnn as nr
from formed_cells import CELLS

T, B, INPUTS, H = 5, 3, 3, 5


def layer_of(name, dtype="float64", device="cpu", seed=0, **options):
    cell, _, same_size = CELLS[name]
    options |= {"proj_size": 3} if cell.projected else {}
    return nr.RNN(cell, H if same_size else INPUTS, H, dtype=dtype, device=device, seed=seed, **options)


def loop(name, layer, leaves, x, states):
    """(y, final states) of a network, layer after layer; leaves: the parameters by their names; states (L*D, B, H)."""
    import torch

    step = CELLS[name][1]
    finals, D = [], layer.stack.directions
    for number in range(layer.num_layers):
        outputs = []
        for direction in range(D):
            place = f"l{number}.{'reverse.' if direction else ''}"
            w = {key.removeprefix(place): leaves[key] for key in leaves if key.startswith(place)}
            w = {key: value for key, value in w.items() if not key.startswith("reverse.")}
            state, y = [part[number * D + direction] for part in states], []
            for x_t in reversed(x) if direction else x:
                state = step(w, x_t, *state)
                y.append(state[0])
            outputs.append(torch.stack(y[::-1] if direction else y))
            finals.append(state)
        x = torch.cat(outputs, dim=-1).unbind()
    return torch.stack(x), [torch.stack(parts) for parts in zip(*finals, strict=True)]


def problem(name, layer, batch=B, steps=T, seed=1):
    """x, states, the gradients of y and of the final states, NumPy's."""
    random, stack = np.random.default_rng(seed), layer.stack
    shapes = [stack.h_shapes(batch), *[stack.c_shapes(batch)] * stack.cell.num_private]
    x = random.standard_normal((steps, batch, layer.input_size))
    states, d_states = ([0.5 * random.standard_normal(shape) for shape in shapes] for _ in range(2))
    return x, states, random.standard_normal((steps, batch, stack.directions * stack.output_sizes[-1])), d_states


def full_names(layer):
    return layer.named._views


def expected(name, layer, given):
    """y, final states, gradients of x, states and every parameter by autograd in float64."""
    import torch

    x, states, dy, d_states = given
    leaves = {key: torch.tensor(np.float64(layer.engine.to_host(v))) for key, v in full_names(layer).items()}
    inputs = torch.tensor(x), *map(torch.tensor, states)
    for leaf in (*inputs, *leaves.values()):
        leaf.requires_grad_()
    y, finals = loop(name, layer, leaves, inputs[0].unbind(), inputs[1:])
    loss = (y * torch.tensor(dy)).sum() + sum(
        (a * torch.tensor(b)).sum() for a, b in zip(finals, d_states, strict=True)
    )
    names = list(leaves)
    gradients = torch.autograd.grad(loss, [*inputs, *leaves.values()], allow_unused=True, materialize_grads=True)
    dx, *rest = [gradient.numpy() for gradient in gradients]
    return (
        {"y": y.detach().numpy(), "x": dx}
        | {f"final {n}": part.detach().numpy() for n, part in enumerate(finals)}
        | {f"state {n}": rest[n] for n in range(len(states))}
        | dict(zip(names, rest[len(states) :], strict=True))
    )


def computed(layer, given, **options):
    """The same of the layer."""
    host = layer.engine.to_host
    x, states, dy, d_states = ([host_part.astype(layer.dtype) for host_part in part] if isinstance(part, list)
                               else part.astype(layer.dtype) for part in given)  # fmt: skip
    x, dy, *parts = (layer.engine.from_host(one) for one in (x, dy, *states, *d_states))
    count = len(states)
    state, d_state = (tuple(one) if count > 1 else one[0] for one in (parts[:count], parts[count:]))
    y, finals, tape = layer.forward(x, state)
    grads = layer.backward(tape, dy, d_state, **options)
    finals, d_before = (one if isinstance(one, tuple) else (one,) for one in (finals, grads.state))
    found = {"y": y, "x": grads.x} | {f"final {n}": part for n, part in enumerate(finals)}
    found |= {f"state {n}": part for n, part in enumerate(d_before)} | full_names_of(grads)
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
