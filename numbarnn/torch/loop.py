"""Run a module's layers as a loop over time of PyTorch's operations (schedule="loop").

The loop is slow, but allows all that PyTorch's operations allow: derivatives of any order and mode, hooks,
`torch.jit.trace`, `torch.onnx.export` (for a fixed number of steps), devices without an engine.
`numbarnn.weights.unfused` interprets the equations. Training draws the same random numbers as the engines.
"""

import operator
from dataclasses import replace

import torch
from torch import Tensor

from numbarnn.cells.tracing.graph import OPERATORS
from numbarnn.layers import drawn
from numbarnn.layers.planned import PlannedCalls, Shape
from numbarnn.torch.calls import MAX_SEED
from numbarnn.weights import parameter_name
from numbarnn.weights.unfused import UnfusedLayer

_NAMES = {"absolute": "abs", "clip": "clamp", "modulo": "remainder"}
_LINEAR_FROM = 40.0  # above it PyTorch returns x for softplus(x); above its default, 20, the error shows in float64


class TensorLibrary:
    """PyTorch's functions as `numbarnn.weights.unfused` calls them. like: a tensor of the dtype and device to use."""

    linear, split = staticmethod(torch.nn.functional.linear), staticmethod(lambda x, sizes: x.split(sizes, -1))

    def __init__(self, like):
        self._like = like

    def constant(self, array):
        return torch.as_tensor(array, dtype=self._like.dtype, device=self._like.device)

    def concatenate(self, arrays, axis=0):
        return torch.cat(list(arrays), axis)

    def spread(self, x, like, width):
        """Expand a number or tensor to (B, width), with B of `like`; to (width,) if `like` is None."""
        shape = (width,) if like is None else (like.shape[0], width)
        return x.expand(shape) if isinstance(x, Tensor) else self._like.new_full(shape, x)

    def diagonal(self, matrix, count):
        """Put `count` equal parts of the rows as blocks on a diagonal."""
        return torch.block_diag(*matrix.chunk(count))

    def function(self, op):
        """Return PyTorch's function for an operation of `numbarnn.cells.tracing.graph`."""
        if op in OPERATORS:
            return getattr(operator, op)
        functions = {
            "row_sum": lambda a: a.sum(-1, keepdim=True),
            "row_max": lambda a: a.detach().amax(-1, keepdim=True),
            "stop_gradient": Tensor.detach,
            "custom_derivative": self._tensors(_with_derivative),
            "softplus": lambda a: torch.nn.functional.softplus(a, threshold=_LINEAR_FROM),
            "normal_cdf": torch.special.ndtr,
            "divide": operator.truediv,
            "power": operator.pow,
        }
        name = _NAMES.get(op, op)
        function = functions.get(op) or getattr(torch, name, None) or getattr(torch.nn.functional, name)
        return self._tensors(function) if op in ("maximum", "minimum", "where") else function

    def _tensors(self, function):
        """Let a function of tensors take numbers too."""
        return lambda *values: function(*(v if isinstance(v, Tensor) else self._like.new_tensor(v) for v in values))


def _with_derivative(value, *pairs):
    """Return a value whose derivative by each x is that of the pairs x, derivative."""
    linear = sum(derivative.detach() * x for x, derivative in zip(pairs[::2], pairs[1::2], strict=True))
    return value.detach() + linear - linear.detach()


class _Draws:
    """The random numbers that an engine would draw in a call.

    Attributes:
        drop: name of an R -> its mask. noise: [layer] -> (D, T, B, N, H).
    """

    def __init__(self, network, settings, shape, library, dtype):
        self.drop, self.noise = {}, []
        if settings.training and network.draws:
            stack, dtype = network.stack, "float64" if dtype == "float64" else "float32"  # drawn as engines compute
            calls = PlannedCalls(stack, Shape(*shape), training=True)
            call = calls.call(stack.engine.zeros(stack.space.size, stack.dtype), int(settings.seed[0]))
            call = call._replace(problem=replace(call.problem, dtype=dtype))
            self.noise = [library.constant(one) for one in drawn.noise(call)]
            if any(stack.cell.drop_connect):
                masks = drawn.drop_connect_masks(call, dtype)
                self.drop = {name: library.constant(one) for name, one in masks.items()}


class _Ends:
    """Masks of the steps at which sequences end and restart, from a `core.CallSettings`. x: (T, B, I)."""

    def __init__(self, settings, x):
        self.steps, self._there, self._resets = len(x), None, None
        if settings.lengths is not None:
            lengths = torch.as_tensor(settings.lengths, device=x.device)
            self._there = (torch.arange(len(x), device=x.device)[:, None] < lengths)[..., None]
        if settings.resets is not None:
            self._resets = torch.as_tensor(settings.resets, device=x.device).bool()[..., None]
            if self._there is not None:  # beyond a sequence's end its state stays as it is
                self._resets = self._resets & self._there

    def order(self, direction):
        """Return the steps in the order in which a direction computes them."""
        return range(self.steps - 1, -1, -1) if direction else range(self.steps)

    def before(self, t, direction, states):
        """Return the states that step t reads: zero where a sequence restarts."""
        restart = t + 1 if direction else t  # a backward direction crosses the start of step t + 1
        if self._resets is None or restart >= self.steps:
            return states
        return [torch.where(self._resets[restart], torch.zeros_like(one), one) for one in states]

    def after(self, t, states, new):
        """Return the states after step t: the old ones where the sequence has no such step."""
        if self._there is None:
            return new
        return [torch.where(self._there[t], one, old) for one, old in zip(new, states, strict=True)]

    def filled(self, y, value):
        """Set y (T, B, ...) to a value in steps beyond a sequence's end."""
        return y if self._there is None else torch.where(self._there, y, y.new_tensor(value))

    def read(self, x):
        """Set x to zero in steps beyond a sequence's end, where it may hold anything."""
        return x if self._there is None else torch.where(self._there, x, torch.zeros_like(x))


def run(network, weights, x, state, settings):
    """Return [y, the final state, with `output_states` the cell states of every step].

    network: the `Network`. weights: its parameters. x: (T, B, I). state: as in `checks`; None is zero."""
    stack, first = network.stack, weights[0]
    if settings.training and network.draws and settings.seed is None:
        settings = settings._replace(seed=torch.randint(MAX_SEED, (1,)))
    library, ends, D = TensorLibrary(first), _Ends(settings, x), stack.directions
    draws = _Draws(network, settings, x.shape[:2], library, str(first.dtype).removeprefix("torch."))
    arrays = dict(zip((part.name for part in network.parts), weights, strict=True))
    finals, every, y = [], None, ends.read(x)
    for layer in range(stack.num_layers):
        results = []
        for direction in range(D):
            parameters = {
                name: arrays[part.name].reshape(-1)[where.start - part.offset : where.stop - part.offset].reshape(shape)
                for name, (part, where, shape) in network.space.blocks[layer, direction].items()
            }
            drop = draws.drop.get(parameter_name("R", layer, direction))
            one = UnfusedLayer(library, stack, layer, direction, parameters, drop)
            noise = draws.noise[layer][direction] if draws.noise else None
            results.append(_over_time(one, y, _initial(stack, state, layer, direction, y), noise, ends, direction))
        outputs, final = zip(*results, strict=True)
        y, *every = (torch.cat(parts, -1) for parts in zip(*outputs, strict=True))
        y = ends.filled(y, 0.0)
        finals.append([torch.stack(parts) for parts in zip(*final, strict=True)])
    sizes = [set(own) for own in stack.state_sizes]
    final = [
        torch.cat(parts) if len(own) == 1 else list(parts)
        for parts, own in zip(zip(*finals, strict=True), sizes, strict=True)
    ]
    y, *every = (ends.filled(one, settings.padding_value) for one in (y, *every))
    return [y, tuple(final), tuple(every)][: 3 if settings.output_states else 2]


def _initial(stack, state, layer, direction, x):
    """Return the initial states of one layer and direction, each (B, H)."""
    D, initial = stack.directions, []
    for number, sizes in enumerate(stack.state_sizes):
        one = None if state is None else state[number]
        if one is None:
            initial.append(x.new_zeros(x.shape[1], sizes[layer]))
        else:
            initial.append(one[layer * D + direction] if isinstance(one, Tensor) else one[layer][direction])
    return initial


def _over_time(layer, x, states, noise, ends, direction):
    """Run one layer in one direction: return [state] of every step, each (T, B, H), and the final states."""
    gates_of_x, steps = layer.gates_of_x(x), {}
    for t in ends.order(direction):
        states = ends.before(t, direction, states)
        drawn_now = None if noise is None else noise[t].unbind(1)
        new = layer.step(gates_of_x[t], states, drawn_now)
        states, steps[t] = ends.after(t, states, new), new
    return [torch.stack(one) for one in zip(*(steps[t] for t in range(len(x))), strict=True)], states
