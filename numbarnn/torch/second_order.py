"""Second derivatives, forward mode and calls under `torch.func`'s transformations, as autograd functions.

The tangents y' of a call are its derivative in one direction u of (x, hx, cx, weights). All derivatives here follow
from them, as y' is linear in u (`numbarnn.layers.tangents`):

    forward mode                       y'
    gradient of <dy, y'>               by u: backward of dy; by x, ...: backward's derivative in the direction u
    gradient of <u, backward of dy>    by dy: y'; by x, ...: the same derivative

The functions call the operators, which support vmap, and take all weights as one flat tensor. Custom operators have no
gradients within vmap; autograd functions with `setup_context` do.
"""

import torch
from torch.autograd import Function

from numbarnn.torch import core, operators
from numbarnn.torch.networks import Network

# keys of autograd's own vmap (`is_grads_batched=True`), which is not torch.func's
_VMAP_MODE, _BATCHED = map(torch._C._parse_dispatch_key, ("VmapMode", "Batched"))


def is_vmapped():
    """Return whether one tensor may stand for a batch of tensors."""
    return torch._C._are_functorch_transforms_active() or torch._C._dispatch_tls_is_dispatch_key_included(_VMAP_MODE)


def each(function, tensors):
    """Call a function that supports torch.func's vmap with tensors or Nones, also under autograd's own vmap.

    There a tensor stands for several, and the function is called for one after another."""
    several = [one is not None and torch._C._dispatch_keys(one).has(_BATCHED) for one in tensors]
    if not any(several):
        return function(*tensors)
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    apart = [torch._remove_batch_dim(one, level, -1, 0).unbind() if batched else None
             for one, batched in zip(tensors, several, strict=True)]  # fmt: skip
    count = len(apart[several.index(True)])
    apart = [[one] * count if parts is None else parts for one, parts in zip(tensors, apart, strict=True)]
    calls = [function(*one) for one in zip(*apart, strict=True)]
    return [torch._add_batch_dim(torch.stack(results), 0, level) for results in zip(*calls, strict=True)]


def _there(gradients, tensors):
    """Return the gradients of those tensors that are not None."""
    return [one if tensor is not None else None for one, tensor in zip(gradients, tensors, strict=True)]


def _not_none(results, like):
    """Replace None in results by empty tensors. Forward mode allows None only in place of integer results."""
    return tuple(like.new_zeros(0) if one is None else one for one in results)


def _present(tensors):
    """Return tensors with None for those without elements, which stand for absent ones."""
    return [one if one is not None and one.numel() else None for one in tensors]


def second(network, ends, values, direction, of_tangents, of_results=(None,) * 3, passes=2):
    """Return the tangents of y, hy, cy, and the gradients of values; with 3 passes also those of the direction.

    network: its key. ends: lengths, resets and seed. The other arguments are those of `operators.rnn_tangents`."""
    fixed = [None if one is None else Guarded.apply(one) for one in (*_present(values), *of_tangents)]
    arguments = *fixed[:4], *_present(direction), *fixed[4:], *of_results
    results = _present(each(lambda *tensors: Second.apply(network, passes, *ends, *tensors), arguments))
    return results[:3], results[3:7], results[7:]


class Guarded(Function):
    """Return a tensor whose gradient raises: it would be a third derivative."""

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


class OfTensors(Function):
    """A function of a network's key, of a number of passes, and of tensors, which it saves; without forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.network, _, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)  # else jvp under vmap fails before it can say why

    @staticmethod
    def forward(network, passes, lengths, resets, seed, *tensors):
        parts = [list(tensors[first:last]) for first, last in ((0, 4), (4, 8), (8, 11), (11, 14))]
        return tuple(torch.ops.numbarnn.rnn_tangents(*parts, lengths, resets, seed, network, passes))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(core.NO_THIRD_ORDER)


class Second(OfTensors):
    """Compute the results of `rnn_tangents`, with gradients by the direction and by the gradients of results.

    It is linear in these; the other arguments are `Guarded`.

    Args of apply: the network's key, passes; lengths, resets, seed; the four values, the direction's four, and the
        gradients of the tangents of y, hy, cy and of y, hy, cy."""

    @staticmethod
    def backward(ctx, *gradients):
        saved = ctx.saved_tensors
        ends, values, direction, of_tangents, of_results = saved[:3], saved[3:7], saved[7:11], saved[11:14], saved[14:]
        by_results, by_direction, _ = second(ctx.network, ends, values, gradients[3:7], of_tangents, gradients[:3])
        return *[None] * 9, *_there(by_direction, direction), *[None] * 3, *_there(by_results, of_results)


class ForwardTangents(OfTensors):
    """Compute the tangents of y, hy, cy, with gradients by all tensors.

    Args of apply: the network's key, 1; lengths, resets, seed; x, hx, cx, weights; their tangents; six times None."""

    @staticmethod
    def backward(ctx, *of_tangents):
        saved = ctx.saved_tensors
        ends, values, direction = saved[:3], saved[3:7], saved[7:11]
        _, of_values, of_direction = second(ctx.network, ends, values, direction, of_tangents, passes=3)
        return *[None] * 5, *_there([*of_values, *of_direction], (*values, *direction)), *[None] * 6


class BackwardAgain(Function):
    """Compute dx, dhx, dcx and the flat dw, which have gradients in turn.

    Args of apply: the network's key; a function of all that follows but lengths and resets, which computes the results;
        lengths, resets, seed, the reserve, d_states; dy, dhy, dcy; x, hx, cx, weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(network, compute, lengths, resets, *tensors):
        return compute(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.network, _, lengths, resets, seed, _, d_states, *tensors = inputs
        ctx.has_states = d_states is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lengths, resets, seed, *tensors)
        ctx.save_for_forward(lengths, resets, seed, *tensors)

    @staticmethod
    def backward(ctx, *direction):
        ends, gradients, values = BackwardAgain.saved(ctx)
        of_gradients, of_values, _ = second(ctx.network, ends, values, direction, gradients)
        return *[None] * 7, *_there([*of_gradients, *of_values], (*gradients, *values))

    @staticmethod
    def jvp(ctx, *tangents):
        ends, gradients, values = BackwardAgain.saved(ctx)
        _, results, _ = second(ctx.network, ends, values, tangents[10:], gradients, tangents[7:10])
        return _not_none(results, values[0])

    @staticmethod
    def saved(ctx):
        """Return lengths, resets and seed; dy, dhy and dcy; x, hx, cx and the weights."""
        if ctx.has_states:
            raise NotImplementedError(core.NO_SECOND_OF_STATES)
        saved = ctx.saved_tensors
        return saved[:3], saved[3:6], saved[6:]


def by_operator(network, shape, need_x=True, need_weights=True):
    """Return a function for `BackwardAgain` that computes its results by `rnn_backward`."""
    steps, batch, *flags = shape
    options = network, steps, batch, flags, need_x, [need_weights]

    def compute(seed, reserve, d_states, dy, dhy, dcy, *values):
        gradients, (x, *_, weights) = (dy, dhy, dcy, d_states), values
        return torch.ops.numbarnn.rnn_backward(*gradients, x, [weights], reserve, seed, *options)

    return compute


class TransformedForward(Function):
    """Compute y, hy, cy, all cell states and the reserve by `rnn_forward`, with gradients within vmap.

    Args of apply: lengths, resets, seed, the network's key, padding_value, every_state; x, hx, cx, weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(lengths, resets, seed, network, padding_value, every_state, x, hx, cx, weights):
        options = lengths, resets, seed, network, padding_value, every_state
        return torch.ops.numbarnn.rnn_forward(x, hx, cx, [weights], *options, True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *options, x, hx, cx, weights = inputs
        ctx.save_for_forward(*operators.save_call(ctx, (x, hx, cx, [weights], *options, True), output))

    @staticmethod
    def backward(ctx, dy, dhy, dcy, d_states, _):
        reserve, *ends, x, hx, cx, weights = ctx.saved_tensors
        d_states = d_states if ctx.shape.keeps_states else None
        gradients = dy, dhy, dcy if Network.of_key(ctx.network).private else None
        compute, tensors = by_operator(ctx.network, ctx.shape), (x, hx, cx, weights)
        results = BackwardAgain.apply(ctx.network, compute, *ends, reserve, d_states, *gradients, *tensors)
        return *[None] * 6, *_there(results, tensors)

    @staticmethod
    def jvp(ctx, *tangents):
        if ctx.shape.keeps_states:
            raise NotImplementedError(core.NO_SECOND_OF_STATES)
        made = ForwardTangents.apply(ctx.network, 1, *ctx.saved_tensors[1:], *tangents[6:], *[None] * 6)
        return *_not_none((*made, None), made[0]), None
