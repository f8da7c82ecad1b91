"""`numbarnn::rnn_forward` and `rnn_backward`: a whole network as two operators that PyTorch does not look into.

`torch.compile`, `torch.export`, `torch.func` and tensors without numbers (device "meta") see a call as one operator
with known shapes; the time to compile does not depend on T. A network is known by its key (`networks`).

    y, hy, cy, states, reserve = rnn_forward(x, hx, cx, weights, lengths, resets, seed, network, ...)
    dx, dhx, dcx, dw = rnn_backward(dy, dhy, dcy, d_states, x, weights, reserve, ...)

States are one tensor each (see `core.forward_tensors`). Absent results have no elements. Results
share no memory: y is copied out of the reserve.
"""

from functools import partial
from typing import Sequence  # noqa: UP035 - custom_op of PyTorch 2.5 knows no other

import torch
from torch import Tensor
from torch.amp.autocast_mode import _cast as cast
from torch.library import custom_op

from numbarnn.layers import planned
from numbarnn.programs.backward import Need
from numbarnn.torch import core
from numbarnn.torch.arrays import gradients_of
from numbarnn.torch.networks import DEVICES, DTYPES, Network, computes_in


# ------------------------------------------------------------------------------------------------------------ forward
@custom_op("numbarnn::rnn_forward", mutates_args=())
def rnn_forward(
    x: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], lengths: Tensor | None,
    resets: Tensor | None, seed: Tensor | None, network: str, padding_value: float, batch_first: bool,
    every_state: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, hy, cy, all cell states, and the reserve; arguments as in `core.forward_tensors` and `core.About`."""
    about = core.About(lengths, resets, padding_value, batch_first, every_state, seed=seed)
    net = Network.of_key(network)
    core.check_tensors(net, about, x, hx, cx, weights)
    prepared = core.prepare(net, about, x, hx, weights, keep)
    *results, reserve = core.forward_tensors(prepared, x, hx, cx)
    reserve = reserve if keep else None

    def own(result):
        """Return a result, or a copy of it if it is a part of the reserve."""
        inside = None not in (result, reserve) and 0 <= result.data_ptr() - reserve.data_ptr() < reserve.nbytes
        return result.clone() if inside else result

    y, hy, cy, states = map(own, results)
    return y, hy, _nothing(x, cy), _nothing(x, states), _nothing(x, reserve, torch.uint8)


def _nothing(like, result, dtype=None):
    """Return a result, or a tensor without elements for None."""
    return like.new_empty(0, dtype=dtype) if result is None else result


@rnn_forward.register_fake
def _(x, hx, cx, weights, lengths, resets, seed, network, padding_value, batch_first, every_state, keep):
    net = Network.of_key(network)
    stack, shape = net.stack, core.About(lengths, resets, batch_first=batch_first).shape_of(x, hx)
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
    padded: bool, resets: bool, batch_first: bool, every_state: bool, from_zero: bool, need_x: bool,
    need_weights: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dx, dhx, dcx and the flat dw of a forward call, and leave the reserve unchanged. x is needed for dw, and
    for all with checkpoints. need_weights: for each of the weights, whether its gradient is read: see `Need.frozen`."""
    shape = planned.Shape(steps, batch, padded, resets, batch_first, every_state, from_zero)
    net = Network.of_key(network)
    need = Need(need_x, any(need_weights), again=True, frozen=net.frozen(need_weights))
    every = net.stack.checkpoint_every
    if x is None and every and every < steps:
        raise ValueError(
            f"numbarnn::rnn_backward needs x with checkpoint_every={every} and {steps} steps, got None: pass the x of "
            "the forward call"
        )
    prepared = core.prepare_again(net, shape, seed, weights)
    results = core.backward_tensors(net, prepared, x, None, reserve, (dy, dhy, dcy, d_states), need)
    return tuple(_nothing(weights[0], result) for result in results)


@rnn_backward.register_fake
def _(dy, dhy, dcy, d_states, x, weights, reserve, seed, network, steps, batch, *options):
    _, _, batch_first, _, _, need_x, need_weights = options
    net, like = Network.of_key(network), weights[0]
    outer = (batch, steps) if batch_first else (steps, batch)
    of_h, of_c = core.joined_state_shapes(net, batch)
    dx, dw = (*outer, net.stack.input_size) if need_x else 0, net.size if any(need_weights) else 0
    return tuple(map(like.new_empty, (dx, of_h, of_c if net.private else 0, dw)))


# ----------------------------------------------------------------------------------------------------------- autograd
def save_call(ctx, inputs, output):
    """Save a call of `rnn_forward`, its inputs and results, for `gradients`."""
    x, hx, cx, weights, lengths, resets, seed, network, padding_value, batch_first, every_state, keep = inputs
    ctx.set_materialize_grads(False)
    ctx.shape = core.About(lengths, resets, batch_first=batch_first, output_states=every_state).shape_of(x, hx)
    ctx.network, ctx.keep, ctx.padding_value = network, keep, padding_value
    ctx.save_for_backward(output[4], lengths, resets, seed, x, hx, cx, *weights)
    ctx.mark_non_differentiable(output[4])


def gradients(ctx, backward, results, needs_x, needs_weights):
    """Return dx, dhx, dcx and the list of the weights' gradients. backward: f(lengths, resets, seed, reserve, results,
    (x, hx, cx), weights, options) of `rnn_backward`'s results. results: gradients of forward's. needs_weights: a bool
    for each, or for all."""
    reserve, lengths, resets, seed, x, hx, cx, *weights = ctx.saved_tensors
    network, shape, (dy, dhy, dcy, d_states) = Network.of_key(ctx.network), ctx.shape, results
    if not ctx.keep:  # within vmap, a compiled call does not see that batched tensors have gradients: run it again
        options = ctx.network, ctx.padding_value, shape.batch_major, shape.keeps_states, True
        reserve = torch.ops.numbarnn.rnn_forward(x, hx, cx, weights, lengths, resets, seed, *options)[4]
    dcy, d_states = dcy if network.private else None, d_states if shape.keeps_states else None
    if not isinstance(needs_weights, list | tuple):  # none of the weights may have gradients
        needs_weights = [needs_weights] * len(weights)
    of_results, options = (dy, dhy, dcy, d_states), (*shape, needs_x, list(needs_weights))
    dx, dhx, dcx, dw = backward(lengths, resets, seed, reserve, of_results, (x, hx, cx), weights, options)
    return dx, dhx, dcx, gradients_of(network, weights, dw, needs_weights)


def _backward(ctx, *results):
    def call(lengths, resets, seed, reserve, of_results, values, weights, options):
        return torch.ops.numbarnn.rnn_backward(*of_results, values[0], weights, reserve, seed, ctx.network, *options)

    needs_x, needs_hx, needs_cx, needs_weights = ctx.needs_input_grad[:4]
    dx, dhx, dcx, dw = gradients(ctx, call, results[:4], needs_x, needs_weights)
    return dx if needs_x else None, dhx if needs_hx else None, dcx if needs_cx else None, dw, *[None] * 8


def _refuse(ctx, *_):
    raise NotImplementedError(core.NO_SECOND_IN_PROGRAMS)


rnn_forward.register_autograd(_backward, setup_context=save_call)
rnn_backward.register_autograd(_refuse)


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


def one_after_another(operator, info, in_dims, *arguments):
    """Call the operator for each of a batch, one after another."""
    pairs = list(zip(arguments, in_dims, strict=True))
    calls = [operator(*[_select(*pair, number) for pair in pairs]) for number in range(info.batch_size)]
    results = tuple(map(torch.stack, zip(*calls, strict=True)))
    return results, (0,) * len(results)


@rnn_forward.register_vmap
def _(info, in_dims, *arguments):
    x, hx, cx, weights, lengths, resets, seed, network, padding_value, batch_first, every_state, keep = arguments
    of_x, of_hx, of_cx, of_weights, of_lengths, of_resets, *_ = in_dims
    others = of_weights if isinstance(of_weights, list | tuple) else [of_weights]
    if keep or of_x is None or seed is not None or any(dim is not None for dim in others):
        return one_after_another(rnn_forward, info, in_dims, *arguments)
    count, axis = info.batch_size, 0 if batch_first else 1  # of x and y, the axis of sequences

    def folded(tensor, dim, into):
        """Return a batch of tensors as one, with `count` times as many sequences along an axis."""
        if tensor is None:
            return None
        tensor = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return tensor.movedim(0, into).flatten(into, into + 1)

    ends = folded(lengths, of_lengths, 0), folded(resets, of_resets, axis)
    x, hx, cx = folded(x, of_x, axis), folded(hx, of_hx, 1), folded(cx, of_cx, 1)
    results = rnn_forward(x, hx, cx, weights, *ends, seed, network, padding_value, batch_first, every_state, keep)
    has_c = Network.of_key(network).private > 0
    dims = axis, 1, 1 if has_c else None, axis if every_state else None, None
    results = zip(results, dims, strict=True)
    return tuple(one if dim is None else one.unflatten(dim, (count, -1)) for one, dim in results), dims


rnn_backward.register_vmap(partial(one_after_another, rnn_backward))


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
