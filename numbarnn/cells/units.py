"""A cell's tuples in memory: value k of unit j stands at index k * H + j of a row.

Tuples need a length that is known when compiling, so the function for n values is built on the one for n - 1. Indices
carry no literals: an unsigned j and H stay unsigned, which lets LLVM see that they are not negative, and vectorise.
"""

from functools import cache

from numbarnn.cells.definition import jit


@cache
def loader(count, target):
    """A device function load(row, j, H) -> (row[j], row[H + j], ...), `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H: (), target)
    load_rest = loader(count - 1, target)

    def load(row, j, H):
        return (row[j], *load_rest(row, j + H, H))

    return jit(load, target)


@cache
def biased_loader(count, target):
    """A device function load(row, bias, j, H): as `loader`, each value with its bias added."""
    if count == 0:
        return jit(lambda row, bias, j, H: (), target)
    load_rest = biased_loader(count - 1, target)

    def load(row, bias, j, H):
        return (row[j] + bias[j], *load_rest(row, bias, j + H, H))

    return jit(load, target)


@cache
def storer(count, target):
    """A device function store(row, j, H, values): row[k H + j] = values[k] for `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H, values: None, target)
    store_rest = storer(count - 1, target)

    def store(row, j, H, values):
        row[j] = values[0]
        store_rest(row, j + H, H, values[1:])

    return jit(store, target)
