"""The order of time: one home for which time a direction's step is, and where the state before it stands.

Plain functions of ints: Python, `numba.njit` and `cuda.jit(device=True)` run them alike.
"""


def step_time(step, steps, direction, backward):
    """(t, before): the step is time t of 0 to steps - 1, and starts from slot `before` of h.

    Slot t + 1 of h (T + 2, B, D * H) holds the state after time t; slots 0 and T + 1 hold the initial states of the
    forward (direction 0) and the backward direction (1).

    Args:
        step: number of the step in the order in which the pass goes through it.
        backward: of the backward pass, which walks each direction from its last step to its first.
    """
    t = step if (direction == 1) == backward else steps - 1 - step
    return t, t + 2 * direction
