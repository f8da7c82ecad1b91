"""Rows of units in the CPU engine's loops, which know no cell here: copies, zeros, step masks, and tiles.

A tile is a small buffer in which a thread collects the results of TILE units, a row of TILE for each of their values,
before it stores them.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from numbarnn.common.order import RESET
from numbarnn.engines.cpu.products import INNER

TILE = 128  # units


class Thread(NamedTuple):
    """The thread that runs, as `thread_pool.ThreadPool` tells it.

    Attributes:
        number: 0 to count - 1.
        count: of the threads that run together.
        counters: for `atomics.barrier`.
    """

    number: int
    count: int
    counters: Any


class Units(NamedTuple):
    """The thread's units, [first, last) of H."""

    first: int
    last: int
    H: int


def if_there(otherwise=lambda *arguments: None):
    """A decorator of functions for compiled code: where their first argument is None, `otherwise` is called instead.

    An `if` will do where both branches return the same type. Else Numba would take the result for one that may be
    either, as it leaves out branches for None, but not those for arrays.
    """

    def decorate(function):
        def chosen(*arguments):
            raise NotImplementedError("only for compiled code")

        @overload(chosen, strict=False, jit_options=INNER | {"cache": False})
        def _typed(*arguments):
            return otherwise if isinstance(arguments[0], types.NoneType) else function

        return chosen

    return decorate


@njit(**INNER)
def copy_units(row, other, values, units):
    """row = other, for the thread's units of `values` values of H units each."""
    for start in range(0, values * units.H, units.H):
        for j in range(start + units.first, start + units.last):
            row[j] = other[j]


@njit(**INNER)
def clear_units(row, values, units):
    """row = 0, likewise; nothing without a row."""
    if row is not None:
        for start in range(0, values * units.H, units.H):
            row[start + units.first : start + units.last] = 0


@if_there()
def row_of(array, b):
    """Row b."""
    return array[b]


# ------------------------------------------------------------------------------------------ step masks
@njit(**INNER)
def mask_at(step_mask, slot, b):
    """The mask of a sequence's step, by the slot after it; 0, an ordinary step, in a call without masks."""
    if step_mask is None:
        return np.uint8(0)
    return step_mask[slot, b]


@if_there()
def zero_row(step_mask, like, size):
    """The state before a step that begins anew."""
    return np.zeros(size, dtype=like.dtype)


@njit(**INNER)
def unless_reset(row, zeros, mask):
    """A row of the state before a step, as the step sees it."""
    if zeros is None:
        return row
    return zeros[0:] if mask == RESET else row


# ------------------------------------------------------------------------------------------ tiles
@njit(**INNER)
def put(row, first, H, tile, values, n):
    """row[k H + first + i] = tile[k TILE + i], for n units i of each value k; nothing without a row."""
    if row is not None:
        for k in range(values):
            target, source = row[k * H + first : k * H + first + n], tile[k * TILE :]
            for i in range(n):
                target[i] = source[i]


@njit(**INNER)
def add_rows(tile, other, n):
    """Row 0 of a tile += the first n values that begin at place `other`."""
    first, second = tile[:n], tile[other:]
    for i in range(n):
        first[i] += second[i]


@njit(**INNER)
def add_lanes(parts, tile):
    """parts[q] = the sum of row q of a tile, its values added up in pairs, those in pairs, and so on."""
    for q in range(parts.shape[0]):
        width = TILE // 2
        while width > 0:
            add_rows(tile[q * TILE :], width, width)
            width //= 2
        parts[q] = tile[q * TILE]


@njit(**INNER)
def add_parts(totals, parts, first, last):
    """totals (B, Q) = the sum of all threads' parts (threads, B, Q), in their order, of columns [first, last)."""
    for b in range(totals.shape[0]):
        for q in range(first, last):
            total = parts[0, b, q]
            for other in range(1, parts.shape[0]):
                total += parts[other, b, q]
            totals[b, q] = total
