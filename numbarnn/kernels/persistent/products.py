"""Products inside persistent kernels: a warp's part of the weights times its part of a vector.

    product = make_product(cut)     # by the tensor cores or by FMA, as the cut says: `tensor_cores`, `fma`
    product.load(...)               # once: the warp's part of the weights to where it stays
    product.step(...)               # per step: gathers the warp's part of the vector, leaves partial sums
    sums = make_sums(cut, ...)      # adds the warps' partial sums

Partial sums stand in shared memory, where `slices.Slice` says.
"""

from functools import cache

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.kernels.persistent import fma, mma


@cache
def make_product(cut):
    """The device functions of a slice's product, by FMA or by the tensor cores.

    Returns:
        A namespace of
        load(fragments, weights, shared, at, units, groups, group_stride, unit_stride, column_stride, count): once per
            call, the warp's part of the weights to where it stays; a barrier of the block must follow.
        step(fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit,
            trouble): gathers the warp's part of the vector, multiplies it, leaves partial sums at `partial`. Whether
            all came in time; if not, `trouble` says so, but not where.
    """
    if cut.math != "fma":
        return mma.make_product(cut)
    return fma.make_product_from_shared(cut) if cut.resident == "shared" else fma.make_product_from_registers(cut)


@cache
def make_sums(cut, count, ranges):
    """A device function sums(shared, at, first, last): `count` numbers of one (unit, sequence), each added over warps.

    at: where warp 0's partial sum of the unit's first row stands; first, last: the warps [first, last) are added, in
    this order; without `ranges` all are (warps that have nothing to multiply leave zeros).
    """
    if count == 0:
        return jit(lambda shared, at, first, last: (), BACKEND)
    rest, warps, units, between = make_sums(cut, count - 1, ranges), cut.warps, cut.units, cut.between_warps
    zero = np.dtype(compute_dtype(cut.dtype)).type(0)

    def sums(shared, at, first, last):
        total = zero
        for warp in range(warps):
            if not ranges or (first <= warp and warp < last):
                total += shared[at + warp * between]
        return (total, *rest(shared, at + units, first, last))

    return jit(sums, BACKEND)
