"""Run a call's tensors through the engine, for operators and the eager function; autograd does not look in here."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from numbarnn.layers.checks import keeps_states
from numbarnn.layers.planned import NO_KEY, PlannedCalls, Shape
from numbarnn.layers.sequences import EVERY_STEP, checked
from numbarnn.programs.backward import ResultGrads
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
        lengths, resets: (B,) ints, (T, B) bools, or (B, T) with `batch_first`: tensors, what becomes arrays, or None.
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
        calls: the `PlannedCalls`. weights: the flat array. key: seed and number for random numbers.
        sequences: the `Sequences`. dtype: results are rounded to it; None if they are computed in it.
    """

    calls: PlannedCalls
    weights: Any
    key: tuple = NO_KEY
    sequences: Any = EVERY_STEP
    dtype: torch.dtype | None = None


def prepare(network, about, x, hx, weights, keep):
    """Return the `PreparedCall` of arguments that `check_tensors` has accepted; keep: backward may follow."""
    shape = about.shape_of(x, hx)
    prepared = prepare_again(network, shape, about.seed, weights, keep or about.seed is not None)
    if not (shape.padded or shape.resets or shape.keeps_states):
        return prepared
    with stream_of(x):
        sequences = sequences_of(prepared.calls.engine, about, x)
    return prepared._replace(sequences=replace(sequences, every_state=shape.keeps_states))


def sequences_of(engine, about, x):
    """Return the `Sequences` of a call's lengths and resets, checked."""
    lengths, resets = about.lengths, about.resets
    lengths = lengths.detach().cpu().numpy() if isinstance(lengths, torch.Tensor) else lengths
    resets = array_of(resets) if isinstance(resets, torch.Tensor) else resets
    steps, batch = x.shape[1::-1] if about.batch_first else x.shape[:2]
    return checked(engine, lengths, resets, about.padding_value, steps, batch, about.batch_first)


def prepare_again(network, shape, seed, weights, reserves=True):
    """Return the `PreparedCall` of a `planned.Shape` and a seed, as `About` has it, for backward."""
    first, draws = weights[0], seed is not None
    calls = network.stack_for(first, draws).planned(shape, reserves)
    with stream_of(first):
        flat = _flat(network, weights)
    dtype = None if computes_in(first) is first.dtype else first.dtype
    return PreparedCall(calls, flat, (int(seed.item()), 0) if draws else NO_KEY, dtype=dtype)


def _flat(network, weights):
    """Return all weights as one array of the compute dtype."""
    if computes_in(weights[0]) is not weights[0].dtype:
        weights = [gathered(network, weights).detach().float()]
    return weights_of(network, weights)


def _rounded(results, dtype):
    """Return results in a call's dtype, None if they are computed in it."""
    return results if dtype is None else with_each(results, lambda one: one.to(dtype))


def forward_tensors(prepared, x, hx, cx):
    """Return y, hy, cy, all cell states and the reserve; None for what there is not, or nobody asked for.
    hx, cx: (L*D, B, H), of cx N H wide; None is zero."""
    calls, weights, key, sequences, dtype = prepared
    if dtype is not None:
        x, hx, cx = with_each((x, hx, cx), torch.Tensor.float)
    with stream_of(x):
        results, reserve = calls.forward(weights, x, (hx, cx), sequences, key)
        y, hy, cy, *more = map(tensor_of, results)
    return *_rounded((y, hy, cy, more[0] if more else None), dtype), tensor_of(reserve)


def backward_tensors(network, prepared, x, weights, reserve, gradients, need, need_states=(True, True)):
    """Return dx, dhx, dcx, flat dw; see `PlannedCalls.backward`. States as in `forward_tensors`.

    prepared: of the forward call. weights: unchanged since then; None: those that `prepared` has. gradients: (dy, dhy,
    dcy, d_states), tensors or None. need_states: whether dhx and dcx are wanted."""
    calls, flat, key, _, dtype = prepared
    if dtype is not None:
        x, gradients = with_each((x, gradients), torch.Tensor.float)
    with stream_of(reserve):
        flat = flat if weights is None else _flat(network, weights)
        dx, *states, dw = map(tensor_of, calls.backward(flat, x, reserve, ResultGrads(*gradients), need, key))
        dhx, dcx = (one if wanted else None for one, wanted in zip(states, need_states, strict=True))
        return _rounded((dx, dhx, dcx, dw), dtype)


def joined_state_shapes(network, batch):
    """Return the shapes of h and of all cell states together, as `forward_tensors` takes them."""
    stack = network.stack
    widths = stack.output_widths[0], network.private * stack.widths[0]
    return [(stack.num_layers * stack.directions, batch, width) for width in widths]


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
            if state is not None and state.shape != wanted:
                raise ValueError(f"{name} must have shape {wanted}, but has {tuple(state.shape)}")
            _alike(name, x if state is None else state, x)
    _alike("weights", weights[0], x)
    if about.output_states:
        keeps_states(stack, True)


def _alike(name, tensor, x):
    if tensor.dtype != x.dtype:
        raise ValueError(f"x and {name} must have one dtype, but are {x.dtype} and {tensor.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"x and {name} must be on one device, but are on {x.device} and {tensor.device}")
