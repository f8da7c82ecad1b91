"""Cells that know the time: the number of the step, which is their last state."""

from numbarnn.cells.functions import exp, sigmoid, tanh, where
from numbarnn.cells.tracing import cell, step


@cell
def phased_lstm(x, h, c, p, t=step, open_ratio=0.05, leak=0.001):
    """Phased LSTM: each unit has a clock, and takes in something while a phase of it is open.

    Neil, Pfeiffer and Liu 2016, arXiv:1610.09513, (7) to (10), without peepholes, at regular times. A unit's period is
    e^log_period, so that it is positive; layers of numbarnn begin with periods of about one step.

    Args:
        open_ratio: the share of a period in which the gate is open; half of it opens, half of it closes.
        leak: how much passes when it is closed, at the end of a period.
    """
    period = exp(p.log_period)
    phase = (t - p.shift) % period / period
    opening, closing = 2 / open_ratio * phase, 2 - 2 / open_ratio * phase
    k = where(phase < open_ratio / 2, opening, where(phase < open_ratio, closing, leak * phase))
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    candidate = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return k * o * tanh(candidate) + (1 - k) * h, k * candidate + (1 - k) * c
