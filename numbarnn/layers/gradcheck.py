"""Gradients of a cell against finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn import cells
from numbarnn.layers.models import RNN
from numbarnn.passes.executor import state_arrays, with_each

if TYPE_CHECKING:
    from numbarnn.common.typing import Cell, Sizes

STEP = 1e-6  # half the distance between the two points of a difference: its error is about STEP^2 + eps / STEP
TOLERANCE = 1e-6  # of what is compared, relative to the largest gradient or 1


@dataclass(frozen=True)
class GradientCheck:
    """What `gradcheck` found.

    Attributes:
        errors: name ("x", a state's name, a parameter's) -> largest difference, relative to the largest gradient or 1.
        tolerance: what they may be.
    """

    errors: dict[str, float]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether all are within the tolerance."""
        return all(error <= self.tolerance for error in self.errors.values())

    def __str__(self) -> str:
        rows = [
            f"  {name:<24} {error:.1e}{'' if error <= self.tolerance else '  WRONG'}"
            for name, error in self.errors.items()
        ]
        return "\n".join([f"gradients against finite differences, tolerance {self.tolerance:.0e}:", *rows])


def gradcheck(
    cell: Cell,
    input_size: int | None = None,
    hidden_size: Sizes | None = None,
    num_layers: int | None = None,
    steps: int = 3,
    batch: int = 2,
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> GradientCheck:
    """Compare a cell's backward with central differences of its forward, in float64, element by element.

    The loss is the sum of all outputs and final states, each times a random number. At points where a function has no
    derivative (the kink of a ReLU) differences say nothing: take another `seed`. Where something is drawn at random
    (dropout, a cell's noise, weights dropped) all is computed as in one and the same training call.

    Args:
        cell: a `Cell`, such as `numbarnn.cell` makes, or the name of one.
        input_size, hidden_size, num_layers: I, H, L of the network; None: 3 and 4, or what the equations need.
        steps, batch: T, B.
        seed: of inputs, states and parameters.
        tolerance: largest difference allowed, relative to the largest gradient of its kind or 1.
        options: of the layer, such as bidirectional=True, device="sim", schedule="wavefront".

    Returns:
        a `GradientCheck`, with all errors.

    Raises:
        ValueError: a gradient is wrong; the message names which, with all errors. Or the equations have
            `stop_gradient` or `custom_derivative`, so that gradients are not meant to be those of the values.
    """
    cell = cells.get(cell)
    _require_gradients_of_values(cell)
    input_size, hidden_size = _sizes(cell, input_size, hidden_size)
    layer = RNN(cell, input_size, hidden_size, num_layers, dtype="float64", seed=seed, **({"device": "cpu"} | options))
    random, engine = np.random.default_rng(seed), layer.engine
    values = _values(layer, steps, batch, random)
    draws = bool(layer.stack.cell.noise or layer.stack.cell.drop_connect or layer.dropout)

    outputs, tape = _run(layer, values, training=True)
    weights_of = with_each(outputs, lambda output: random.standard_normal(output.shape))
    dy, *d_state = with_each(weights_of, engine.from_host)
    gradients = layer.backward(tape, dy, tuple(d_state) if len(d_state) > 1 else d_state[0])
    states = gradients.state if isinstance(gradients.state, tuple) else (gradients.state,)
    found = {"x": gradients.x} | gradients.params
    for name, state in zip(layer.stack.cell.states, states, strict=True):
        found |= _by_layer(name, state)

    def loss():
        outputs = _run(layer, values, training=draws)[0]
        pairs = zip(_arrays(outputs), _arrays(weights_of), strict=True)
        return sum(float(np.sum(engine.to_host(output) * weight)) for output, weight in pairs)

    errors = {name: _error(engine.to_host(gradient), values[name], loss) for name, gradient in found.items()}
    check = GradientCheck(errors, tolerance)
    if not check.ok:
        raise ValueError(f"the backward of cell {layer.stack.cell.name!r} is wrong; {check}")
    return check


def _run(layer, values, training):
    """([y and the final states] of a call with these values, its tape), always with the same random numbers; without a
    tape in inference."""
    engine, names = layer.engine, layer.stack.cell.states
    layer.training_calls = 0
    layer.load_state_dict({name: values[name] for name in layer.parameters})
    states = tuple(with_each(_state(values, name), engine.from_host) for name in names)
    call = layer.forward if training else layer
    y, state, *tape = call(engine.from_host(values["x"]), states if len(states) > 1 else states[0])
    return [y, *(state if isinstance(state, tuple) else (state,))], *tape


def _arrays(results):
    """All arrays of results, of which states may be one for each layer."""
    return [array for one in results for array in state_arrays(one)]


def _require_gradients_of_values(cell):
    """Raise ValueError if the cell's equations give some gradients themselves."""
    if own := getattr(cell, "own_derivatives", ()):
        raise ValueError(
            f"the gradients of cell {cell.name!r} are not those of its values, as its equations have "
            f"{' and '.join(own)}: finite differences say nothing. Compare with the same equations in PyTorch, by "
            "detach() and an autograd.Function"
        )


def _values(layer, steps, batch, random):
    """Name -> array, of x, of each initial state and of each parameter."""
    shapes = [layer.stack.h_shapes(batch), *layer.stack.private_shapes(batch)]
    values = {"x": random.standard_normal((steps, batch, layer.input_size))}
    states = zip(layer.stack.cell.states, shapes, strict=True)
    for name, shape in states:
        drawn = list(map(random.standard_normal, shape)) if isinstance(shape, list) else random.standard_normal(shape)
        values |= _by_layer(name, drawn)
    return values | layer.state_dict()


def _by_layer(name, state):
    """{name: state}; of a state of layers that differ in size {"name, layer 0": array, ...}."""
    if not isinstance(state, list):
        return {name: state}
    return {f"{name}, layer {number}": part for number, part in enumerate(state)}


def _state(values, name):
    """The reverse."""
    return values[name] if name in values else [part for key, part in values.items() if key.startswith(f"{name}, ")]


def _error(gradient, values, loss):
    """How far a gradient is from the loss' differences by these values, relative to the largest of them or 1."""
    expected = _differences(values, loss)
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    return float(np.max(np.abs(gradient - expected), initial=0.0)) / scale


def _sizes(cell, input_size, hidden_size):
    """I and H: what is given, else what the cell's equations need, else 3 and 4."""
    needed = [{one, other} for one, other, _ in cell.parameters.equal]
    number = {name: next((n for pair in needed for n in pair - {name} if name in pair and isinstance(n, int)), None)
              for name in "IH"}  # fmt: skip
    same = {"I", "H"} in needed
    least = max((size for size in cell.parameters.states if isinstance(size, int)), default=0)
    hidden_size = hidden_size or number["H"] or (same and (input_size or number["I"])) or max(4, least)
    return input_size or number["I"] or (hidden_size if same else 3), hidden_size


def _differences(array, loss):
    """The gradient of loss() by the array, whose elements are moved and put back."""
    gradient, flat = np.empty(array.size), array.reshape(-1)
    for number, value in enumerate(flat.copy()):
        ends = []
        for moved in (value + STEP, value - STEP):
            flat[number] = moved
            ends.append(loss())
        flat[number] = value
        gradient[number] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient.reshape(array.shape)
