"""Where the float64 reference came to functions that have a kink."""

import numpy as np


def saved(result, name):
    """What all steps saved by that name, as one vector; result: what `reference.forward` returned."""
    walks = [walk for layer in result.tape.walks for pieces in layer for walk in pieces]
    return np.concatenate([np.zeros(0), *(step["saved"][name].ravel() for walk in walks for step in walk)])


def sides(cell, clip, result):
    """How far it was from each kink, on one side above 0 and on the other below: the arguments of all ReLUs, or the
    cell states, from the nearer bound of their clip (two, or one for both); None of a cell without."""
    if cell == "rnn_relu":
        return saved(result, "a")
    if clip is None:
        return None
    lower, upper = clip if np.ndim(clip) else (-clip, clip)
    c = np.concatenate([saved(result, "c"), saved(result, "c_prev")])
    return np.minimum(c - lower, upper - c)
