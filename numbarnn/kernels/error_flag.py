"""Calls that fail on the device: how a kernel says so, and what becomes of the call's results.

A call that can fail has one int64 of the device's memory, its error flag, zero at first.

    report(flag, code)                      # in a kernel: what is wrong; the first code stays
    raise RuntimeError(explain(code, call)) # on the host, which finds the code in `told`, memory of its own

A persistent kernel whose call failed fills its results with NaN and writes to `told` (`persistent.ends.make_leave`);
what is computed of these results is NaN then, too.

A code is kind and detail, `code_of(kind, detail)`; `KINDS` says in words what each means. A new kind of failure is a
number and an entry there, and a kernel that calls `report`.
"""

import numpy as np

from numbarnn.cuda import ptx
from numbarnn.kernels.device import device_function

# From the lowest bits on: 48 of detail, 3 of kind, 12 of the number of who called; all positive.
KIND, CALLER = 1 << 48, 1 << 51
CALLERS = 1 << 12

TIMED_OUT = 1  # a block of a persistent kernel waited too long; detail: place * STEPS + step
STEPS = 1 << 32
# Added where it waited for another layer, not for blocks of its own; or for what these exchange within a step.
OTHER_LAYER, WITHIN = STEPS, 2 * STEPS


def code_of(kind, detail=0):
    """The code that a kernel reports: an int from 1 to 2^51 - 1."""
    return kind * KIND + detail


def timeout_of(layer, direction, backward):
    """The code of a block of a persistent kernel that waits too long, but for where: the block adds its step, and
    OTHER_LAYER or WITHIN if it waits for another layer, or within the step."""
    return code_of(TIMED_OUT, (layer * 16 + backward * 8 + direction * 4) * STEPS)


def _explain_timeout(detail):
    place, step = divmod(detail, STEPS)
    layer, backward, direction, within, other = place // 16, place // 8 % 2, place // 4 % 2, place // 2 % 2, place % 2
    if within:
        missing = "what other blocks of the layer compute in this very step"
    elif other:
        missing = f"the gradient from layer {layer + 1}" if backward else f"the output of layer {layer - 1}"
    else:
        missing = f"the {'gradient of the ' if backward else ''}state that other blocks of the layer compute"
    return (
        f"a persistent kernel gave up: layer {layer}, direction {direction}, waited in vain for {missing} and that it "
        f"needs at step {step} of the {'backward' if backward else 'forward'} pass",
        "The device may be shared with work that stopped it for long: call again, or make the layer with "
        "schedule='stepwise', which waits for nothing within a kernel. If it happens again, please report it",
    )


#: kind -> function of the detail: (what went wrong, what to do), both text without a full stop at the end.
KINDS = {TIMED_OUT: _explain_timeout}


def explain(code, caller):
    """What a code says that a call left, as text.

    Args:
        code: as `code_of` makes it.
        caller: who made the call, such as the layer's repr.
    """
    kind, detail = divmod(code, KIND)
    what, cure = KINDS[kind](detail)
    return (
        f"a call of {caller} failed: {what}. All of its results are NaN (with them a `dw` that it was to add to), and "
        f"so is what was computed from them. {cure}"
    )


@device_function
def make_report():
    """Make report(flag, code): say that the call failed, unless that was said before."""
    load, store = ptx.load, ptx.store

    def report(flag, code):
        if load(flag, 0) == 0:
            store(flag, 0, np.int64(code))

    return report
