"""The error flag of a call: how a kernel reports a failure, and what the host does.

A call that can fail has an error flag, an int64 in device memory that is zero at first.

    report(flag, code)                      # in a kernel, sets the flag unless it is set
    raise RuntimeError(explain(code, call)) # on the host, which reads the code in `told`, host memory

If the flag is set, a persistent kernel fills its results with NaN and writes the code to `told`
(`persistent.ends.make_leave`). A code is `code_of(kind, detail)`, and `KINDS` explains each kind. A new kind of
failure needs a number, an entry there, and a kernel that calls `report`.
"""

import numpy as np

from numbarnn.cuda import ptx
from numbarnn.kernels.device import device_function

# From the lowest bits on: 48 of detail, 3 of kind, 12 of the caller's number; all positive.
KIND, CALLER = 1 << 48, 1 << 51
CALLERS = 1 << 12

TIMED_OUT = 1  # a block of a persistent kernel timed out; detail: place * STEPS + step
STEPS = 1 << 32
# Added if the block waited for another layer, or for an exchange within a step; else it waited for its own layer.
OTHER_LAYER, WITHIN = STEPS, 2 * STEPS


def code_of(kind, detail=0):
    """Return the code of a failure, an int from 1 to 2^51 - 1."""
    return kind * KIND + detail


def timeout_of(layer, direction, backward):
    """Return the code of a timeout in a block of a persistent kernel. A block that times out adds its step to the code,
    and OTHER_LAYER if it waited for another layer, or WITHIN if it waited for other blocks within the step."""
    return code_of(TIMED_OUT, (layer * 16 + backward * 8 + direction * 4) * STEPS)


def _explain_timeout(detail):
    place, step = divmod(detail, STEPS)
    layer, backward, direction, within, other = place // 16, place // 8 % 2, place // 4 % 2, place // 2 % 2, place % 2
    if within:
        missing = "numbers that other blocks of the layer compute in the same step"
    elif other:
        missing = f"the gradient from layer {layer + 1}" if backward else f"the output of layer {layer - 1}"
    else:
        missing = f"the {'gradient of the ' if backward else ''}state that other blocks of the layer compute"
    return (
        f"a persistent kernel timed out: layer {layer}, direction {direction}, waited at step {step} of the "
        f"{'backward' if backward else 'forward'} pass for {missing}",
        "Other work on the device may have delayed it: call again, or make the layer with schedule='stepwise', whose "
        "kernels wait for nothing. If it happens again, please report it",
    )


#: kind -> function of the detail: (what went wrong, what to do), both text without a full stop at the end.
KINDS = {TIMED_OUT: _explain_timeout}


def explain(code, caller):
    """Explain a failed call's code as text.

    Args:
        code: made by `code_of`. caller: the caller's name, such as the layer's repr.
    """
    kind, detail = divmod(code, KIND)
    what, cure = KINDS[kind](detail)
    return (
        f"a call of {caller} failed: {what}. All of its results are NaN (also a `dw` that it added to), and so are "
        f"later results computed from them. {cure}"
    )


@device_function
def make_report():
    """Make report(flag, code), which sets the error flag unless it is set."""
    load, store = ptx.load, ptx.store

    def report(flag, code):
        if load(flag, 0) == 0:
            store(flag, 0, np.int64(code))

    return report
