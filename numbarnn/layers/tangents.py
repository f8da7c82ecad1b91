"""Compute derivatives of higher order of a stack: values and tangents forward, and backward through both.

Each layer is two recurrences of cells that `numbarnn.cells.tracing.tangent` makes. They run on the same engines and
schedules as any other cell. The primal recurrence also returns S, the factors by which the tangent recurrence
multiplies; they are among its inputs. Products that do not recur are computed once for all steps (`tangent_pass`):

    a  = W x                            primal    a, h0, b       -> h, S, zeros
    a' = W x' + W' x + R' h_before      tangent   S, a', h0', b' -> h'

The primal recurrence leaves room for a' behind S, so that both are one array. In backward, the tangent recurrence
returns the gradients of S and a' in one array too, from which the primal recurrence reads them.

Backward goes through the tangent recurrence, which gives the gradients of S, and then through the primal one. The
tangent is linear, so the gradient of <u, y'> is the derivative of backward with dy = u: a Hessian-vector product.
"""

import threading
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from numbarnn.cells.tracing.tangent import equations_of, opened
from numbarnn.common.precision import compute_dtype
from numbarnn.layers import drawn
from numbarnn.layers.kernel_weights import ReadWeights
from numbarnn.layers.planned import Shape
from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.layers.tangent_pass import OpenedLayer, Pass
from numbarnn.weights import parameter_name
from numbarnn.weights.derived import derived_tangents, pulled_back


class Point(NamedTuple):
    """Inputs of a call, its results, a direction, or gradients. None is zero.

    Attributes:
        x: (T, B, I), an array of the engine; for results, y. weights: the flat buffer; None for results.
        states: [layer] -> [h (D, B, P), the other states (D, B, H)], with engines' widths.
    """

    x: Any = None
    states: Any = None
    weights: Any = None


class Tangents:
    """Derivatives of higher order of a `Stack`. Its cells are compiled when they first run.

    Args:
        stack: the `Stack`. take_apart: function that makes an `Opened` of the cell's equations.

    Raises:
        NotImplementedError: the stack's cell has no equations, or has heads and a projection.
    """

    def __init__(self, stack, take_apart=opened):
        self._stack, self.cell = ref(stack), stack.cell
        self.opened = take_apart(equations_of(self.cell))
        self.dtype = np.dtype(compute_dtype(stack.dtype))
        self.xp, D = stack.engine.array_module, stack.directions
        if stack.proj_size and self.cell.heads > 1:
            raise NotImplementedError(
                f"cell {self.cell.name} has heads and a projection, which together have no tangents: leave one out"
            )
        arguments = stack._arguments_here()
        options = {name: arguments[name] for name in ("device", "allow_tf32")} | {"dtype": self.dtype.name}
        options |= {"bidirectional": D == 2, "input_mode": "given", "seed": 0}
        schedule, by_width = stack.schedule.name, {}
        primal = "auto" if schedule == "persistent" else schedule  # which does not return the states of each step
        both = ((self.opened.primal, self.opened.inputs, primal),
                (self.opened.tangent, self.opened.tangent_inputs, schedule))  # fmt: skip
        for H in set(stack.widths):
            by_width[H] = [
                OpenedLayer(
                    type(stack)(cell, D * len(names) * H, H, schedule=own, **options), names, self.opened, self.cell
                )
                for cell, names, own in (both if self.opened.tangent else both[:1])
            ]
        self.recurrences = [by_width[H] for H in stack.widths]  # [layer] -> the primal one, the tangent one
        self.of_thread = threading.local()

    stack = property(lambda self: self._stack(), doc="The `Stack`, which holds this object.")

    def forward(self, at, along, sequences=EVERY_STEP, draws=None, tape=True):
        """Return the results, their tangents, and the tape for `backward`. at: the `Point`. along: the direction, also
        a `Point`. draws: (seed, number) of the training call whose random numbers to draw; None: inference, without
        any. tape: whether backward may follow."""
        stack, passes = self.stack, []
        draws = self._draws(at.x, sequences, draws)
        with stack.engine.activate():
            weights, tangents = weights_by_layer(stack, at.weights, along.weights, self.dtype)
            x, dx = self._ready(at.x, sequences), self._ready(along.x, sequences)
            finals = []
            for layer in range(stack.num_layers):
                x, dx = _masked(draws, layer, x, dx)
                one = Pass(self, layer, weights[layer], tangents[layer], draws, sequences, tape)
                states = (self._states(part, layer) for part in (at.states, along.states))
                x, dx, *final = one.forward(x, dx, *states)
                finals.append(final)
                passes.append(one)
        final, d_final = zip(*finals, strict=True)
        return Point(x, final), Point(dx, d_final), (passes, draws, at.weights, along.weights)

    def backward(self, tape, d_results, d_tangents, of_along=True):
        """Return the gradients of `at` and of `along`, each a `Point`, from those of results and of tangents. Without
        `of_along` the second is unspecified."""
        stack, (passes, draws, flat, direction) = self.stack, tape
        # A gradient of weights that are made of parameters, as of R W_hr, is made of both gradients.
        both = of_along or (direction is not None and bool(stack.space.derived_size or stack.proj_size))
        by_layer = []
        with stack.engine.activate():
            gy, gty = (self._ready(one.x, passes[0].sequences) for one in (d_results, d_tangents))
            for layer in reversed(range(stack.num_layers)):
                g, gt = (self._states(part, layer) for part in (d_results.states, d_tangents.states))
                wanted = of_along or layer > 0, both
                gy, *first, gty, t_states, t_weights = passes[layer].backward(gy, g, gty, gt, wanted)
                t_states = [self._or_zero(*pair) for pair in zip(t_states, first[0], strict=True)]
                gy, gty = _masked(draws, layer, gy, gty)
                by_layer.insert(0, (*first, t_states, t_weights))
            states, weights, t_states, t_weights = map(list, zip(*by_layer, strict=True))
            flat_g, t_flat_g = flat_gradients(stack, flat, direction, weights, t_weights, self.dtype)
            gty = self._or_zero(gty, gy)
        return Point(gy, states, flat_g), Point(gty, t_states, t_flat_g)

    def _or_zero(self, array, like):
        return self.xp.zeros_like(like) if array is None else array

    def _states(self, states, layer):
        """Return [h, the other states] of a layer in the compute dtype."""
        if states is None:
            return [None] * self.opened.num_states
        return [part if part is None else part.astype(self.dtype, copy=False) for part in states[layer]]

    def _draws(self, x, sequences, key):
        """Return a call's random numbers: dropout masks between layers, and masks of R and noise by layer."""
        stack, cell, training = self.stack, self.cell, key is not None
        numbers, (steps, batch) = {"masks": [], "R": [], "noise": []}, x.shape[:2]
        if not (stack.dropout or cell.noise or any(cell.drop_connect)):
            return numbers
        ends = sequences.lengths is not None, sequences.resets is not None
        planned = stack.planned(Shape(steps, batch, *ends), training)
        to = stack.engine.from_host
        with stack.engine.activate():
            call = planned.call(stack.engine.zeros(stack.space.size, stack.dtype), *(key or (0, 0)))
            call = call._replace(problem=replace(call.problem, dtype=self.dtype.name))  # what masks are made of
            if planned.problem.dropping:
                masks = drawn.dropout_masks(call, self.dtype.name, stack.output_widths)
                numbers["masks"] = [to(mask) for mask in masks]
            if training and any(cell.drop_connect):
                masks = drawn.drop_connect_masks(call, self.dtype.name)
                names = [
                    [parameter_name("R", layer, d) for d in range(stack.directions)]
                    for layer in range(stack.num_layers)
                ]
                numbers["R"] = [[to(masks[name]) for name in own] for own in names]
            if cell.noise:
                mean = np.array([one.mean for one in cell.noise])[:, None]
                shapes = [(stack.directions, steps, batch, len(mean), H) for H in stack.widths]
                noise = drawn.noise(call) if training else [np.broadcast_to(mean, shape) for shape in shapes]
                numbers["noise"] = [to(np.ascontiguousarray(one, self.dtype)) for one in noise]
        return numbers

    def _ready(self, x, sequences):
        """Return x in the compute dtype, with zeros beyond sequences' lengths."""
        if x is None:
            return None
        x = x.astype(self.dtype, copy=False)
        if sequences.lengths is None:
            return x
        beyond = np.arange(len(x))[:, None] >= np.asarray(sequences.lengths)
        return self.xp.where(self.stack.engine.from_host(beyond[..., None]), x.dtype.type(0), x)


def _masked(draws, layer, *arrays):
    """Apply the dropout mask between a layer and the one below to arrays; None stays None."""
    if not layer or not draws["masks"]:
        return arrays
    return [one if one is None else one * draws["masks"][layer - 1] for one in arrays]


# ----------------------------------------------------------------------------------------------------------- weights
def weights_by_layer(stack, flat, direction, dtype):
    """Return [layer][direction] -> kind -> what kernels read, see `Pass`, for the weights and for their tangent.
    flat, direction: flat buffers of the weights and of their tangent, or None."""
    kernel_weights = stack.kernel_weights  # those that it finds are shared by threads
    read = ReadWeights(stack.engine, kernel_weights.problem, kernel_weights.no_bias, flat)
    read.derive()
    derived = tangents = None if read.derived is None else read.derived.derived
    if direction is not None and derived is not None:
        tangents = derived_tangents(stack.space, stack.engine, flat, direction, dtype)

    def found(flat, derived, place):
        parts = {} if flat is None else stack.space.pseudo_layer(flat, *place, derived)
        return {kind: one.astype(dtype, copy=False) for kind, one in parts.items()}

    return [
        [[found(*own, (layer, d)) for d in range(stack.directions)] for layer in range(stack.num_layers)]
        for own in ((read.flat, derived), (direction, tangents))
    ]


def flat_gradients(stack, flat, direction, grads, t_grads, dtype):
    """Return the flat gradients of the weights and of their tangents.
    flat, direction: see `weights_by_layer`. grads, t_grads: [layer][direction] -> kind -> array."""
    space, results = stack.space, []
    for by_layer in (grads, t_grads):
        zeros = stack.engine.array_module.zeros
        gradient, of_derived = zeros(space.size, dtype), zeros(space.derived_size, dtype)
        for layer, d in space.sizes:
            derived = space.derived.get((layer, d), {})
            for kind, array in by_layer[layer][d].items():
                if array is not None:
                    parts = [derived[kind]] if kind in derived else space.parts(layer, d, kind)
                    where = slice(parts[0].offset, parts[-1].offset + parts[-1].size)
                    (of_derived if kind in derived else gradient)[where] = array.reshape(-1)
        results.append((gradient, of_derived))
    (gradient, of_derived), (t_gradient, t_of_derived) = results
    if space.derived_size:
        pulled_back(space, stack.engine, flat, direction, (of_derived, t_of_derived), (gradient, t_gradient), dtype)
    return gradient, t_gradient
