"""The float64 reference: LSTM, GRU and RNN as plain NumPy loops, written to be obviously right, not fast.

Everything else in numbarnn is tested against this package. It imports only NumPy and the standard library, as a mistake
in code shared with the rest would pass every test. It is also the place to start reading, in this order:

    cells.py       one time step of each cell, forward and backward: the numbered equations with their sources
    loops.py       `forward` and `backward`: loops over time, directions and layers
    sequences.py   pieces of sequences with unequal lengths or resets
    shapes.py      the network that the parameters' names and shapes define; errors where they disagree

`layer_norm_rnn` is an example of a custom cell, and `philox` has the random numbers of training calls.

    from numbarnn import reference

    result = reference.forward("lstm", x, parameters)  # parameters: a dict with PyTorch's names and shapes
    gradients = reference.backward(result, dy=result.y - target)
    gradients.params["weight_hh_l0"]

Dimensions (T, B, I, H, G, L, D) are those of the legend in `numbarnn`.
"""

from .loops import Gradients, Result, backward, forward

__all__ = ["Gradients", "Result", "backward", "forward"]
