"""The order of time: the time of a direction's step, the slot of the state before it, and the mask of skipped steps.

These plain functions of ints run in Python, on the CPU and on GPUs.
"""

# A step mask's code of one step of one sequence, a uint8: 0 is an ordinary step.
RESET = 1  # the state before the step counts as zero
SKIP = 2  # beyond the sequence's length: the state is carried through, nothing else happens


def step_time(step, steps, direction, backward):
    """Return (t, before): the time of a step, 0 to steps - 1, and the slot of h from which the step starts.

    Slot t + 1 of h (T + 2, B, D * H) holds the state after time t. Slots 0 and T + 1 hold the initial states of the
    forward (direction 0) and the backward direction (1).

    Args:
        step: number of the step in the order of the pass.
        backward: whether the pass is backward, from each direction's last step to its first.
    """
    t = step if (direction == 1) == backward else steps - 1 - step
    return t, t + 2 * direction


def mask_of_step(t, direction, length, resets, b):
    """Return the mask code of time t of sequence b in a direction.

    Nothing passes between a time with a reset and the time before it. So the forward direction resets its state
    before the former, the backward direction before the latter.

    Args:
        length: of the sequence; beyond it nothing is reset.
        resets: (T, B), true where a sequence is reset; (0, B) without resets.
    """
    if t >= length:
        return SKIP
    start = t + direction
    if start < resets.shape[0] and start < length and resets[start, b]:
        return RESET
    return 0
