"""Calls under `torch.func`'s transformations (grad, vjp, vmap), and backward passes under vmap.

Custom operators support vmap, but not gradients inside of it; `autograd.Function`s with `setup_context` support both.
These call the operators.
"""

import torch

from numbarnn.torch import core, operators

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
        ctx.given = hx is not None, cx is not None

    @staticmethod
    def backward(ctx, *results):
        dx, dhx, dcx, dw = operators.gradients(ctx, _backward, results[:4], True, True)
        return *[None] * 7, dx, *(one if given else None for one, given in zip((dhx, dcx), ctx.given, strict=True)), *dw

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(core.NO_FORWARD_MODE)


def _backward(*arguments):
    """Call `rnn_backward` through `TransformedBackward`."""
    results, (x, weights, reserve, seed, network), options = arguments[:4], arguments[4:9], arguments[9:]
    return TransformedBackward.apply(network, options, *results, x, reserve, seed, *weights)


class TransformedBackward(torch.autograd.Function):
    """dx, dhx, dcx and the flat dw, as `operators.rnn_backward` returns them; no further gradients.

    Args of apply: the network's key, further options; dy, dhy, dcy, d_states, x, the reserve, seed, the parameters.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(network, options, dy, dhy, dcy, d_states, x, reserve, seed, *weights):
        tensors = dy, dhy, dcy, d_states, x, list(weights), reserve, seed
        return torch.ops.numbarnn.rnn_backward(*tensors, network, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(core.NO_SECOND_ORDER)
