"""A cell's tuples in memory: value k of unit j stands at index k * H + j of a row.

Tuples need a length that is known when compiling, so the function for n values is built on the one for n - 1. Indices
carry no literals: an unsigned j and H stay unsigned, which lets LLVM see that they are not negative, and vectorise.
Where numbers are stored otherwise than they are computed (float16), a device function `widen` is applied to each that
is loaded, and `narrow` to each that is stored; None leaves them as they are.
"""

from functools import cache

import numpy as np

from numbarnn.cells.definition import jit


@cache
def unchanged(target):
    """The device function value -> value."""
    return jit(lambda value: value, target)


@cache
def joiner(target):
    """The device function (first, rest) -> (first, *rest): Numba cannot compile several such tuples in one function."""
    return jit(lambda first, rest: (first, *rest), target)


@cache
def loader(count, target, widen=None):
    """A device function load(row, j, H) -> (row[j], row[H + j], ...), `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H: (), target)
    load_rest, convert = loader(count - 1, target, widen), widen or unchanged(target)

    def load(row, j, H):
        return (convert(row[j]), *load_rest(row, j + H, H))

    return jit(load, target)


@cache
def biased_loader(count, target, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `loader`, each value with its bias added."""
    if count == 0:
        return jit(lambda row, bias, j, H: (), target)
    load_rest = biased_loader(count - 1, target, widen, widen_bias)
    convert, convert_bias = widen or unchanged(target), widen_bias or unchanged(target)

    def load(row, bias, j, H):
        return (convert(row[j]) + convert_bias(bias[j]), *load_rest(row, bias, j + H, H))

    return jit(load, target)


@cache
def reset_loader(outer, count, target, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `biased_loader`, but of the first `outer` values the bias alone."""
    if count == 0:
        return jit(lambda row, bias, j, H: (), target)
    load_rest = reset_loader(max(0, outer - 1), count - 1, target, widen, widen_bias)
    convert, convert_bias = widen or unchanged(target), widen_bias or unchanged(target)
    if outer:
        return jit(lambda row, bias, j, H: (convert_bias(bias[j]), *load_rest(row, bias, j + H, H)), target)

    def load(row, bias, j, H):
        return (convert(row[j]) + convert_bias(bias[j]), *load_rest(row, bias, j + H, H))

    return jit(load, target)


@cache
def storer(count, target, narrow=None):
    """A device function store(row, j, H, values): row[k H + j] = values[k] for `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H, values: None, target)
    store_rest, convert = storer(count - 1, target, narrow), narrow or unchanged(target)

    def store(row, j, H, values):
        row[j] = convert(values[0])
        store_rest(row, j + H, H, values[1:])

    return jit(store, target)


@cache
def adder(count, target):
    """A device function add(a, b): the sums of two tuples' values."""
    if count == 0:
        return jit(lambda a, b: (), target)
    add_rest = adder(count - 1, target)
    return jit(lambda a, b: (a[0] + b[0], *add_rest(a[1:], b[1:])), target)


@cache
def zeros(count, target, dtype):
    """A device function () -> a tuple of `count` zeros of a dtype (a name)."""
    zero = np.dtype(dtype).type(0)
    if count == 0:
        return jit(lambda: (), target)
    rest = zeros(count - 1, target, dtype)
    return jit(lambda: (zero, *rest()), target)
