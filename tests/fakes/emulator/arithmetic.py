"""What PTX instructions compute, on NumPy arrays with one element per thread, or scalars where all threads agree."""

from functools import lru_cache

import numpy as np

WARP = 32
F32, F64, I64, U32, U64 = np.float32, np.float64, np.int64, np.uint32, np.uint64
ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def per_lane(value, lanes):
    """A value with one element per lane; as it is if it has that, as NumPy's broadcasting takes a while."""
    return value if np.shape(value) == (lanes,) else np.broadcast_to(value, lanes)


def fma32(a, b, c):
    """Rounded twice where float64's 53 bits do not hold the sum: 1e-9 of the last place at most."""
    total = np.multiply(a, b, dtype=F64)
    return (total + c).astype(F32)


def fma32_to_zero(a, b, c):
    """Rounded towards 0."""
    total = np.multiply(a, b, dtype=F64) + c
    nearest = total.astype(F32)
    return np.where(np.abs(nearest) > np.abs(total), np.nextafter(nearest, F32(0)), nearest)


def fma64(a, b, c):
    """a b + c with the product's and the sum's rounding errors added at the end (Dekker, Knuth)."""
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    other = total - product
    error = error + ((product - (total - other)) + (c - other))
    return np.where(np.isfinite(total + error), total + error, total)


def _upper_half(a):
    scaled = a * F64(2**27 + 1)
    return scaled - (scaled - a)


def high_half(a, b):
    """The upper 64 bits of the product of two int64 or uint64, as a's type."""
    if np.ndim(a) == np.ndim(b) == 0:  # NumPy's products of 0-d arrays of objects are Python's numbers
        return a.dtype.type((int(a) * int(b)) >> 64)
    return ((a.astype(object) * b.astype(object)) >> 64).astype(a.dtype)


def quotient(a, b):
    """Integers: rounded towards 0; where b is 0, anything (threads that do not take part)."""
    b = np.where(b == 0, b.dtype.type(1), b)
    return a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


def remainder(a, b):
    return np.fmod(a, np.where(b == 0, b.dtype.type(1), b))


def shift(a, amount, left):
    """Amounts of the width or more shift everything out; signed numbers are filled with their sign."""
    width = 8 * a.dtype.itemsize
    within = np.minimum(amount, width - 1).astype(a.dtype)
    if not left:
        shifted = np.right_shift(a, within)
        return shifted if a.dtype.kind == "i" else np.where(amount >= width, a.dtype.type(0), shifted)
    return np.where(amount >= width, a.dtype.type(0), np.left_shift(a, within))


def insert_bits(field, a, position, length):
    """bfi: a with `length` bits from `position` on replaced by the lowest of `field`."""
    one = a.dtype.type(1)
    ones = shift(one, length, True) - one
    mask = shift(ones, position, True)
    return (a & ~mask) | (shift(field, position, True) & mask)


def permute_bytes(a, b, selector):
    """prmt.b32, default mode."""
    both = a.astype(U64) | (b.astype(U64) << U64(32))
    result = U64(0)
    for place in range(4):
        choice = (selector >> U32(4 * place)) & U32(15)
        byte = (both >> ((choice & U32(7)).astype(U64) * U64(8))) & U64(255)
        sign = np.where((byte & U64(128)) != 0, U64(255), U64(0))
        result = result | (np.where((choice & U32(8)) != 0, sign, byte) << U64(8 * place))
    return result.astype(U32)


def to_tf32(a):
    """cvt.rna.tf32: to 10 bits of mantissa, halves away from zero; the lower 13 bits are 0."""
    bits = a.view(U32)
    is_finite = (bits & U32(0x7F800000)) != U32(0x7F800000)
    return np.where(is_finite, (bits + U32(0x1000)) & U32(0xFFFFE000), bits)


def to_integer(a, dtype, rounding):
    """cvt of a float: rounded, out of range to the nearest that fits, NaN to 0."""
    rounded = ROUND[rounding](a.astype(F64))
    limits = np.iinfo(dtype)
    inside = np.where(np.isnan(rounded), 0.0, np.clip(rounded, float(limits.min), float(limits.max)))
    most = np.nextafter(F64(float(limits.max) + 1), F64(0)) if np.dtype(dtype).itemsize == 8 else F64(limits.max)
    converted = np.minimum(inside, most).astype(dtype)
    return np.where(inside >= float(limits.max), dtype(limits.max), converted)


def compare(name, a, b):
    """setp's comparisons; the ones that end in u are also true if a number is NaN."""
    if name in _ORDERED:
        return _ORDERED[name](a, b)
    if name == "num":
        return ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return np.isnan(a) | np.isnan(b)
    return _ORDERED[name[:-1]](a, b) | np.isnan(a) | np.isnan(b)


def _not_equal(a, b):
    different = a != b
    return different & ~(np.isnan(a) | np.isnan(b)) if a.dtype.kind == "f" else different


_ORDERED = {
    "eq": np.equal, "ne": _not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------- whole warps
def shuffle(kind, a, b, limits, lanes):
    """(what each lane gets, whether it was in range) of shfl.sync; `lanes` is the number of all threads."""
    a = per_lane(a, lanes)
    if np.ndim(b) == 0 and np.ndim(limits) == 0:
        source, in_range = _same_sources(kind, int(b), int(limits), lanes)
        return a.reshape(-1, WARP)[:, source].reshape(lanes), in_range
    own = np.arange(lanes, dtype=I64)
    source, in_range = _sources(kind, own % WARP, b.astype(I64), limits.astype(I64))
    return a[own - own % WARP + source], in_range


@lru_cache(maxsize=256)
def _same_sources(kind, b, limits, lanes):
    """As `_sources`, of operands that are the same for all: (of one warp, of every lane)."""
    source, in_range = _sources(kind, np.arange(WARP), I64(b), I64(limits))
    return source, np.tile(in_range, lanes // WARP)


def _sources(kind, lane, b, limits):
    """(the lane that each lane reads, whether it is in range)."""
    segment, clamp = (limits >> 8) & 31, limits & 31
    last, first = (lane & segment) | (clamp & ~segment), lane & segment
    source = {"bfly": lane ^ b, "down": lane + b, "up": lane - b, "idx": first | (b & 31 & ~segment)}[kind]
    in_range = source >= last if kind == "up" else source <= last
    return np.where(in_range, source, lane), in_range


def mma(shape, kind, a, b, c, lanes):
    """The four results of mma.sync.m16n8k16 (f16, bf16) or m16n8k8 (tf32), float32 sums.

    Which lane holds which elements: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... mma.m16n8k8".
    """
    depth = {"m16n8k16": 16, "m16n8k8": 8}[shape]
    warps, group, pair = lanes // WARP, np.arange(WARP) // 4, np.arange(WARP) % 4
    A, B, C = (np.zeros((warps, *size), F32) for size in ((16, depth), (depth, 8), (16, 8)))
    words = lambda register: per_lane(register, lanes).reshape(warps, WARP)  # noqa: E731
    for number, register in enumerate(a):
        rows, later = group + 8 * (number & 1), number >> 1
        for column, values in _elements(kind, words(register), pair, later):
            A[:, rows, column] = values
    for number, register in enumerate(b):
        for row, values in _elements(kind, words(register), pair, number):
            B[:, row, group] = values
    places = [(group + 8 * (number >> 1), 2 * pair + (number & 1)) for number in range(4)]
    for place, register in zip(places, c, strict=True):
        C[(slice(None), *place)] = words(register)
    product = A @ B + C
    return [np.ascontiguousarray(product[(slice(None), *place)]).reshape(-1) for place in places]


def _elements(kind, words, pair, later):
    """(column of A or row of B, float32 values) of one register of all lanes."""
    if kind == "tf32":
        return [(pair + 4 * later, (words & U32(0xFFFFE000)).view(F32))]
    low, high = words & U32(0xFFFF), words >> U32(16)
    if kind == "bf16":
        values = [(half << U32(16)).view(F32) for half in (low, high)]
    else:
        values = [half.astype(np.uint16).view(np.float16).astype(F32) for half in (low, high)]
    return [(2 * pair + 8 * later + number, value) for number, value in enumerate(values)]
