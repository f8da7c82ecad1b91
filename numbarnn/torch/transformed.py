"""Calls under `torch.func`'s transformations (grad, vjp, vmap): functions of the kind that these take apart.

Custom operators know vmap, but not gradients inside of it; `autograd.Function`s with `setup_context` know both. What
they compute are the operators.
"""

import torch

from numbarnn.torch import core
from numbarnn.torch.arrays import gradients_of
from numbarnn.torch.networks import Network


class Forward(torch.autograd.Function):
    """y, hy, cy, all private states and the reserve, as `operators.rnn_forward` returns them.

    Args of apply: lengths, resets, seed, the network's key, padding_value, batch_first, every_state; x, hx, cx, the
        parameters.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(lengths, resets, seed, network, padding_value, batch_first, every_state, x, hx, cx, *weights):
        about = lengths, resets, seed, network, padding_value, batch_first, every_state
        return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), *about, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        lengths, resets, seed, network, _, batch_first, every_state, x, hx, cx, *weights = inputs
        ctx.set_materialize_grads(False)
        about = core.About(lengths, resets, batch_first=batch_first, output_states=every_state)
        ctx.network, ctx.shape = network, about.shape_of(x, hx)
        ctx.given = hx is not None, cx is not None
        ctx.mark_non_differentiable(output[4])
        ctx.save_for_backward(x, output[4], seed, *weights)

    @staticmethod
    def backward(ctx, dy, dhy, dcy, d_states, _):
        x, reserve, seed, *weights = ctx.saved_tensors
        network, shape = Network.of_key(ctx.network), ctx.shape
        dcy, d_states = dcy if network.private else None, d_states if shape.keeps_states else None
        dx, dhx, dcx, dw = Backward.apply(ctx.network, shape, dy, dhy, dcy, d_states, x, reserve, seed, *weights)
        states = [one if given else None for one, given in zip((dhx, dcx), ctx.given, strict=True)]
        return *[None] * 7, dx, *states, *gradients_of(network, weights, dw)


class Backward(torch.autograd.Function):
    """dx, dhx, dcx and the flat dw, as `operators.rnn_backward` returns them; no further gradients.

    Args of apply: the network's key, the `reserved.Shape`; dy, dhy, dcy, d_states, x, the reserve, seed, the
        parameters.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(network, shape, dy, dhy, dcy, d_states, x, reserve, seed, *weights):
        return torch.ops.numbarnn.rnn_backward(
            dy, dhy, dcy, d_states, x, list(weights), reserve, seed, network, *shape, True, True
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(core.NO_SECOND_ORDER)
