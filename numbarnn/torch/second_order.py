"""`numbarnn::rnn_tangents`: second derivatives and derivatives in forward mode, as one operator and autograd functions.

The tangents y' of a call are its derivative in one direction u of (x, hx, cx, weights). Everything follows from them,
as y' is linear in u (`numbarnn.layers.tangents`):

    forward mode                       y'
    gradient of <dy, y'>               by u: backward of dy; by x, ...: backward's derivative in the direction u
    gradient of <u, backward of dy>    by dy: y'; by x, ...: the same derivative
"""

from typing import List, Sequence  # noqa: UP035 - custom_op of PyTorch 2.5 knows no others

import torch
from torch import Tensor
from torch.library import custom_op

from numbarnn.layers.second_order import by_layer, joined, tangents_of
from numbarnn.layers.tangents import Point
from numbarnn.torch import core
from numbarnn.torch.arrays import array_of, gathered, stream_of, tensor_of
from numbarnn.torch.networks import HALVES, Network
from numbarnn.torch.operators import one_after_another

# of the vmap that autograd itself has (`is_grads_batched=True`), which is not torch.func's
_VMAP_MODE, _BATCHED = map(torch._C._parse_dispatch_key, ("VmapMode", "Batched"))


@custom_op("numbarnn::rnn_tangents", mutates_args=())
def rnn_tangents(
    values: Sequence[Tensor | None],
    direction: Sequence[Tensor | None],
    of_tangents: Sequence[Tensor | None],
    of_results: Sequence[Tensor | None],
    lengths: Tensor | None,
    resets: Tensor | None,
    seed: Tensor | None,
    network: str,
    batch_first: bool,
    passes: int,
) -> List[Tensor]:  # noqa: UP006
    """Return the tangents of y, hy, cy; with 2 passes also the gradients of values; with 3 those of the direction.

    values: x, hx, cx, the flat weights. direction: what they move by; None is zero. of_tangents, of_results: the
    gradients of the tangents of y, hy, cy, and of y, hy, cy themselves. lengths, resets, seed, network, batch_first:
    as of `operators.rnn_forward`."""
    net, x = Network.of_key(network), values[0]
    arguments = values, direction, of_tangents, of_results
    if x.dtype in HALVES:
        arguments = [[one if one is None else one.float() for one in part] for part in arguments]
    values, direction, of_tangents, of_results = arguments
    stack, dtype = net.stack_for(values[0], seed is not None), x.dtype
    with stream_of(x):
        at, along = (_values(net, part, batch_first) for part in (values, direction))
        about = core.About(lengths, resets, batch_first=batch_first)
        sequences = core.sequences_of(stack.engine, about, x)
        draws = None if seed is None else (int(seed.item()), 0)
        _, tangents, tape = tangents_of(stack).forward(at, along, sequences, draws, passes > 1)
        made = [_results(net, stack, tangents.x, tangents.states, batch_first)]
        if passes > 1:
            pair = (_values(net, part, batch_first) for part in (of_results, of_tangents))
            found = tangents_of(stack).backward(tape, *pair, passes > 2)
            made += [
                [*_results(net, stack, one.x, one.states, batch_first), one.weights] for one in found[: passes - 1]
            ]
        like = x.new_empty(0)
        return [like.clone() if one is None else tensor_of(one).to(dtype) for part in made for one in part]


def _values(net, tensors, batch_first):
    """Return the `Point` of x (or y), hx, cx and the flat weights, if these are there; None is zero."""
    x, hx, cx, *weights = tensors
    x = x if x is None or not batch_first else x.transpose(0, 1)
    h, c = array_of(hx), array_of(cx)
    return Point(array_of(x), by_layer(net.stack, h, c), array_of(weights[0]) if weights else None)


def _results(net, stack, y, states, batch_first):
    h, c = joined(stack, states)
    return [y.swapaxes(0, 1).copy() if batch_first else y, h, c]


@rnn_tangents.register_fake
def _(values, direction, of_tangents, of_results, lengths, resets, seed, network, batch_first, passes):
    net, x = Network.of_key(network), values[0]
    of_h, of_c = core.joined_state_shapes(net, x.shape[0 if batch_first else 1])
    states = [x.new_empty(of_h), x.new_empty(of_c if net.private else 0)]
    made = [x.new_empty((*x.shape[:2], net.stack.directions * net.stack.output_widths[-1])), *states]
    for _ in range(passes - 1):
        made += [x.new_empty(x.shape), *(torch.empty_like(one) for one in states), x.new_empty(net.size)]
    return made


@rnn_tangents.register_vmap
def _(info, in_dims, *arguments):
    return tuple(map(list, one_after_another(rnn_tangents, info, in_dims, *arguments)))


def is_vmapped():
    """Return whether one tensor may stand for several."""
    return torch._C._are_functorch_transforms_active() or torch._C._dispatch_tls_is_dispatch_key_included(_VMAP_MODE)


def each(function, tensors):
    """Return a function's results for tensors or Nones; the function must support torch.func's vmap.
    Under autograd's vmap a tensor stands for several: the function is called for one after another."""
    several = [one is not None and torch._C._dispatch_keys(one).has(_BATCHED) for one in tensors]
    if not any(several):
        return function(*tensors)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    apart = [torch._remove_batch_dim(one, level, -1, 0).unbind() if more else one
             for one, more in zip(tensors, several, strict=True)]  # fmt: skip
    count = len(apart[several.index(True)])
    all_results = [
        function(*one) for one in zip(*(part if type(part) is tuple else [part] * count for part in apart), strict=True)
    ]
    return [torch._add_batch_dim(torch.stack(results), 0, level) for results in zip(*all_results, strict=True)]


class About:
    """A call's arguments that are no tensors.

    Attributes:
        network: its key. batch_first: of x.
        options: of `rnn_backward`, behind the key; for `Second` the number of passes of `rnn_tangents`."""

    def __init__(self, network, batch_first, options=()):
        self.network, self.batch_first, self.options = network, batch_first, options

    def run(self, ends, values, direction, of_tangents, of_results=(None,) * 3, passes=2):
        """Call `Second`.

        ends: lengths, resets and seed. values, direction: x, hx, cx and the weights, or their tangents.

        Returns:
            lists: the tangents of y, hy, cy; the gradients of values; with 3 passes those of the direction."""
        guarded = [one if one is None else Guarded.apply(one) for one in (*self.joined(values), *of_tangents)]
        arguments = *guarded[:4], *self.joined(direction), *guarded[4:], *of_results
        about = About(self.network, self.batch_first, passes)
        found = each(lambda *tensors: Second.apply(about, *ends, *tensors), arguments)
        found = [one if one.numel() else None for one in found]
        return found[:3], *(self._apart(part, len(values) - 3) for part in (found[3:7], found[7:])[: passes - 1])

    def joined(self, tensors):
        """Return x, hx, cx and the flat weights; where some weights have no tangent, it is zero."""
        *others, weights = *tensors[:3], tensors[3:]
        others = [one if one is None or one.numel() else None for one in others]
        there = [one for one in weights if one is not None and one.numel()]
        if not there:
            return [*others, None]
        network = Network.of_key(self.network)
        if len(there) < len(weights):
            parts = zip(weights, network.parts, strict=True)
            weights = [there[0].new_zeros(part.shape) if one is None else one for one, part in parts]
        return [*others, gathered(network, weights)]

    def _apart(self, gradients, count):
        """Return the gradients of x, hx, cx and of each of the weights, or of the flat one."""
        *others, dw = gradients
        if count == 1:
            return [*others, dw]
        parts = Network.of_key(self.network).parts
        return [*others, *(dw[one.offset : one.offset + one.size].view(one.shape) for one in parts)]


class Guarded(torch.autograd.Function):
    """A tensor by which there are no further gradients: it raises if one is asked for, and not before."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, _):
        raise NotImplementedError(core.NO_THIRD_ORDER)

    @staticmethod
    def jvp(ctx, _):
        raise NotImplementedError(core.NO_THIRD_ORDER)


class FunctionOfTensors(torch.autograd.Function):
    """A function of an `About` and tensors, which it saves; without derivatives in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.about, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)  # else jvp under vmap fails before it can say why

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(core.NO_THIRD_ORDER)


class Second(FunctionOfTensors):
    """The results of `rnn_tangents` with its gradients, as a tuple. They have gradients by the direction and by the
    gradients of results, in which they are linear; the other arguments are `Guarded`.

    Args of apply: an `About`; lengths, resets, seed; the four values, the direction's four, and the gradients of the
        tangents of y, hy, cy and of y, hy, cy."""

    @staticmethod
    def forward(about, lengths, resets, seed, *tensors):
        parts = [list(tensors[first:last]) for first, last in ((0, 4), (4, 8), (8, 11), (11, 14))]
        options = lengths, resets, seed, about.network, about.batch_first, about.options
        return tuple(torch.ops.numbarnn.rnn_tangents(*parts, *options))

    @staticmethod
    def backward(ctx, *gradients):
        ends, values, of_tangents = ctx.saved_tensors[:3], ctx.saved_tensors[3:7], ctx.saved_tensors[11:14]
        of_results, of_direction = ctx.about.run(ends, values, gradients[3:7], of_tangents, gradients[:3])
        found = _there([*of_direction, *of_results], (*ctx.saved_tensors[7:11], *ctx.saved_tensors[14:]))
        return *[None] * 8, *found[:4], None, None, None, *found[4:]


class ForwardTangents(FunctionOfTensors):
    """The tangents of y, hy, cy.

    Args of apply: an `About`; lengths, resets, seed; x, hx, cx, weights; their tangents."""

    @staticmethod
    def forward(about, lengths, resets, seed, *tensors):
        half, none = len(tensors) // 2, [None] * 3
        both = [about.joined(part) for part in (tensors[:half], tensors[half:])]
        options = lengths, resets, seed, about.network, about.batch_first, 1
        return tuple(torch.ops.numbarnn.rnn_tangents(*both, none, none, *options))

    @staticmethod
    def backward(ctx, *of_tangents):
        ends, tensors = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        half = len(tensors) // 2
        _, of_values, of_direction = ctx.about.run(ends, tensors[:half], tensors[half:], of_tangents, passes=3)
        return *[None] * 4, *_there([*of_values, *of_direction], tensors)


class BackwardAgain(torch.autograd.Function):
    """dx, dhx, dcx and the weights' gradients, which have gradients in turn.

    Args of apply: an `About`; the gradients, if they are known, or None; lengths, resets, seed, the reserve, d_states;
        dy, dhy, dcy; x, hx, cx, weights. If `rnn_backward` computes them, dw is one flat tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(about, known, lengths, resets, seed, reserve, d_states, *tensors):
        if known is not None:
            return known
        (dy, dhy, dcy, x, _, _), weights = tensors[:6], list(tensors[6:])
        arguments = dy, dhy, dcy, d_states, x, weights, reserve, seed, about.network
        return torch.ops.numbarnn.rnn_backward(*arguments, *about.options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.about, _, lengths, resets, seed, _, d_states, *tensors = inputs
        ctx.has_states = d_states is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lengths, resets, seed, *tensors)
        ctx.save_for_forward(lengths, resets, seed, *tensors)

    @staticmethod
    def backward(ctx, *direction):
        ends, gradients, values = _parts(ctx)
        of_gradients, of_values = ctx.about.run(ends, values, direction, gradients)
        return *[None] * 7, *_there([*of_gradients, *of_values], (*gradients, *values))

    @staticmethod
    def jvp(ctx, *tangents):
        ends, gradients, values = _parts(ctx)
        _, found = ctx.about.run(ends, values, tangents[10:], gradients, tangents[7:10])
        like, flat = values[0].new_zeros(0), gathered(Network.of_key(ctx.about.network), found[3:])
        return tuple(like if one is None else one for one in (*found[:3], flat))


def _parts(ctx):
    """Return lengths, resets, seed; the gradients of results; and the values of a `BackwardAgain`."""
    if ctx.has_states:
        raise NotImplementedError(core.NO_SECOND_OF_STATES)
    saved = ctx.saved_tensors
    return saved[:3], saved[3:6], saved[6:]


def _there(gradients, tensors):
    """Return the gradients of those tensors that there are."""
    return [one if tensor is not None else None for one, tensor in zip(gradients, tensors, strict=True)]
