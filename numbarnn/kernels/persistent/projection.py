"""The additional work of a step if h is a projection (h = W_hr m, m the cell's output).

A block also owns the outputs with the numbers of its units, as far as h is that wide. Forward it publishes m of its
units, separate warps multiply all of m by its outputs' rows of W_hr, and it publishes the result, its part of h.
Backward it publishes its outputs' gradients, and these warps multiply all of them by its units' columns of W_hr. For
`within.make_multiply` that is one more product of a step.
"""

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_type
from numbarnn.compile import storage
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import block, exchange, within_backward
from numbarnn.kernels.persistent.context import Owned, make_pair
from numbarnn.kernels.persistent.within import make_multiply, make_stage_sums


@device_function
def make_owned():
    """Make owned_of(owned, outputs) -> the block's outputs as `context.Owned`."""
    return lambda owned, outputs: Owned(owned.unit, outputs, owned.hidden, owned.begin, owned.end, owned.batch)


@device_function
def make_forward(cell, tile, drops, masked):
    """Make project(thread, role, turn), which computes a step's h after m has been published.

    All threads of the block call it together. Afterwards `thread.timed_out` is set if one of them timed out.

    Args:
        drops, masked: as for `forward.make_forward`.
    """
    dtype, product, P = tile.dtype, cell.num_products, tile.pairs
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, 1)
    publish, dropout_factor = exchange.make_publish(dtype, tile.aligned), block.make_dropout_factor(dtype)
    pair_of, number = make_pair(tile), compute_type(dtype)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)

    def project(thread, role, turn):
        multiply(thread, role, turn)
        outputs = role.outputs
        owned, (array, width, column) = outputs.owned, outputs.rows
        for i in range(P):
            pair, unit, b, valid = pair_of(owned, turn.b0, i)
            stored, position = narrow(number(0)), np.int64(0)
            if valid:
                position = (turn.t * owned.batch + b) * width + column + unit
                stored = narrow(sums(thread, role, pair)[0])
                if masked and thread.code_of[i] == SKIP:
                    stored = array[position + outputs.before * owned.batch * width]
            publish(array, position + owned.batch * width, stored, valid)
            if drops and role.mask >= 0:
                factor = dropout_factor(position, role.options, role.mask)
                publish(outputs.dropped, position, narrow(widen(stored) * factor), valid)

    return project


@device_function
def make_backward(cell, tile, inputs, drops, masked):
    """Make project(thread, role, turn, last), which computes the gradient of a step's m, with the gradient from above.

    It replaces the state's gradient from later steps that `within_backward.make_gather` has stored. All threads of
    the block call it together.

    Args:
        inputs, drops, masked: as for `forward.make_forward`.

    Args of project:
        last: whether all steps are done, so that only the initial state's gradients are left.
    """
    dtype, product, P, state_at = tile.dtype, cell.num_products, tile.pairs, block.make_state_at(cell, tile)
    M, number = 1 + cell.num_states, compute_type(tile.dtype)
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, 1)
    gather = within_backward.make_gather(cell, tile, inputs, drops, masked)
    publish, pair_of, narrow = exchange.make_publish(dtype, tile.aligned), make_pair(tile), storage.narrow(dtype)

    def project(thread, role, turn, last):
        gather(thread, role, turn)
        if last:
            return
        outputs = role.outputs
        owned, (array, width, column) = outputs.owned, outputs.rows
        for i in range(P):
            pair, unit, b, valid = pair_of(owned, turn.b0, i)
            d_h = number(0)
            if valid and not (masked and thread.code_of[i] == SKIP):  # else all belongs to the step before
                d_h = thread.d_after[i * M] + thread.d_after[i * M + 1]
                thread.shared[state_at(owned, turn.b0, pair)] = number(0)
            publish(array, (turn.t * owned.batch + b) * width + column + unit, narrow(d_h), valid)
        multiply(thread, role, turn)
        for i in range(P):
            pair, _, _, valid = pair_of(role.owned, turn.b0, i)
            if valid:
                thread.d_after[i * M], thread.d_after[i * M + 1] = number(0), sums(thread, role, pair)[0]

    return project
