"""How `torch.vmap` sees the operators: several calls at once.

A batch of x for one set of parameters, in a call that keeps nothing for backward, is one call with a larger batch.
Everything else (an ensemble's parameters, gradients for each example) is one call after another. So are calls that
draw random numbers: with `randomness="different"` each has a seed of its own, with "same" all have one, and PyTorch
refuses to draw it with "error".
"""

import torch

from numbarnn.torch.networks import Network
from numbarnn.torch.operators import rnn_backward, rnn_forward


def _select(argument, dim, number):
    """One of a batch of arguments."""
    if isinstance(argument, list | tuple):
        dims = dim if isinstance(dim, list | tuple) else [dim] * len(argument)
        return [_select(*pair, number) for pair in zip(argument, dims, strict=True)]
    return argument.select(dim, number) if isinstance(dim, int) else argument


def _one_after_another(operator):
    """The rule that calls the operator for each of a batch."""

    def rule(info, in_dims, *arguments):
        calls = [
            operator(*[_select(*pair, number) for pair in zip(arguments, in_dims, strict=True)])
            for number in range(info.batch_size)
        ]
        results = tuple(map(torch.stack, zip(*calls, strict=True)))
        return results, (0,) * len(results)

    return rule


_each_forward = _one_after_another(rnn_forward)


@rnn_forward.register_vmap
def _(info, in_dims, *arguments):
    x, hx, cx, weights, lengths, resets, seed, network, padding_value, batch_first, every_state, keep = arguments
    of_x, of_hx, of_cx, of_weights, of_lengths, of_resets, *_ = in_dims
    others = of_weights if isinstance(of_weights, list | tuple) else [of_weights]
    if keep or of_x is None or seed is not None or any(dim is not None for dim in others):
        return _each_forward(info, in_dims, *arguments)
    count, axis = info.batch_size, 0 if batch_first else 1  # of x and y, where sequences are counted

    def folded(tensor, dim, into):
        """A batch of tensors as one, `count` times as many sequences along an axis."""
        if tensor is None:
            return None
        tensor = tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return tensor.movedim(0, into).flatten(into, into + 1)

    options = network, padding_value, batch_first, every_state, keep
    ends = folded(lengths, of_lengths, 0), folded(resets, of_resets, axis)
    results = rnn_forward(
        folded(x, of_x, axis), folded(hx, of_hx, 1), folded(cx, of_cx, 1), weights, *ends, seed, *options
    )
    y, hy, cy, states, reserve = results
    has_c = Network.of_key(network).private > 0
    sizes = [(y, axis), (hy, 1), (cy, 1 if has_c else None), (states, axis if every_state else None), (reserve, None)]
    results = tuple(one if dim is None else one.unflatten(dim, (count, -1)) for one, dim in sizes)
    return results, tuple(dim for _, dim in sizes)


rnn_backward.register_vmap(_one_after_another(rnn_backward))
