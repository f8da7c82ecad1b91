"""Run a call's tensors through the engine, for operators and the eager function; autograd does not look in here."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from numbarnn.layers.checks import keeps_states
from numbarnn.layers.planned import PlannedCalls, Shape
from numbarnn.layers.sequences import EVERY_STEP, checked
from numbarnn.programs.backward import Given
from numbarnn.programs.states import with_each
from numbarnn.torch.arrays import array_of, gathered, stream_of, tensor_of, weights_of
from numbarnn.torch.networks import computes_in

NO_THIRD_ORDER = (
    "numbarnn computes first and second derivatives, and this is a derivative of a second one, or a second one in "
    "forward mode alone: take reverse mode inside (torch.func.jacrev, or grad), or make the module with "
    "schedule='loop', which has derivatives of every order"
)
NO_SECOND_IN_PROGRAMS = (
    "second derivatives are not computed in programs of torch.compile, torch.export and torch.jit.trace: call the "
    "module itself for them, or make it with schedule='loop'"
)
NO_SECOND_OF_STATES = (
    "second derivatives by the cell states of every step (output_states) are not computed: leave them out, or make the "
    "module with schedule='loop'"
)


class About(NamedTuple):
    """A call's arguments besides tensors that have gradients.

    Attributes:
        lengths: (B,) ints, resets: (T, B) bools, or (B, T) with `batch_first`: tensors on the host or the device, or
            convertible to arrays; or None.
        padding_value: fills y beyond a sequence's length. batch_first: x and y are (B, T, ...).
        output_states: return the cell states of every step of the last layer.
        training: draw the network's random numbers; there are gradients without it too.
        seed: (1,) int64, a tensor on the host, if random numbers are drawn; else, and until it is drawn, None.
    """

    lengths: Any = None
    resets: Any = None
    padding_value: float = 0.0
    batch_first: bool = False
    output_states: bool = False
    training: bool = False
    seed: Any = None

    def shape_of(self, x, hx):
        """Return the `planned.Shape` of a call."""
        steps, batch = x.shape[1::-1] if self.batch_first else x.shape[:2]
        ends = self.lengths is not None, self.resets is not None
        return Shape(steps, batch, *ends, self.batch_first, self.output_states, hx is None)


class PreparedCall(NamedTuple):
    """A call of the engine, ready for its arrays.

    Attributes:
        calls: the `PlannedCalls`. call: the `layers.calls.Call`, which has the weights.
        sequences: the `Sequences`. dtype: results are rounded to it; None if they are computed in it.
    """

    calls: PlannedCalls
    call: Any
    sequences: Any = EVERY_STEP
    dtype: torch.dtype | None = None


def prepare(network, about, x, hx, weights, keep):
    """Return the `PreparedCall` call of arguments that `check_tensors` has accepted; keep: backward may follow."""
    shape = about.shape_of(x, hx)
    prepared = prepare_again(network, shape, about.seed, weights, keep or about.seed is not None)
    if not (shape.padded or shape.resets or shape.keeps_states):
        return prepared
    sequences = EVERY_STEP
    with stream_of(x):
        if shape.padded or shape.resets:
            sequences = sequences_of(prepared.call.engine, about, x)
    return prepared._replace(sequences=replace(sequences, every_state=True) if shape.keeps_states else sequences)


def sequences_of(engine, about, x):
    """Return the `Sequences` of a call's lengths and resets, checked."""
    lengths, resets = about.lengths, about.resets
    lengths = lengths.detach().cpu().numpy() if isinstance(lengths, torch.Tensor) else lengths
    resets = array_of(resets) if isinstance(resets, torch.Tensor) else resets
    steps, batch = x.shape[1::-1] if about.batch_first else x.shape[:2]
    return checked(engine, lengths, resets, about.padding_value, steps, batch, about.batch_first)


def prepare_again(network, shape, seed, weights, reserves=True):
    """Return the `PreparedCall` call of a `planned.Shape` and a seed, as `About` has it, for backward."""
    first, draws = weights[0], seed is not None
    calls = network.planned_calls(network.stack_for(first, draws), shape, reserves)
    with stream_of(first):
        call = calls.call(_flat(network, weights), int(seed.item()) if draws else 0)
    return PreparedCall(calls, call, EVERY_STEP, None if computes_in(first) is first.dtype else first.dtype)


def _flat(network, weights):
    """Return all weights as one array of the compute dtype."""
    if computes_in(weights[0]) is not weights[0].dtype:
        weights = [gathered(network, weights).detach().float()]
    return weights_of(network, weights)


def _rounded(results, dtype):
    """Return results in a call's dtype, None if they are computed in it."""
    return results if dtype is None else with_each(results, lambda one: one.to(dtype))


def forward_tensors(network, prepared, x, hx, cx):
    """Return y, hy, cy, all cell states and the reserve.

    cy is None if h is the only state, cell states unless they are wanted, the reserve unless backward may follow.

    Args:
        hx, cx: (L*D, B, H), of cx N H wide; for layers that differ in size side by side, (D, B, sum of H); None: zero.
    """
    calls, call, sequences, dtype = prepared
    if dtype is not None:
        x, hx, cx = with_each((x, hx, cx), torch.Tensor.float)
    with stream_of(x):
        if network.uneven:
            x, hx, cx = array_of(x), *layers_apart(network, array_of(hx), array_of(cx))
        (y, hy, cy, *more), reserve = calls.forward(call, x, (hx, cx), sequences)
        if network.uneven:
            hy, cy = (joined_layers(network.stack, calls.engine, one) for one in (hy, cy))
        results = tensor_of(y), tensor_of(hy), tensor_of(cy), tensor_of(more[0]) if more else None
        return *_rounded(results, dtype), tensor_of(reserve)


def backward_tensors(network, prepared, x, weights, reserve, gradients, need, need_states=(True, True)):
    """Return dx, dhx, dcx, flat dw; see `PlannedCalls.backward`. States as in `forward_tensors`.

    Args:
        prepared: of the forward call, whose seed it has.
        x: None if no gradients of parameters are needed, or the reserve has it.
        weights: unchanged since forward; None: those that `prepared` has.
        gradients: (dy, dhy, dcy, d_states), tensors or None.
        need: a `Need`. need_states: whether dhx and dcx are wanted; unwanted ones are None.
    """
    calls, call, _, dtype = prepared
    if dtype is not None:
        x, gradients = with_each((x, gradients), torch.Tensor.float)
    with stream_of(reserve):
        flat = call.weights.parameters if weights is None else _flat(network, weights)
        if flat is not call.weights.parameters:
            call = calls.call(flat, call.seed)
        if network.uneven:
            x, reserve, dy, dhy, dcy, d_states = map(array_of, (x, reserve, *gradients))
            gradients = dy, *layers_apart(network, dhy, dcy), d_states
        dx, *states, dw = calls.backward(call, x, reserve, Given(*gradients), need)
        if network.uneven:
            states = [joined_layers(network.stack, calls.engine, one) for one in states]
        dhx, dcx = [tensor_of(one) if wanted else None for one, wanted in zip(states, need_states, strict=True)]
        return _rounded((tensor_of(dx), dhx, dcx, tensor_of(dw)), dtype)


# ------------------------------------------------------------------------------- states of layers that differ in size
def joined_state_shapes(network, batch):
    """Return the shapes of h and of all cell states together, as `forward_tensors` takes them."""
    stack, D, N = network.stack, network.stack.directions, network.private
    if network.uneven:
        return [(D, batch, width) for width in (sum(stack.output_widths), N * sum(stack.widths))]
    return [(stack.num_layers * D, batch, width) for width in (stack.output_widths[0], N * stack.widths[0])]


def layers_apart(network, h, c):
    """Split arrays of h and of all cell states, side by side, into the engines' form: lists of one per layer."""
    states = []
    for state, widths in (
        (h, network.stack.output_widths),
        (c, [network.private * one for one in network.stack.widths]),
    ):
        ends = np.cumsum(widths).tolist()
        parts = zip(ends, widths, strict=True)
        states.append(None if state is None else [state[:, :, end - width : end].copy() for end, width in parts])
    return states


def joined_layers(stack, engine, state):
    """Join one state's layers, the reverse of `layers_apart`.
    It also takes h of one width in all layers, as with a projection, an array (L*D, B, P) there."""
    if state is None:
        return None
    if type(state) is not list:
        state = engine.array_module.split(state, len(state) // stack.directions)
    return engine.array_module.concatenate(state, axis=2)


def check_tensors(network, about, x, hx, cx, weights):
    """Raise ValueError for shapes, dtypes and devices that do not go together: engines do not check them."""
    stack = network.stack
    if x.dim() != 3 or x.shape[2] != stack.input_size or 0 in x.shape:
        letters = "(B, T, I)" if about.batch_first else "(T, B, I)"
        raise ValueError(
            f"x must have shape {letters} with T and B of at least 1 and I = {stack.input_size}, but has "
            f"{tuple(x.shape)}"
        )
    if hx is not None or cx is not None:
        shapes = joined_state_shapes(network, x.shape[0 if about.batch_first else 1])
        for name, state, wanted in zip(("hx", "cx"), (hx, cx), shapes, strict=True):
            if state is None:
                continue
            if state.shape != wanted:
                raise ValueError(f"{name} must have shape {wanted}, but has {tuple(state.shape)}")
            _alike(name, state, x)
    _alike("weights", weights[0], x)
    if about.output_states:
        keeps_states(stack, True)


def _alike(name, tensor, x):
    if tensor.dtype != x.dtype:
        raise ValueError(f"x and {name} must have one dtype, but are {x.dtype} and {tensor.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"x and {name} must be on one device, but are on {x.device} and {tensor.device}")
