"""A whole network as three operators that PyTorch does not look into.

`torch.compile`, `torch.export`, `torch.func` and tensors without numbers (device "meta") see a call as one operator
with known shapes, so the time to compile does not depend on T. A network is known by its key (`networks`).

    y, hy, cy, states, reserve = rnn_forward(x, hx, cx, weights, lengths, resets, seed, network, ...)
    dx, dhx, dcx, dw           = rnn_backward(dy, dhy, dcy, d_states, x, weights, reserve, ...)
    tangents, gradients        = rnn_tangents(values, direction, ...)

States are as in `core.forward_tensors`. Absent results have no elements. Results share no memory.
"""

from functools import partial
from typing import List, Sequence  # noqa: UP035 - custom_op of PyTorch 2.5 knows no others

import torch
from torch import Tensor
from torch.amp.autocast_mode import _cast as cast
from torch.library import custom_op

from numbarnn.layers import planned
from numbarnn.layers.second_order import by_layer, joined, tangents_of
from numbarnn.layers.tangents import Point
from numbarnn.programs.backward import Need
from numbarnn.torch import core
from numbarnn.torch.arrays import array_of, gradients_of, stream_of, tensor_of
from numbarnn.torch.networks import DEVICES, DTYPES, HALVES, Network, computes_in


# ------------------------------------------------------------------------------------------------------------ forward
@custom_op("numbarnn::rnn_forward", mutates_args=())
def rnn_forward(
    x: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], lengths: Tensor | None,
    resets: Tensor | None, seed: Tensor | None, network: str, padding_value: float, every_state: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, hy, cy, all cell states and the reserve. hx, cx: as of `core.forward_tensors`. keep: for backward."""
    settings = core.CallSettings(lengths, resets, padding_value, every_state, seed=seed)
    net = Network.of_key(network)
    core.check_tensors(net, settings, x, hx, cx, weights)
    *results, reserve = core.forward_tensors(core.prepare(net, settings, x, hx, weights, keep), x, hx, cx)
    reserve = reserve if keep else None

    def own(result):
        """Copy a result that is a part of the reserve."""
        inside = None not in (result, reserve) and 0 <= result.data_ptr() - reserve.data_ptr() < reserve.nbytes
        return result.clone() if inside else result

    y, hy, cy, states = map(own, results)
    return y, hy, _nothing(x, cy), _nothing(x, states), _nothing(x, reserve, torch.uint8)


def _nothing(like, result, dtype=None):
    """Return a result, or a tensor without elements for None."""
    return like.new_empty(0, dtype=dtype) if result is None else result


@rnn_forward.register_fake
def _(x, hx, cx, weights, lengths, resets, seed, network, padding_value, every_state, keep):
    net = Network.of_key(network)
    stack, shape = net.stack, core.CallSettings(lengths, resets).shape_of(x, hx)
    y = x.new_empty((*x.shape[:2], stack.directions * stack.output_widths[-1]))
    of_h, of_c = core.joined_state_shapes(net, shape.batch)
    size = planned.reserve_size(stack, shape, dtype=DTYPES[computes_in(x)]) if keep else 0
    width = stack.directions * net.private * stack.widths[-1]
    states = x.new_empty((*x.shape[:2], width) if every_state else 0)
    cy, reserve = x.new_empty(of_c if net.private else 0), x.new_empty(size, dtype=torch.uint8)
    return y, x.new_empty(of_h), cy, states, reserve


# ----------------------------------------------------------------------------------------------------------- backward
@custom_op("numbarnn::rnn_backward", mutates_args=())
def rnn_backward(
    dy: Tensor | None, dhy: Tensor | None, dcy: Tensor | None, d_states: Tensor | None, x: Tensor | None,
    weights: Sequence[Tensor], reserve: Tensor, seed: Tensor | None, network: str, steps: int, batch: int,
    flags: Sequence[bool], need_x: bool, need_weights: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx, dhx, dcx and the flat dw of a forward call, and leave the reserve unchanged.

    x: needed for dw, and for all with checkpoints. steps, batch, flags: the call's `planned.Shape`.
    need_weights: for each of the weights, whether its gradient is read, see `Need.frozen`."""
    net = Network.of_key(network)
    need = Need(need_x, any(need_weights), again=True, frozen=net.frozen(need_weights))
    every = net.stack.checkpoint_every
    if x is None and every and every < steps:
        raise ValueError(
            f"numbarnn::rnn_backward needs x with checkpoint_every={every} and {steps} steps, got None: pass the x of "
            "the forward call"
        )
    prepared = core.prepare_again(net, planned.Shape(steps, batch, *flags), seed, weights)
    results = core.backward_tensors(prepared, x, None, reserve, (dy, dhy, dcy, d_states), need)
    return tuple(_nothing(weights[0], result) for result in results)


@rnn_backward.register_fake
def _(dy, dhy, dcy, d_states, x, weights, reserve, seed, network, steps, batch, flags, need_x, need_weights):
    net, like = Network.of_key(network), weights[0]
    of_h, of_c = core.joined_state_shapes(net, batch)
    dx = (steps, batch, net.stack.input_size) if need_x else 0
    dw = net.size if any(need_weights) else 0
    return tuple(map(like.new_empty, (dx, of_h, of_c if net.private else 0, dw)))


def save_call(ctx, inputs, output):
    """Save the inputs of `rnn_forward` and the reserve for backward, and return the saved tensors."""
    x, hx, cx, weights, lengths, resets, seed, network, padding_value, every_state, keep = inputs
    ctx.set_materialize_grads(False)
    ctx.shape = core.CallSettings(lengths, resets, output_states=every_state).shape_of(x, hx)
    ctx.network, ctx.keep, ctx.padding_value = network, keep, padding_value
    saved = output[4], lengths, resets, seed, x, hx, cx, *weights
    ctx.save_for_backward(*saved)
    ctx.mark_non_differentiable(output[4])
    return saved


def _backward(ctx, dy, dhy, dcy, d_states, _):
    reserve, lengths, resets, seed, x, hx, cx, *weights = ctx.saved_tensors
    network, every_state = Network.of_key(ctx.network), ctx.shape.keeps_states
    if not ctx.keep:  # within vmap, a compiled call does not see that batched tensors have gradients: run it again
        options = ctx.network, ctx.padding_value, every_state, True
        reserve = torch.ops.numbarnn.rnn_forward(x, hx, cx, weights, lengths, resets, seed, *options)[4]
    needs_x, needs_hx, needs_cx, needs = ctx.needs_input_grad[:4]
    if not isinstance(needs, list | tuple):  # PyTorch has one bool if no weight can have a gradient
        needs = [needs] * len(weights)
    gradients = dy, dhy, dcy if network.private else None, d_states if every_state else None
    steps, batch, *flags = ctx.shape
    options = ctx.network, steps, batch, flags, needs_x, list(needs)
    dx, dhx, dcx, dw = torch.ops.numbarnn.rnn_backward(*gradients, x, weights, reserve, seed, *options)
    dx, dhx, dcx = dx if needs_x else None, dhx if needs_hx else None, dcx if needs_cx else None
    return dx, dhx, dcx, gradients_of(network, weights, dw, needs), *[None] * 7


def _refuse(ctx, *_):
    raise NotImplementedError(core.NO_SECOND_IN_PROGRAMS)


rnn_forward.register_autograd(_backward, setup_context=save_call)
rnn_backward.register_autograd(_refuse)


# ------------------------------------------------------------------------------------ forward mode, second derivatives
@custom_op("numbarnn::rnn_tangents", mutates_args=())
def rnn_tangents(
    values: Sequence[Tensor | None], direction: Sequence[Tensor | None], of_tangents: Sequence[Tensor | None],
    of_results: Sequence[Tensor | None], lengths: Tensor | None, resets: Tensor | None, seed: Tensor | None,
    network: str, passes: int,
) -> List[Tensor]:  # noqa: UP006  # fmt: skip
    """Return the tangents of y, hy, cy; with 2 passes also the gradients of values; with 3 those of the direction.

    values: x, hx, cx, the flat weights. direction: their tangents; None is zero. of_tangents, of_results: the gradients
    of the tangents of y, hy, cy, and of y, hy, cy themselves."""
    net, x = Network.of_key(network), values[0]
    parts = values, direction, of_results, of_tangents
    if x.dtype in HALVES:
        parts = [[one if one is None else one.float() for one in part] for part in parts]
    stack, draws = net.stack_for(parts[0][0], seed is not None), None if seed is None else (int(seed.item()), 0)
    with stream_of(x):
        at, along, of_results, of_tangents = (_point(stack, *part) for part in parts)
        sequences = core.sequences_of(stack.engine, core.CallSettings(lengths, resets), x)
        _, tangents, tape = tangents_of(stack).forward(at, along, sequences, draws, passes > 1)
        results = [tangents.x, *joined(stack, tangents.states)]
        if passes > 1:
            for one in tangents_of(stack).backward(tape, of_results, of_tangents, passes > 2)[: passes - 1]:
                results += one.x, *joined(stack, one.states), one.weights
        return [x.new_empty(0) if one is None else tensor_of(one).to(x.dtype) for one in results]


def _point(stack, x, hx, cx, weights=None):
    """Return x (or y), hx, cx and the weights, or their tangents or gradients, as a `Point` of arrays."""
    x, h, c, weights = map(array_of, (x, hx, cx, weights))
    return Point(x, by_layer(stack, h, c), weights)


@rnn_tangents.register_fake
def _(values, direction, of_tangents, of_results, lengths, resets, seed, network, passes):
    net, x = Network.of_key(network), values[0]
    of_h, of_c = core.joined_state_shapes(net, x.shape[1])
    states = of_h, of_c if net.private else 0
    shapes = [(*x.shape[:2], net.stack.directions * net.stack.output_widths[-1]), *states]
    shapes += [x.shape, *states, net.size] * (passes - 1)
    return list(map(x.new_empty, shapes))


# --------------------------------------------------------------------------------------------------------------- vmap
# A batch of x for one set of parameters, in a call that keeps nothing for backward, is one call with a larger batch.
# Everything else (an ensemble's parameters, gradients for each example) is one call after another. So are calls that
# draw: with `randomness="different"` each has its own seed, with "same" all have one, with "error" PyTorch draws none.
def _select(argument, dim, number):
    """Return one of a batch of arguments."""
    if isinstance(argument, list | tuple):
        dims = dim if isinstance(dim, list | tuple) else [dim] * len(argument)
        return [_select(*pair, number) for pair in zip(argument, dims, strict=True)]
    return argument.select(dim, number) if isinstance(dim, int) else argument


def _one_after_another(operator, kind, info, in_dims, *arguments):
    """Call an operator for each of a batch of arguments, and stack the results. kind: list or tuple, as it returns."""
    pairs = list(zip(arguments, in_dims, strict=True))
    calls = [operator(*[_select(*pair, number) for pair in pairs]) for number in range(info.batch_size)]
    results = kind(map(torch.stack, zip(*calls, strict=True)))
    return results, kind([0] * len(results))


@rnn_forward.register_vmap
def _(info, in_dims, x, hx, cx, weights, lengths, resets, seed, network, padding_value, every_state, keep):
    options, of_weights = (seed, network, padding_value, every_state, keep), in_dims[3]
    of_weights = of_weights if isinstance(of_weights, list | tuple) else [of_weights]
    if keep or in_dims[0] is None or seed is not None or any(dim is not None for dim in of_weights):
        arguments = x, hx, cx, weights, lengths, resets, *options
        return _one_after_another(rnn_forward, tuple, info, in_dims, *arguments)
    count = info.batch_size

    def folded(tensor, dim, axis=1):
        """Return a batch of tensors as one tensor with `count` times as many sequences."""
        if tensor is None:
            return None
        tensor = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return tensor.movedim(0, axis).flatten(axis, axis + 1)

    x, hx, cx, resets = map(folded, (x, hx, cx, resets), (*in_dims[:3], in_dims[5]))
    results = rnn_forward(x, hx, cx, weights, folded(lengths, in_dims[4], 0), resets, *options)
    dims = tuple(1 if one.numel() else None for one in results)  # of results that are there
    return tuple(one.unflatten(1, (count, -1)) if one.numel() else one for one in results), dims


rnn_backward.register_vmap(partial(_one_after_another, rnn_backward, tuple))
rnn_tangents.register_vmap(partial(_one_after_another, rnn_tangents, list))


# ----------------------------------------------------------------------------------------------------------- autocast
def autocast_dtype(kind):
    """Return the dtype that autocast computes with: on a GPU autocast's, on the CPU, whose engine lacks it, float32."""
    return torch.float32 if kind == "cpu" else torch.get_autocast_dtype(kind)


def _register_autocast(kind):
    """Cast the arguments of `rnn_forward` under autocast, for one type of device.
    `rnn_forward.register_autocast` would fix one dtype forever, but GPUs have two."""
    key = "Autocast" + torch._C._dispatch_key_for_device(kind)
    mode = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast_and_call(_, *arguments):
        with torch._C._ExcludeDispatchKeyGuard(mode):
            return rnn_forward._opoverload(*cast(arguments, kind, autocast_dtype(kind)))

    rnn_forward._lib.impl(rnn_forward._name, cast_and_call, key, with_keyset=True)


for _kind in DEVICES:
    _register_autocast(_kind)
