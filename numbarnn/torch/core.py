"""Run a call's tensors through the engine. PyTorch's autograd does not look in here."""

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
    "numbarnn computes first and second derivatives, but no third ones, and none by forward mode of forward mode. In "
    "place of the latter take forward mode of reverse mode (torch.func.jacfwd of jacrev, or of grad). A module made "
    "with schedule='loop' has derivatives of every order"
)
NO_SECOND_IN_PROGRAMS = (
    "second derivatives are not computed in programs of torch.compile, torch.export and torch.jit.trace: call the "
    "module itself for them, or make it with schedule='loop'"
)
NO_SECOND_OF_STATES = (
    "with output_states, second derivatives and forward mode are not computed: call the module without output_states, "
    "or make it with schedule='loop'"
)


class CallSettings(NamedTuple):
    """A call's arguments that have no gradients.

    Attributes:
        lengths, resets: (B,) ints and (T, B) bools, tensors or what becomes arrays; or None.
        padding_value: value of y beyond a sequence's length.
        output_states: return the cell states of every step of the last layer.
        training: draw the network's random numbers.
        seed: (1,) int64 on the host, the seed of the random numbers; None without any, and before it is drawn.
    """

    lengths: Any = None
    resets: Any = None
    padding_value: float = 0.0
    output_states: bool = False
    training: bool = False
    seed: Any = None

    def shape_of(self, x, hx):
        """Return the `planned.Shape` of a call with x (T, B, I)."""
        ends = self.lengths is not None, self.resets is not None
        return Shape(*x.shape[:2], *ends, keeps_states=self.output_states, from_zero=hx is None)


class PreparedCall(NamedTuple):
    """An engine's call that lacks only x and the states.

    Attributes:
        calls: the `PlannedCalls`. weights: the flat array. key: seed and number of the random numbers.
        sequences: the `Sequences`. dtype: round results to it; None if they are computed in it.
    """

    network: Any
    calls: PlannedCalls
    weights: Any
    key: tuple = NO_KEY
    sequences: Any = EVERY_STEP
    dtype: torch.dtype | None = None


def prepare(network, settings, x, hx, weights, keep):
    """Return the `PreparedCall` of arguments that `check_tensors` accepts. keep: backward may follow."""
    shape = settings.shape_of(x, hx)
    prepared = prepare_again(network, shape, settings.seed, weights, keep or settings.seed is not None)
    if not (shape.padded or shape.resets or shape.keeps_states):
        return prepared
    with stream_of(x):
        sequences = sequences_of(prepared.calls.engine, settings, x)
    return prepared._replace(sequences=replace(sequences, every_state=shape.keeps_states))


def prepare_again(network, shape, seed, weights, keep=True):
    """Return the `PreparedCall` of a `planned.Shape`, without lengths and resets: backward does not read them."""
    first, draws = weights[0], seed is not None
    calls = network.stack_for(first, draws).planned(shape, keep)
    with stream_of(first):
        flat = _flat(network, weights)
    dtype = None if computes_in(first) is first.dtype else first.dtype
    return PreparedCall(network, calls, flat, (int(seed.item()), 0) if draws else NO_KEY, dtype=dtype)


def sequences_of(engine, settings, x):
    """Check a call's lengths and resets, and return them as `Sequences`."""
    lengths, resets = settings.lengths, settings.resets
    lengths = lengths.detach().cpu().numpy() if isinstance(lengths, torch.Tensor) else lengths
    resets = array_of(resets) if isinstance(resets, torch.Tensor) else resets
    return checked(engine, lengths, resets, settings.padding_value, *x.shape[:2])


def _flat(network, weights):
    """Return all weights as one array of the dtype that the engine computes in."""
    if computes_in(weights[0]) is not weights[0].dtype:
        weights = [gathered(network, weights).detach().float()]
    return weights_of(network, weights)


def _rounded(results, dtype):
    return results if dtype is None else with_each(results, lambda one: one.to(dtype))


def forward_tensors(prepared, x, hx, cx):
    """Return y, hy, cy, the cell states of every step and the reserve; None for those that the call does not have.

    hx: (L*D, B, H), and cx: all N cell states side by side, (L*D, B, N*H); None is zero."""
    dtype = prepared.dtype
    if dtype is not None:
        x, hx, cx = with_each((x, hx, cx), torch.Tensor.float)
    with stream_of(x):
        results, reserve = prepared.calls.forward(prepared.weights, x, (hx, cx), prepared.sequences, prepared.key)
        y, hy, cy, *more = map(tensor_of, results)
    return *_rounded((y, hy, cy, more[0] if more else None), dtype), tensor_of(reserve)


def backward_tensors(prepared, x, weights, reserve, gradients, need, need_states=(True, True)):
    """Return dx, dhx, dcx and the flat dw.

    weights: the parameters now; None: read those of `prepared`. gradients: (dy, dhy, dcy, d_states), tensors or None.
    need: a `programs.backward.Need`. need_states: whether to return dhx and dcx."""
    dtype = prepared.dtype
    if dtype is not None:
        x, gradients = with_each((x, gradients), torch.Tensor.float)
    with stream_of(reserve):
        flat = prepared.weights if weights is None else _flat(prepared.network, weights)
        results = prepared.calls.backward(flat, x, reserve, ResultGrads(*gradients), need, prepared.key)
        dx, *states, dw = map(tensor_of, results)
        dhx, dcx = (one if wanted else None for one, wanted in zip(states, need_states, strict=True))
        return _rounded((dx, dhx, dcx, dw), dtype)


def joined_state_shapes(network, batch):
    """Return the shapes of hx and cx as `forward_tensors` takes them."""
    stack = network.stack
    widths = stack.output_widths[0], network.private * stack.widths[0]
    return [(stack.num_layers * stack.directions, batch, width) for width in widths]


def check_tensors(network, settings, x, hx, cx, weights):
    """Raise ValueError for shapes, dtypes and devices that do not fit: engines do not check them."""
    stack = network.stack
    if x.dim() != 3 or x.shape[2] != stack.input_size or 0 in x.shape:
        raise ValueError(
            f"x must have shape (T, B, I) with T and B of at least 1 and I = {stack.input_size}, but has "
            f"{tuple(x.shape)}"
        )
    for name, state, wanted in zip(("hx", "cx"), (hx, cx), joined_state_shapes(network, x.shape[1]), strict=True):
        if state is not None and state.shape != wanted:
            raise ValueError(f"{name} must have shape {wanted}, but has {tuple(state.shape)}")
    for name, one in (("hx", hx), ("cx", cx), ("weights", weights[0])):
        if one is not None and one.dtype != x.dtype:
            raise ValueError(f"x and {name} must have one dtype, but are {x.dtype} and {one.dtype}")
        if one is not None and one.device != x.device:
            raise ValueError(f"x and {name} must be on one device, but are on {x.device} and {one.device}")
    if settings.output_states:
        keeps_states(stack, True)
