"""How the blocks of a cluster share products backward (compute capability 9.0 and later): reading less of what all
blocks exchange.

A block alone multiplies all columns for its own units, and so reads all of what is exchanged. The C blocks of a cluster
each multiply a C-th of the columns for the units of all of them: the weights of a block are as many, and what it reads
is a C-th. Then each adds up its warps' partial sums, stores those of the others' units in their shared memory, and
waits at a barrier of the cluster; and each adds the C sums of its own units, in the order of the blocks.

Even and odd turns have places of their own for what comes. So a block writes over what it stored at turn n only at turn
n + 2. It has passed the barrier of turn n + 1 by then, and every block had read what turn n brought before it came to
that barrier.

A block that waits in vain for its columns must not leave alone. Its shared memory would be gone while others store to
it. So it comes to the barrier too and sends, beside its sums, that it has failed; all blocks of the cluster find that
at the same turn, and leave together. The barrier itself has no bound and needs none: each block comes to it after its
own bounded wait.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.precision import compute_dtype
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.products import make_sums


@cache
def make_share_sums(tile):
    """A device function share_sums(shared, failed, owned, turn): sends the block's sums of a `within.Turn` to the
    blocks of its cluster, and waits for theirs; whether no block of it has `failed`. A barrier of the block must have
    come before. Of a block alone only whether it has not failed.
    """
    if tile.cluster == 1:
        return jit(lambda shared, failed, owned, turn: failed[0] == 0, BACKEND)
    U, C, THREADS, PARTIALS, ROW_STRIDE = tile.units, tile.cluster, tile.threads, tile.partials, tile.row_stride
    BETWEEN, NUMBERS = tile.between_blocks, tile.sequences * tile.cluster_units
    number = np.dtype(compute_dtype(tile.dtype)).type
    sums, place_of = make_sums(tile, 1, False), _make_place(tile)
    store_to_block, cluster_barrier = ptx.store_to_block, ptx.cluster_barrier

    def share_sums(shared, failed, owned, turn):
        thread = cuda.threadIdx.x
        if turn.step == 0 and turn.b0 == owned.begin:
            cluster_barrier()  # before it, other blocks may not have begun
        place = place_of(owned, turn)
        own = place + cuda.blockIdx.x % C * BETWEEN
        for index in range(thread, NUMBERS, THREADS):
            row, b = index % (U * C), index // (U * C)
            total = sums(shared, PARTIALS + b * ROW_STRIDE + row, 0, 0)[0]
            store_to_block(shared, own + b * U + row % U, (np.uint32(row // U), total))
        if thread < C:
            store_to_block(shared, own + BETWEEN - 1, (np.uint32(thread), number(failed[0])))
        cluster_barrier()
        all_well = True
        for of_block in range(C):
            all_well = all_well and shared[place + of_block * BETWEEN + BETWEEN - 1] == number(0)
        return all_well

    return jit(share_sums, BACKEND)


@cache
def make_sum(tile, ranges):
    """A device function sum_of(shared, about, turn, pair): the product with the step after, of one of the block's
    (unit, sequence) pairs in a `within.Turn`.

    Args:
        ranges: see `products.make_sums`.
    """
    if tile.cluster == 1:
        sums, U, PARTIALS, ROW_STRIDE = make_sums(tile, 1, ranges), tile.units, tile.partials, tile.row_stride

        def sum_of(shared, about, turn, pair):
            return sums(shared, PARTIALS + pair // U * ROW_STRIDE + pair % U, 0, about.split)[0]

    else:
        C, BETWEEN, place_of = tile.cluster, tile.between_blocks, _make_place(tile)
        zero = np.dtype(compute_dtype(tile.dtype)).type(0)

        def sum_of(shared, about, turn, pair):
            total, at = zero, place_of(about.owned, turn) + pair
            for of_block in range(C):
                total += shared[at + of_block * BETWEEN]
            return total

    return jit(sum_of, BACKEND)


@cache
def _make_place(tile):
    """A device function place_of(owned, turn): where what blocks send in a turn begins in shared memory."""
    RECEIVED, BETWEEN_TURNS, SEQUENCES = tile.received, tile.cluster * tile.between_blocks, tile.sequences

    def place_of(owned, turn):
        turns = (owned.end - owned.begin + SEQUENCES - 1) // SEQUENCES
        number = turn.step * turns + (turn.b0 - owned.begin) // SEQUENCES
        return RECEIVED + number % 2 * BETWEEN_TURNS

    return jit(place_of, BACKEND)
