"""A small persistent RNN kernel to read before `persistent`: one launch computes all steps of one layer.

    h_t = tanh(ax_t + R h_{t-1})        ax_t = W x_t + b, one product over all steps before the launch

Each block owns some units and keeps their rows of R in shared memory during the whole launch. Each step needs the
whole previous state, so blocks wait for each other's numbers. h starts as NaN, and a number has been computed once
it is not NaN. `persistent` adds gates, backward, layers, lengths, tensor cores, weights in registers and 16-byte
loads. It also tells a computed NaN from a missing number.
"""

import math

import numpy as np

from numbarnn.cuda import ptx
from numbarnn.cuda.backend import per_backend
from numbarnn.cuda.language import cuda

UNITS, SEQUENCES = 4, 8  # of a block: units that it owns, and sequences at once, one thread for each pair of them
THREADS = UNITS * SEQUENCES
PATIENCE = 1 << 20  # how often a thread looks for a number


@per_backend
def make_rnn(hidden):
    """Make the kernel for H = `hidden`, a constant since it is the size of an array in shared memory."""
    load, store, sleep = ptx.load, ptx.store, ptx.sleep

    @cuda.jit(device=True)
    def wait(h, index):
        """Return h[index] once it has been computed, or NaN after a timeout."""
        value, looks = load(h, index), 0
        while value != value and looks < PATIENCE:
            sleep(np.uint32(20))
            value, looks = load(h, index), looks + 1
        return value

    @cuda.jit
    def minimal_rnn_kernel(h, ax, R):
        """Compute all steps of one layer.

        Writes   h (T+1, B, H), flat: slots 1 to T, which are full of NaN before the launch
        Reads    slot 0 of h, the initial state; ax (T, B, H); R (H, H); all float32
        Launch   cooperative, ceil(H / UNITS) blocks of THREADS threads
        """
        rows = cuda.shared.array((UNITS, hidden), np.float32)  # of R
        state = cuda.shared.array((SEQUENCES, hidden), np.float32)
        missing = cuda.shared.array(1, np.int32)
        thread, first, (steps, batch, _) = cuda.threadIdx.x, cuda.blockIdx.x * UNITS, ax.shape
        unit, sequence = thread % UNITS, thread // UNITS
        missing[0] = 0
        for at in range(thread, min(UNITS, hidden - first) * hidden, THREADS):
            rows[at // hidden, at % hidden] = R[first + at // hidden, at % hidden]
        cuda.syncthreads()
        for t in range(steps):
            for b0 in range(0, batch, SEQUENCES):
                # 1. Read the previous state of all units; a block that times out leaves, and then so do all others.
                for at in range(thread, min(SEQUENCES, batch - b0) * hidden, THREADS):
                    value = wait(h, (t * batch + b0) * hidden + at)
                    state[at // hidden, at % hidden] = value
                    if value != value:
                        missing[0] = 1
                cuda.syncthreads()
                if missing[0] != 0:
                    return
                # 2. Compute the thread's unit of its sequence, the product and the cell, and publish it.
                b, j = b0 + sequence, first + unit
                if b < batch and j < hidden:
                    total = ax[t, b, j]
                    for k in range(hidden):
                        total += rows[unit, k] * state[sequence, k]
                    store(h, ((t + 1) * batch + b) * hidden + j, math.tanh(total))
                cuda.syncthreads()  # before the state is overwritten

    return minimal_rnn_kernel
