"""Multiply a warp's part of the weights by its part of the block's operand, in persistent kernels.

    product = make_product(tile)    # by tensor cores (`mma`) or by FMA (`fma`), as the tile says
    product.load(...)               # once, loads the warp's part of the weights to registers or shared memory
    product.step(...)               # at every step, gathers the warp's operand and leaves partial sums
    sums = make_sums(tile, ...)     # adds the warps' partial sums

Partial sums are in shared memory at the places that `tile.Tile` defines.
"""

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.cuda.backend import per_backend
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import fma, mma


@per_backend
def make_product(tile):
    """Make the device functions of a tile's product.

    Returns:
        A namespace of
        load(thread, role): load the warp's part of the weights to `Thread.registers` or shared memory, once per call. A
            barrier of the block must follow.
        step(thread, role, turn): wait for the warp's operand, multiply it, and leave partial sums in shared memory.
    """
    if tile.math != "fma":
        return mma.make_product(tile)
    return fma.make_product_from_registers(tile) if tile.register_chunks else fma.make_product_from_shared(tile)


@device_function
def make_sums(tile, count, ranges):
    """Make sums(shared, at, begin, end) -> `count` numbers of one (unit, sequence), each added over warps in order. at:
    place of warp 0's partial sum of the unit's first row. Warps [begin, end) are added, or all without `ranges`,
    since idle warps leave zeros."""
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
    """Make index(number), which returns a place in memory, with `short` as an unsigned number. Unsigned places cannot
    be negative, so the compiler uses one address with constant offsets, which saves registers."""
    return (lambda number: np.uint64(number)) if short else (lambda number: number)
