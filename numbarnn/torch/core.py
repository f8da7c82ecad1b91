"""What both the operators and the eager function do with the tensors of a call; autograd does not look in here."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from numbarnn.layers import reserved
from numbarnn.layers.checks import keeps_states
from numbarnn.layers.sequences import EVERY_STEP, checked
from numbarnn.passes.backward import Given
from numbarnn.torch.arrays import array_of, stream_of, tensor_of, weights_of

NO_SECOND_ORDER = (
    "numbarnn computes first derivatives only: a gradient of these gradients (create_graph=True, and backward through "
    "them) is not there yet; where you need one, use torch.nn's module"
)


class About(NamedTuple):
    """What a call is told besides tensors that have gradients.

    Attributes:
        lengths: (B,) ints, resets: (T, B), or (B, T) with `batch_first`: tensors, or what makes arrays; or None.
        padding_value: what stands in y beyond a sequence's length.
        batch_first: x and y are (B, T, ...).
        seed: (1,) int64, a tensor on the host, where random numbers are drawn; else None.
        every_state: the private states of every step of the last layer are asked for.
    """

    lengths: Any = None
    resets: Any = None
    padding_value: float = 0.0
    batch_first: bool = False
    seed: Any = None
    every_state: bool = False

    def shape_of(self, x):
        """The `reserved.Shape` of the call."""
        steps, batch = x.shape[1::-1] if self.batch_first else x.shape[:2]
        seed = 0 if self.seed is None else int(self.seed.item())
        odd = self.lengths is not None, self.resets is not None
        return reserved.Shape(steps, batch, *odd, self.batch_first, seed, self.every_state)


def forward(network, about, x, hx, cx, weights, keep):
    """y, hy, cy (None without private states), all private states (None if nobody asked), reserve (None unless it is
    to be kept), shape.

    Args:
        hx, cx: (L*D, B, H), of cx N H wide; of layers that differ in size side by side, (D, B, sum of H); None: zero.
        keep: for backward.
    """
    stack, shape = network.stack_for(x, about.seed is not None), about.shape_of(x)
    _check(network, stack, shape, x, hx, cx, weights)
    with stream_of(x):
        sequences = EVERY_STEP
        if about.lengths is not None or about.resets is not None:
            ends = _host(about.lengths), _flags(about.resets)
            sequences = checked(stack.engine, *ends, about.padding_value, shape.steps, shape.batch, about.batch_first)
        if about.every_state:
            sequences = replace(sequences, every_state=True)
        flat = weights_of(network, weights)
        state = _apart(network, array_of(hx), array_of(cx))
        if keep or about.seed is not None:
            y, *states, reserve = reserved.forward(stack, shape, array_of(x), state, flat, sequences)
        else:
            y, *states, reserve = stack.forward(  # whose tape is None
                array_of(x), *state, flat, False, batch_major=about.batch_first, sequences=sequences
            )
        hy, cy, *every = states if not network.uneven else [_joined(stack, one) for one in states]
        every, reserve = tensor_of(every[0]) if every else None, tensor_of(reserve) if keep else None
        return tensor_of(y), tensor_of(hy), tensor_of(cy), every, reserve, shape


def backward(network, shape, draws, x, weights, reserve, gradients, need):
    """dx, dhx, dcx, flat dw; see `reserved.backward`. States as in `forward`.

    Args:
        draws: whether forward drew random numbers. gradients: (dy, dhy, dcy, d_states), tensors or None.
    """
    stack = network.stack_for(weights[0], draws)
    dy, dhy, dcy, d_states = gradients
    with stream_of(reserve):
        states = _apart(network, array_of(dhy), array_of(dcy))
        flat, given = weights_of(network, weights), Given(array_of(dy), *states, array_of(d_states))
        dx, dhx, dcx, dw = reserved.backward(stack, shape, array_of(x), flat, array_of(reserve), given, need)
        if network.uneven:
            dhx, dcx = _joined(stack, dhx), _joined(stack, dcx)
        return tensor_of(dx), tensor_of(dhx), tensor_of(dcx), tensor_of(dw)


def state_shapes(network, batch):
    """The shapes of h and of all private states together, as `forward` takes them."""
    stack, D = network.stack, network.stack.directions
    if network.uneven:
        widths = sum(stack.output_sizes), network.private * sum(stack.hidden_sizes)
        return [(D, batch, width) for width in widths]
    widths = stack.output_sizes[0], network.private * stack.hidden_sizes[0]
    return [(stack.num_layers * D, batch, width) for width in widths]


def _apart(network, h, c):
    """Arrays of h and of all private states as the engines have them: of layers that differ in size lists."""
    if not network.uneven:
        return h, c
    return _by_layer(h, network.stack.output_sizes), _by_layer(
        c, [network.private * hidden for hidden in network.stack.hidden_sizes]
    )


def _by_layer(state, widths):
    """A list of copies of a state's columns."""
    if state is None:
        return None
    ends = np.cumsum(widths).tolist()
    return [state[:, :, end - width : end].copy() for end, width in zip(ends, widths, strict=True)]


def _joined(stack, state):
    """The reverse."""
    return stack.engine.array_module.concatenate(state, axis=2) if type(state) is list else state


def _host(lengths):
    """Lengths for the host."""
    return lengths.detach().cpu().numpy() if isinstance(lengths, torch.Tensor) else lengths


def _flags(resets):
    """Resets as an array of what they are."""
    return array_of(resets) if isinstance(resets, torch.Tensor) else resets


def _check(network, stack, shape, x, hx, cx, weights):
    """Raise ValueError for shapes, dtypes and devices that do not go together: engines take them as checked."""
    if x.dim() != 3 or x.shape[2] != stack.input_size or 0 in x.shape:
        letters = "(B, T, I)" if shape.batch_major else "(T, B, I)"
        raise ValueError(
            f"x must have shape {letters} with T and B of at least 1 and I = {stack.input_size}, but has "
            f"{tuple(x.shape)}"
        )
    if hx is not None or cx is not None:
        for name, state, wanted in zip(("hx", "cx"), (hx, cx), state_shapes(network, shape.batch), strict=True):
            if state is None:
                continue
            if state.shape != wanted:
                raise ValueError(f"{name} must have shape {wanted}, but has {tuple(state.shape)}")
            _alike(name, state, x)
    _alike("weights", weights[0], x)
    if shape.keeps_states:
        keeps_states(stack, True)


def _alike(name, tensor, x):
    if tensor.dtype != x.dtype:
        raise ValueError(f"x and {name} must have one dtype, but are {x.dtype} and {tensor.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"x and {name} must be on one device, but are on {x.device} and {tensor.device}")
