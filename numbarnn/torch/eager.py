"""Ordinary eager calls: one `autograd.Function` around a call of the engine, without the machinery of operators."""

from functools import cache

import torch

from numbarnn.programs.backward import Need
from numbarnn.torch import core, transformed
from numbarnn.torch.arrays import gradients_of

_need = cache(Need)  # of the same few, which takes less time than another one
try:
    graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph  # in a backward pass: retain_graph
except AttributeError:  # other versions of PyTorch

    def graph_is_kept():
        return True


class Recurrence(torch.autograd.Function):
    """y, hy, cy and all private states of x, hx, cx and the parameters; None for what there is not.

    Args of apply: the network; a `core.Prepared`, or a `core.About` from which it is made; x, hx, cx, the parameters.
    """

    @staticmethod
    def forward(ctx, network, prepared, x, hx, cx, *weights):
        seed = None
        if type(prepared) is core.About:
            seed, prepared = prepared.seed, core.prepare(network, prepared, x, hx, weights, keep=True)
        y, hy, cy, states, reserve = core.forward(network, prepared, x, hx, cx)
        ctx.set_materialize_grads(False)
        ctx.call, shape = (network, prepared, seed), prepared.calls.shape
        has_checkpoints = prepared.calls.has_checkpoints
        copied = shape.batch_major or shape.padded  # x into the reserve, and y out of it
        x = x if has_checkpoints or (not copied and any(ctx.needs_input_grad[5:])) else None
        # Writing into y may be writing into the reserve. As y is saved, PyTorch notices it.
        ctx.save_for_backward(x, reserve, None if copied or has_checkpoints else y, *weights)
        return y, hy, cy, states

    @staticmethod
    def backward(ctx, dy, dhy, dcy, d_states):
        x, reserve, _, *weights = ctx.saved_tensors
        network, prepared, seed = ctx.call
        _, _, needs_x, needs_hx, needs_cx, *needs_weights = ctx.needs_input_grad
        need = _need(needs_x, any(needs_weights), graph_is_kept(), network.frozen(needs_weights))
        given = dy, dhy, dcy, d_states
        if transformed.is_vmapped():
            tensors = given, x, weights, reserve
            dx, dhx, dcx, dw = transformed.backward(network, prepared.calls.shape, seed, tensors, need)
            results = None, None, dx, dhx, dcx, *gradients_of(network, weights, dw, needs_weights)
            return tuple(one if needed else None for one, needed in zip(results, ctx.needs_input_grad, strict=True))
        dx, dhx, dcx, dw = core.backward(network, prepared, x, weights, reserve, given, need, (needs_hx, needs_cx))
        gradients = dx, dhx, dcx, *gradients_of(network, weights, dw, needs_weights)
        if torch.is_grad_enabled():  # create_graph
            gradients = Once.apply(gradients, dy, dhy, dcy, d_states, x, *weights)
        return None, None, *gradients

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(core.NO_FORWARD_MODE)


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
