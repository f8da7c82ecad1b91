"""Products inside persistent kernels: a warp's part of the weights times its part of the block's operand.

    product = make_product(tile)    # by tensor cores or by FMA, as the tile says: `mma`, `fma`
    product.load(...)               # once: the warp's part of the weights to where it stays
    product.step(...)               # per step: gathers the warp's operand, leaves partial sums
    sums = make_sums(tile, ...)     # adds the warps' partial sums

Partial sums stand in shared memory, where `tile.Tile` says.
"""

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.cuda.backend import per_backend
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import fma, mma


@per_backend
def make_product(tile):
    """Make the device functions of a tile's product, by FMA or by tensor cores.

    Returns:
        A namespace of
        load(thread, role): once per call, loads the warp's part of the weights to `Thread.registers` or shared memory.
            A barrier of the block must follow.
        step(thread, role, turn): waits for the warp's operand, multiplies it, leaves partial sums in shared memory.
    """
    if tile.math != "fma":
        return mma.make_product(tile)
    return fma.make_product_from_registers(tile) if tile.register_chunks else fma.make_product_from_shared(tile)


@device_function
def make_sums(tile, count, ranges):
    """Make sums(shared, at, begin, end): `count` numbers of one (unit, sequence), each added over warps.
    at: where warp 0's partial sum of the unit's first row stands; begin, end: the warps [begin, end) are added, in
    this order; without `ranges` all are (idle warps leave zeros)."""
    if count == 0:
        return lambda shared, at, begin, end: ()
    rest, warps, units, between = make_sums(tile, count - 1, ranges), tile.warps, tile.units, tile.between_warps
    zero, in_two_places = np.dtype(compute_dtype(tile.dtype)).type(0), tile.register_chunks and tile.shared_chunks
    # One address and constants need fewer registers, but not with weights in two places (found by compiling).
    index = make_index(bool(tile.for_stages or tile.projects or not in_two_places))

    def sums(shared, at, begin, end):
        total = zero
        for warp in range(warps):
            if not ranges or (begin <= warp and warp < end):
                total += shared[index(at + warp * between)]
        return (total, *rest(shared, at + units, begin, end))

    return sums


@device_function
def make_index(short):
    """Make index(number): a place in memory, with `short` as unsigned.
    Unsigned places cannot count from the end, so all become one address and constants, which saves registers."""
    return (lambda number: np.uint64(number)) if short else (lambda number: number)
