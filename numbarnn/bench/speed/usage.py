"""What calls use besides time: memory and energy, of all contenders of a row, where somebody tells."""

from contextlib import suppress

import numpy as np

from numbarnn import engines
from numbarnn.bench.speed import energy, memory


def measured(contenders, seconds, device):
    """The fields `peak_bytes` and `energy_j` of a row: contender -> bytes, and joules, of a call.

    Args:
        contenders: name -> `Contender`. seconds: name -> its times per call. device: "cpu" or "cuda".
    """
    peak, joules = {}, {}
    meter, _ = energy.counter(device)
    if meter is not None:
        for name, contender in contenders.items():
            joules[name] = energy.joules_per_call(meter, contender, float(np.median(seconds[name])), device)
    if memory.why_not(device) is None:  # behind it: what engines keep for calls is given back then
        for name, contender in contenders.items():
            with suppress(MemoryError, RuntimeError):  # there are two of it then: what has no room has no figure
                again = contender.again or (lambda one=contender: one)
                peak[name] = memory.peak_bytes(again, device, engines.get(device))
    return {"peak_bytes": peak, "energy_j": joules}


def method(device):
    """How both are told, or why not, as words for a record."""
    meter, reason = energy.counter(device)
    absent = memory.why_not(device)
    return {
        "memory": f"absent: {absent}" if absent else memory.METHOD[device],
        "energy": meter.about if meter else f"absent: {reason}",
    }
