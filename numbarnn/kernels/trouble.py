"""Calls that fail on the device: how a kernel says so, and what becomes of the call's results.

A call that can fail has one int64 of the device's memory, its word, zero at first.

    report(word, code)                              # in a kernel: what is wrong; the first one stays
    trouble.spoil(results, word, told, caller)      # the call's last kernel: results become NaN if the word is not 0
    raise RuntimeError(trouble.explain(code, call)) # on the host, which finds the code in `told`, memory of its own

Where a persistent forward launch is the call's last task, its last block does what `spoil` does
(`persistent.ends.make_leave`).

A code is kind and detail, `code_of(kind, detail)`; `KINDS` says in words what each means. A new kind of failure is a
number and an entry there, and a kernel that calls `report`.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.precision import is_half
from numbarnn.compile.backend import BACKEND, TINY_LAUNCHES
from numbarnn.compile.specialise import jit
from numbarnn.compile.storage import stored
from numbarnn.cuda import ptx
from numbarnn.cuda.launch import Kernel, LaunchConfig

# From the lowest bits on: 48 of detail, 3 of kind, 12 of the number of who called; all positive.
KIND, CALLER = 1 << 48, 1 << 51
CALLERS = 1 << 12

WAITED = 1  # a block of a persistent kernel waited in vain; detail: place * STEPS + step
STEPS = 1 << 32
# Added where it waited for another layer, not for blocks of its own; or for what these exchange within a step.
OTHER_LAYER, WITHIN = STEPS, 2 * STEPS

RESULTS = 4  # arrays that one launch of `spoil` takes
THREADS_PER_BLOCK, BLOCKS = 256, 8


def code_of(kind, detail=0):
    """The code that a kernel reports: an int from 1 to 2^51 - 1."""
    return kind * KIND + detail


def waited(layer, direction, backward):
    """The code of a block of a persistent kernel that waits in vain, but for where: the block adds its step, and
    OTHER_LAYER or WITHIN if it waits for another layer, or within the step."""
    return code_of(WAITED, (layer * 16 + backward * 8 + direction * 4) * STEPS)


def _explain_waited(detail):
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
KINDS = {WAITED: _explain_waited}


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


@cache
def make_report():
    """A device function report(word, code): say that the call failed. What was said before stays, except the
    block's own `unnamed` code."""
    load, store, unnamed = ptx.load, ptx.store, make_unnamed()

    def report(word, code):
        said = load(word, 0)
        if said == 0 or said == unnamed():
            store(word, 0, np.int64(code))

    return jit(report, BACKEND)


@cache
def make_unnamed():
    """A device function unnamed(): a code that says which block failed, and not yet why: the block reports that."""

    def unnamed():
        return np.int64(-1) - np.int64(cuda.blockIdx.x)

    return jit(unnamed, BACKEND)


@cache
def make_spoil(dtype):
    """The kernel for results of a dtype; "float16" stands for both halves, of which the same bits are NaN."""
    nan = np.uint16(0x7FFF) if is_half(dtype) else np.dtype(dtype).type(np.nan)

    @cuda.jit
    def spoil_kernel(results, told, word, caller):
        """results = NaN if the call failed

        Writes   results, a tuple of RESULTS flat arrays; told (1,), memory of the host: the code and who called,
                 unless the host has not looked yet at what another call left there
        Reads    word (1,); caller, a multiple of CALLER
        Launch   1-D, grid-stride; any grid is correct. After all else that the call does
        """
        code = word[0]
        if code != 0:
            if cuda.grid(1) == 0 and told[0] == 0:
                told[0] = caller + code
            for number in range(RESULTS):
                result = results[number]
                for i in range(cuda.grid(1), result.size, cuda.gridsize(1)):
                    result[i] = nan

    return Kernel(spoil_kernel, f"spoil_{16 if is_half(dtype) else dtype}")


def spoil(results, word, told, caller):
    """Make the results of a failed call NaN, and tell the host.

    Args:
        results: contiguous arrays of one dtype.
        word: (1,) int64, the call's. told: (1,) int64, memory that the host reads.
        caller: number of the caller (below CALLERS) times CALLER.
    """
    kernel = make_spoil("float16" if results[0].dtype.itemsize == 2 else results[0].dtype.name)
    config = LaunchConfig(grid=2, block=4) if TINY_LAUNCHES else LaunchConfig(grid=BLOCKS, block=THREADS_PER_BLOCK)
    flat = [stored(array.reshape(-1)) for array in results]
    flat += [flat[0][:0]] * (-len(flat) % RESULTS)
    for first in range(0, len(flat), RESULTS):
        kernel.bind(config, tuple(flat[first : first + RESULTS]), told, word, np.int64(caller))()
