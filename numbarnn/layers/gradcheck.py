"""Check a cell: its gradients against finite differences, its forward against the equations in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn import cells
from numbarnn.layers.models import RNN
from numbarnn.programs.states import state_arrays, with_each

if TYPE_CHECKING:
    from numbarnn.common.typing import Cell, Sizes

STEP = 1e-6  # half the distance between the two points of a difference: its error is about STEP^2 + eps / STEP
IN_NUMPY = "y, equations in NumPy"
TOLERANCE = 1e-6  # of what is compared, relative to the largest gradient or 1


@dataclass(frozen=True)
class GradientCheck:
    """The errors that `gradcheck` measured; `print` shows them as a table.

    Attributes:
        errors: name of x, of a state or of a parameter -> largest error of its gradient, divided by its largest
            gradient or by 1, whichever is larger. For a cell made of equations also IN_NUMPY -> the error of y and the
            final states.
        tolerance: the largest error that is accepted.
        sizes: I and H of the check, and why these, as text.
    """

    errors: dict[str, float]
    tolerance: float
    sizes: str

    @property
    def ok(self) -> bool:
        """True if all errors are within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())

    def __str__(self) -> str:
        rows = [f"gradients against finite differences, tolerance {self.tolerance:.0e}:", f"  {self.sizes}"]
        for name, error in self.errors.items():
            rows.append(f"  {name:<28} {error:.1e}{'' if error <= self.tolerance else '  WRONG'}")
        return "\n".join(rows)


def gradcheck(
    cell: Cell, input_size: int | None = None, hidden_size: Sizes | None = None, num_layers: int | None = None,
    steps: int = 3, batch: int = 2, *, seed: int = 0, tolerance: float = TOLERANCE, **options: Any,
) -> GradientCheck:  # fmt: skip
    """Check a cell's gradients against finite differences in float64, and its forward against NumPy.

    The loss is a random weighted sum of all outputs and final states. Every element of x, states and parameters is
    moved up and down. The forward is compared with the equations run in NumPy, if the cell is made of equations.
    Differences are meaningless at a kink, such as ReLU's: try another `seed`. Dropout and other random numbers stay the
    same in all calls.

    Args:
        cell: a `Cell`, such as `numbarnn.cell` makes, or the name of one.
        input_size, hidden_size, num_layers: I, H and L of the network. By default I = 3 and H = 4, or what the
            equations need. I and H differ if they can, so that a mix-up shows.
        steps, batch: number of time steps (T) and of sequences (B).
        seed: seed of inputs, states and parameters.
        tolerance: largest difference that is accepted, relative to the largest gradient or 1.
        options: options of the layer, such as bidirectional=True, device="sim", schedule="wavefront".

    Returns:
        a `GradientCheck` with all errors.

    Raises:
        ValueError: a gradient or the forward is wrong; the message lists all errors. Or the equations use
            `stop_gradient` or `custom_derivative`, so finite differences do not apply.

    Example:
        >>> numbarnn.gradcheck("lstm", bidirectional=True).ok
        True
    """
    cell = cells.get(cell)
    _require_gradients_of_values(cell)
    input_size, hidden_size, sizes = _sizes(cell, input_size, hidden_size)
    layer = RNN(cell, input_size, hidden_size, num_layers, dtype="float64", seed=seed, **({"device": "cpu"} | options))
    random, engine = np.random.default_rng(seed), layer.engine
    values = _values(layer, steps, batch, random)
    draws = bool(layer.stack.cell.noise or layer.stack.cell.drop_connect or layer.dropout)

    outputs, tape = _run(layer, values, training=True)
    weights_of = with_each(outputs, lambda output: random.standard_normal(output.shape))
    dy, *d_state = with_each(weights_of, engine.from_host)
    gradients = layer.backward(tape, dy, tuple(d_state) if len(d_state) > 1 else d_state[0])
    states = gradients.state if isinstance(gradients.state, tuple) else (gradients.state,)
    grads = {"x": gradients.x} | gradients.params
    for name, state in zip(layer.stack.cell.states, states, strict=True):
        grads |= _by_layer(name, state)

    def loss():
        pairs = zip(_arrays(_run(layer, values, training=draws)[0]), _arrays(weights_of), strict=True)
        return sum(float(np.sum(engine.to_host(output) * weight)) for output, weight in pairs)

    errors = {name: _distance(engine.to_host(one), _differences(values[name], loss)) for name, one in grads.items()}
    if hasattr(layer.stack.cell, "equations") and layer.stack.input_mode == "linear":
        ours = np.concatenate([engine.to_host(one).ravel() for one in _arrays(_run(layer, values, training=False)[0])])
        exact = np.concatenate([one.ravel() for one in _in_numpy(layer, values)])
        errors[IN_NUMPY] = _distance(ours, exact)
    check = GradientCheck(errors, tolerance, sizes)
    if not check.ok:
        wrong = "forward" if errors.get(IN_NUMPY, 0.0) > tolerance else "backward"
        raise ValueError(f"the {wrong} of cell {layer.stack.cell.name!r} is wrong; {check}")
    return check


def _in_numpy(layer, values):
    """Return [y, final states...] of inference, computed by the cell's equations in NumPy, one sequence at a time."""
    cell, L, D = layer.stack.cell, layer.stack.num_layers, layer.stack.directions
    x = values["x"].swapaxes(0, 1) if layer.batch_first else values["x"]
    initial = [_state(values, name) for name in cell.states]
    whole = [[part for one in state for part in (one if isinstance(state, list) else [one])] for state in initial]
    finals = [[] for _ in whole]  # each L D arrays (B, H)
    for layer_number in range(L):
        sides = []
        for direction in range(D):
            p = layer.named.p(layer_number, bool(direction), columns=False)
            W_hr = layer.parameters.get(f"weight_hr_l{layer_number}{'_reverse' * direction}")
            states, y = [one[layer_number * D + direction] for one in whole], [None] * len(x)
            for t in reversed(range(len(x))) if direction else range(len(x)):
                of_sequences = [
                    _new_states(cell, x_t, state, p, W_hr) for x_t, *state in zip(x[t], *states, strict=True)
                ]
                states = [np.stack(parts) for parts in zip(*of_sequences, strict=True)]
                y[t] = states[0]
            for finals_of_state, state in zip(finals, states, strict=True):
                finals_of_state.append(state)
            sides.append(np.stack(y))
        x = np.concatenate(sides, axis=2)
    return [x.swapaxes(0, 1) if layer.batch_first else x, *(array for states in finals for array in states)]


def _new_states(cell, x, states, p, W_hr):
    """Return the new states of one sequence, with the step counter if there is one. W_hr projects h if the equations
    do not."""
    inputs, count = (states[:-1], states[-1]) if cell.counts else (states, None)
    x, side = cell.parameters.parts_of(x)
    new = cell.function(x, *inputs, p, **side, **({cell.counts: count} if cell.counts else {}))
    new = new if isinstance(new, (tuple, list)) else (new,)
    if W_hr is not None and (not cell.projected or len(new[0]) != len(W_hr)):
        new = W_hr @ new[0], *new[1:]
    return [*new, *([count + 1] if cell.counts else [])]


def _run(layer, values, training):
    """Call the layer with these values and the same random numbers each time. Return ([y, final states...], tape);
    without a tape in inference."""
    engine, names = layer.engine, layer.stack.cell.states
    layer.training_calls = 0
    layer.load_state_dict({name: values[name] for name in layer.parameters})
    states = tuple(with_each(_state(values, name), engine.from_host) for name in names)
    call = layer.forward if training else layer
    y, state, *tape = call(engine.from_host(values["x"]), states if len(states) > 1 else states[0])
    return [y, *(state if isinstance(state, tuple) else (state,))], *tape


def _arrays(results):
    """Return all arrays of results; a state may be a list with one array per layer."""
    return [array for one in results for array in state_arrays(one)]


def _require_gradients_of_values(cell):
    """Raise ValueError if the cell's equations give some gradients themselves."""
    if functions := getattr(cell, "own_derivatives", ()):
        raise ValueError(
            f"cell {cell.name!r} defines gradients by {' and '.join(functions)}, so finite differences do not apply. "
            "Compare it with the same equations in PyTorch (detach(), autograd.Function)"
        )


def _values(layer, steps, batch, random):
    """Return name -> array of x, of each initial state and of each parameter."""
    order = (batch, steps) if layer.batch_first else (steps, batch)
    values = {"x": random.standard_normal((*order, layer.input_size))}
    for name, shape in zip(layer.stack.cell.states, layer.stack.shapes_of_states(batch), strict=True):
        drawn = list(map(random.standard_normal, shape)) if isinstance(shape, list) else random.standard_normal(shape)
        values |= _by_layer(name, drawn)
    return values | layer.state_dict()


def _by_layer(name, state):
    """Return {name: state}, or {"name, layer 0": array, ...} if layers' sizes differ."""
    if not isinstance(state, list):
        return {name: state}
    return {f"{name}, layer {number}": part for number, part in enumerate(state)}


def _state(values, name):
    """Return a state from `_values`, as layers take it: the reverse of `_by_layer`."""
    return values[name] if name in values else [part for key, part in values.items() if key.startswith(f"{name}, ")]


def _distance(found, expected):
    """Return the largest error, relative to the largest expected number or 1."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    return float(np.max(np.abs(found - expected), initial=0.0)) / scale


def _sizes(cell, input_size, hidden_size):
    """Return (I, H, the reason as text): the arguments, else what the equations need, else 3 and 4."""
    number, same = dict.fromkeys("IH"), None
    for one, other, why in cell.parameters.equal:
        same = why.partition(" (")[0] if {one, other} == {*"IH"} else same
        for letter, size in ((one, other), (other, one)):
            if letter in number and isinstance(size, int) and number[letter] is None:
                number[letter] = size
    least = max((size for size in cell.parameters.states if isinstance(size, int)), default=0)
    default = max(4, least)
    H = hidden_size or number["H"] or (same and (input_size or number["I"])) or default + (input_size == default)
    first = H if isinstance(H, int) else H[0]
    features = number["I"] or (first if same else 2 if first == 3 else 3)
    I = input_size or features + cell.parameters.side_width  # noqa: E741 - the legend's letter
    if input_size and hidden_size:
        why = "as asked for"
    elif same or I == first:
        why = f"equal, as {same}" if same else "equal, as the equations or arguments have it"
    else:
        why = "different, so that neither stands in for the other"
    return I, H, f"input_size {I}, hidden_size {H}: {why}"


def _differences(array, loss):
    """Return the gradient of loss() by central differences; each element of the array is moved and put back."""
    gradient, flat = np.empty(array.size), array.reshape(-1)
    for number, value in enumerate(flat.copy()):
        ends = []
        for moved in (value + STEP, value - STEP):
            flat[number] = moved
            ends.append(loss())
        flat[number] = value
        gradient[number] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient.reshape(array.shape)
