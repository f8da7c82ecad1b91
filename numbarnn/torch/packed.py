"""Packed sequences: padded for the engines, which take sequences of any length, and packed again."""

import torch
from torch import _VF
from torch.nn.utils.rnn import PackedSequence

from numbarnn.programs.states import with_each
from numbarnn.torch import states


def forward(module, sequence, hx, about):
    """A module's results for a packed x: y is packed as x is, states are in the order of the sequences before packing.

    Args:
        sequence: a `torch.nn.utils.rnn.PackedSequence`.
        hx: of `Recurrent.forward`. about: `core.About` its other arguments, without lengths, which the sequence has.

    Raises:
        RuntimeError, ValueError, TypeError: as torch.nn's modules raise them.
    """
    if torch.compiler.is_compiling():  # sizes are in tensors: as with torch.nn's modules the graph ends here
        return torch.compiler.disable(forward)(module, sequence, hx, about)
    data, batch_sizes, order, ranks = sequence
    if about.lengths is not None:
        raise ValueError("lengths must be None with a packed input, which has lengths of its own")
    if data.dim() != 2:
        raise RuntimeError(f"input must have 2 dimensions, got {data.dim()}")
    steps = len(batch_sizes)
    x, lengths = _VF._pad_packed_sequence(data, batch_sizes, False, 0.0, steps)  # (T, B, I), the longest first

    def pack(padded):
        return _VF._pack_padded_sequence(padded, lengths, False)[0]

    def drop_packed(y):  # torch draws for the elements that there are, in the order in which they are packed
        return _VF._pad_packed_sequence(drop(pack(y)), batch_sizes, False, 0.0, steps)[0]

    drop = module._drop()

    if hx is not None:
        hx = states.taken(module._computation.states, hx, batched=True)
        if order is not None:
            hx = with_each(hx, lambda one: one.index_select(1, order))
    about = about._replace(lengths=lengths, batch_first=False)
    if about.resets is not None and order is not None:
        about = about._replace(resets=torch.as_tensor(about.resets)[:, order])
    y, state, *more = module._computation.run(module, x, hx, about, drop and drop_packed)
    if ranks is not None:
        state = with_each(state, lambda one: one.index_select(1, ranks))
    y, *more = (
        with_each(one, lambda padded: PackedSequence(pack(padded), batch_sizes, order, ranks)) for one in (y, *more)
    )
    return (y, state, *more)
