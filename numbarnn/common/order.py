"""The order of time: the time of a direction's step, the slot of the state before it, and masks of skipped steps.

Python, `numba.njit` and `cuda.jit(device=True)` all run these plain functions of ints.
"""

# A step mask's code of one step of one sequence, a uint8: 0 is an ordinary step.
RESET = 1  # the state before the step counts as zero
SKIP = 2  # beyond the sequence's length: the state is carried through, nothing else happens


def step_time(step, steps, direction, backward):
    """Return (t, before): the step is time t of 0 to steps - 1, and starts from slot `before` of h.

    Slot t + 1 of h (T + 2, B, D * H) holds the state after time t; slots 0 and T + 1 hold the initial states of the
    forward (direction 0) and the backward direction (1).

    Args:
        step: number of the step in the order in which the pass goes through it.
        backward: of the backward pass, which walks each direction from its last step to its first.
    """
    t = step if (direction == 1) == backward else steps - 1 - step
    return t, t + 2 * direction


def mask_of_step(t, direction, length, resets, b):
    """Return the mask code of time t of sequence b in a direction.

    A sequence that is reset at a time passes nothing across the moment before it: the forward direction resets its
    state before that time, the backward direction before the previous time.

    Args:
        length: of the sequence; beyond it nothing is reset.
        resets: (T, B), true where a sequence is reset; of no times without resets.
    """
    if t >= length:
        return SKIP
    start = t + direction
    if start < resets.shape[0] and start < length and resets[start, b]:
        return RESET
    return 0
