"""Calls under `torch.func`'s transformations (grad, vjp, vmap): functions of the kind that these take apart.

Custom operators know vmap, but not gradients inside of it; `autograd.Function`s with `setup_context` know both. What
they compute are the operators.
"""

import torch

from numbarnn.torch import core
from numbarnn.torch.arrays import gradients_of
from numbarnn.torch.networks import Network


class Forward(torch.autograd.Function):
    """y, hy, cy and the reserve, as `operators.rnn_forward` returns them.

    Args of apply: lengths, resets, seed, the network's key, padding_value, batch_first; x, hx, cx, the parameters.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(lengths, resets, seed, network, padding_value, batch_first, x, hx, cx, *weights):
        about = lengths, resets, seed, network, padding_value, batch_first
        return torch.ops.numbarnn.rnn_forward(x, hx, cx, list(weights), *about, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        lengths, resets, seed, network, _, batch_first, x, hx, cx, *weights = inputs
        ctx.set_materialize_grads(False)
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
        ctx.call = network, steps, batch, lengths is not None, resets is not None, batch_first
        ctx.given = hx is not None, cx is not None
        ctx.mark_non_differentiable(output[3])
        ctx.save_for_backward(x, output[3], seed, *weights)

    @staticmethod
    def backward(ctx, dy, dhy, dcy, _):
        x, reserve, seed, *weights = ctx.saved_tensors
        network = Network.of_key(ctx.call[0])
        dcy = dcy if network.private else None
        dx, dhx, dcx, dw = Backward.apply(ctx.call, dy, dhy, dcy, x, reserve, seed, *weights)
        states = [one if given else None for one, given in zip((dhx, dcx), ctx.given, strict=True)]
        return *[None] * 6, dx, *states, *gradients_of(network, weights, dw)


class Backward(torch.autograd.Function):
    """dx, dhx, dcx and the flat dw, as `operators.rnn_backward` returns them; no further gradients.

    Args of apply: what follows `seed` among the operator's arguments, up to batch_first; dy, dhy, dcy, x, the reserve,
        seed, the parameters.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(call, dy, dhy, dcy, x, reserve, seed, *weights):
        return torch.ops.numbarnn.rnn_backward(dy, dhy, dcy, x, list(weights), reserve, seed, *call, True, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(core.NO_SECOND_ORDER)
