"""Ordinary eager calls: one `autograd.Function` around a call of the engine, without the machinery of operators."""

import torch

from numbarnn.passes.backward import Need
from numbarnn.torch import core
from numbarnn.torch.arrays import gradients_of

try:
    graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph  # in a backward pass: retain_graph
except AttributeError:  # other versions of PyTorch

    def graph_is_kept():
        return True


class Recurrence(torch.autograd.Function):
    """y, hy, cy and all private states of x, hx, cx and the parameters; None for what there is not."""

    @staticmethod
    def forward(ctx, network, about, x, hx, cx, *weights):
        y, hy, cy, states, reserve, shape = core.forward(network, about, x, hx, cx, weights, keep=True)
        ctx.set_materialize_grads(False)
        ctx.network, ctx.shape, ctx.draws = network, shape, about.seed is not None
        copied = shape.batch_major or shape.padded  # x into the reserve, and y out of it
        # Whoever writes into y, writes into the reserve, if y is in there: PyTorch notices it where y is saved.
        x = x if not copied and any(ctx.needs_input_grad[5:]) else None
        ctx.save_for_backward(x, reserve, None if copied else y, *weights)
        return y, hy, cy, states

    @staticmethod
    def backward(ctx, dy, dhy, dcy, d_states):
        x, reserve, _, *weights = ctx.saved_tensors
        network, (_, _, needs_x, needs_hx, needs_cx, *needs_weights) = ctx.network, ctx.needs_input_grad
        given = x, weights, reserve, (dy, dhy, dcy, d_states)
        need = Need(needs_x, any(needs_weights), graph_is_kept())
        dx, dhx, dcx, dw = core.backward(network, ctx.shape, ctx.draws, *given, need)
        states = dhx if needs_hx else None, dcx if needs_cx else None
        gradients = dx, *states, *gradients_of(network, weights, dw)
        if torch.is_grad_enabled():  # create_graph
            gradients = Once.apply(gradients, dy, dhy, dcy, d_states, x, *weights)
        return None, None, *gradients


# Without what `apply` does for calls under functorch's transformations, which do not come here.
recurrence = super(torch.autograd.Function, Recurrence).apply


class Once(torch.autograd.Function):
    """Gradients as they are, that say of what there are no further gradients.

    Args of apply: the gradients, a tuple; what they were computed from.
    """

    @staticmethod
    def forward(ctx, gradients, *tensors):
        return gradients

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(core.NO_SECOND_ORDER)
