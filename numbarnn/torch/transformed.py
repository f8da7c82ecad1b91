"""Calls under `torch.func`'s transformations (grad, vjp, vmap), and backward passes under vmap.

Custom operators support vmap, but not gradients inside of it; `autograd.Function`s with `setup_context` support both.
These call the operators.
"""

import torch

from numbarnn.torch import core, operators, second_order


def inmost(tensor):
    """Return a tensor without the wrappers of transformations, down to the first wrapper with a gradient."""
    while tensor is not None and not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


class TransformedForward(torch.autograd.Function):
    """y, hy, cy, all cell states and the reserve, as `operators.rnn_forward` returns them, of arguments in another
    order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(lengths, resets, seed, network, padding_value, batch_first, every_state, x, hx, cx, *weights):
        options = lengths, resets, seed, network, padding_value, batch_first, every_state
        return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), *options, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        lengths, resets, seed, network, padding_value, batch_first, every_state, x, hx, cx, *weights = inputs
        options = network, padding_value, batch_first, every_state, True
        operators.save_call(ctx, (x, hx, cx, weights, lengths, resets, seed, *options), output)
        ctx.save_for_forward(output[4], lengths, resets, seed, x, hx, cx, *weights)

    @staticmethod
    def backward(ctx, *results):
        def call(lengths, resets, seed, reserve, of_results, values, weights, options):
            *of_results, d_states = of_results
            about = second_order.About(ctx.network, ctx.shape.batch_major, options)
            ends = lengths, resets, seed, reserve, d_states
            return second_order.BackwardAgain.apply(about, None, *ends, *of_results, *values, *weights)

        dx, dhx, dcx, dw = operators.gradients(ctx, call, results[:4], True, True)
        hx, cx = ctx.saved_tensors[5:7]
        return *[None] * 7, dx, *(None if one is None else d_one for one, d_one in ((hx, dhx), (cx, dcx))), *dw

    @staticmethod
    def jvp(ctx, *tangents):
        if ctx.shape.keeps_states:
            raise NotImplementedError(core.NO_SECOND_OF_STATES)
        _, *saved = ctx.saved_tensors
        about = second_order.About(ctx.network, ctx.shape.batch_major)
        made = second_order.ForwardTangents.apply(about, *saved, *tangents[7:])
        like = made[0].new_zeros(0)  # of results that are not there: None is only for integers
        return *(like if one is None else one for one in made), like, None
