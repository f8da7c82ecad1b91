"""The cell with sums and random numbers that `check` runs: `numbarnn.reference.layer_norm_rnn` as equations."""

from numbarnn.cells.functions import drop_connect, initial, layer_norm, tanh, zoneout
from numbarnn.cells.tracing import cell

DROPPED, ZONEOUT = 0.3, 0.2  # of the elements of R; of units in a step


@cell
def layer_norm_rnn(x, h, p):
    """A vanilla RNN, normalised; weights are dropped and units kept as they were."""
    n = layer_norm(p.W.h @ x + drop_connect(p.R.h, DROPPED) @ h)
    return zoneout(tanh(initial(p.gain.h, 1) * n + p.b.h), h, ZONEOUT)
