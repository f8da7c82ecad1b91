"""Problems for the persistent RNN of `numbarnn.kernels.minimal`, in the simulator and on a GPU."""

import numpy as np

from numbarnn import course, reference
from numbarnn.kernels import minimal


def problem_of(T, B, H):
    """(h with NaN in slots 1 to T, ax, R, what slots 1 to T should be)."""
    rng = np.random.default_rng(T + B + H)
    weights = {name: rng.normal(0, 0.5, (H, H)) for name in ("weight_ih_l0", "weight_hh_l0")}
    x, h0 = rng.standard_normal((T, B, H)), rng.standard_normal((1, B, H))
    right = reference.forward("rnn_tanh", x, weights, (h0,)).y
    h = np.full((T + 1, B, H), np.nan, np.float32)
    h[0] = h0[0]
    return h, np.float32(x @ weights["weight_ih_l0"].T), np.float32(weights["weight_hh_l0"]), right


def run(h, ax, R, seed=0, missing=0):
    """The kernel, without the last `missing` blocks."""
    hidden = len(R)
    blocks = -(-hidden // minimal.UNITS) - missing
    course.launch(minimal.make_rnn(hidden), blocks, minimal.THREADS, h.reshape(-1), ax, R, seed=seed)
