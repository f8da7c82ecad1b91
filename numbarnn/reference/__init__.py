"""The float64 reference: LSTM, GRU and RNN as plain NumPy loops, written to be obviously right, not fast.

Everything else in numbarnn is tested against this package, so it shares no code with the rest: it imports
NumPy and the standard library, nothing more (a mistake made in both places would pass every test). It is also
the place to start reading. In this order:

    cells.py       one time step of each cell, forward and backward: the equations, numbered, with their sources
    loops.py       the loops around a step: over time, over directions, over layers; `forward` and `backward`
    sequences.py   sequences of unequal length, and that begin anew: which steps belong together
    shapes.py      what the parameter names and shapes say about the network; errors where they disagree

Beside them: `layer_norm_rnn`, one cell of those that are written as equations, and `philox`, what training draws.

    from numbarnn import reference

    result = reference.forward("lstm", x, parameters)  # parameters: a dict with PyTorch's names and shapes
    gradients = reference.backward(result, dy=result.y - target)
    gradients.params["weight_hh_l0"]

Dimensions (T, B, I, H, G, L, D) are those of the legend in `numbarnn`.
"""

from .loops import Gradients, Result, backward, forward

__all__ = ["Gradients", "Result", "backward", "forward"]
