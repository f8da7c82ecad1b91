"""Calls under `torch.func`'s transformations (grad, vjp, vmap), and backward passes under vmap.

Custom operators support vmap, but not gradients inside of it; `autograd.Function`s with `setup_context` support both.
These call the operators.
"""

import torch

from numbarnn.torch import core, operators, second_order

# of the vmap that autograd itself has (`is_grads_batched=True`), which is not torch.func's
_VMAP_MODE, _BATCHED = map(torch._C._parse_dispatch_key, ("VmapMode", "Batched"))


def inmost(tensor):
    """Return a tensor without the wrappers of transformations, down to the first wrapper with a gradient."""
    while tensor is not None and not tensor.requires_grad and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


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


class TransformedForward(torch.autograd.Function):
    """y, hy, cy, all cell states and the reserve, as `operators.rnn_forward` returns them.

    Args of apply: lengths, resets, seed, the network's key, padding_value, batch_first, every_state; x, hx, cx, the
        parameters.
    """

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
            return second_order.Backward.apply(about, None, *ends, *of_results, *values, *weights)

        dx, dhx, dcx, dw = operators.gradients(ctx, call, results[:4], True, True)
        hx, cx = ctx.saved_tensors[5:7]
        return *[None] * 7, dx, *(None if one is None else d_one for one, d_one in ((hx, dhx), (cx, dcx))), *dw

    @staticmethod
    def jvp(ctx, *tangents):
        if ctx.shape.keeps_states:
            raise NotImplementedError(core.NO_SECOND_OF_STATES)
        _, *saved = ctx.saved_tensors
        about = second_order.About(ctx.network, ctx.shape.batch_major)
        made = second_order.Tangents.apply(about, *saved, *tangents[7:])
        like = made[0].new_zeros(0)  # of results that are not there: None is only for integers
        return *(like if one is None else one for one in made), like, None
