"""Multiply-adds: how many a call takes, and how many this CPU does where nothing else costs time."""

import time
from ctypes import addressof

import numpy as np

from numbarnn import cells
from numbarnn.compile.types import from_dtype
from numbarnn.engines.cpu.calls import address
from numbarnn.engines.cpu.records import Product, by_address, job_at, product_at
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.engines.cpu.vectors import MOST_ROWS, packed_tile, panel_width

TERMS = 128  # of each sum: rows and panel stay in the first cache
TILES = 4000  # in one call, which takes a millisecond or less
CALLS = 200

_tile = packed_tile(MOST_ROWS)


@by_address
def _tiles(zero, job_address):
    """A thread's part: one tile of the engine's products (a `Product`), again and again."""
    job = job_at(job_address)
    what = product_at(job.what)
    out, row = what.out + job.thread * MOST_ROWS * what.out_row, what.out_row
    for _ in range(what.rows):
        _tile(zero, what.a, what.b, what.b, what.terms, out, row, False)


def cpu_peak(threads, dtype="float32"):
    """Floating-point operations per second of the CPU engine's micro-kernel on so many threads, in the first cache: two
    for each multiply-add; the most of many short runs."""
    dtype, pool = np.dtype(dtype), ThreadPool(threads)
    a, panel = np.ones((MOST_ROWS, TERMS), dtype), np.ones((TERMS, panel_width(dtype)), dtype)
    out = np.ones((threads * MOST_ROWS, panel_width(dtype)), dtype)
    what = Product(
        rows=TILES, terms=TERMS, a=address(a), a_row=a.strides[0], b=address(panel), b_row=panel.strides[0],
        out=address(out), out_row=out.strides[0],
    )  # fmt: skip
    function, fastest = _tiles.address(from_dtype(dtype)), float("inf")
    for _ in range(CALLS):
        begin = time.perf_counter()
        pool.run(dtype.itemsize, function, threads, addressof(what))
        fastest = min(fastest, time.perf_counter() - begin)
    pool.resize(1)  # ends the others
    return 2 * TERMS * TILES * out.size / fastest


def operations(cell, shape, training):
    """Floating-point operations of the products of a call: x Wᵀ and h Rᵀ of all layers; in training twice as many more.

    Args:
        cell: its name. shape: of sizes, a dict of T, B, I, H, L.
    """
    T, B, inputs, H, L = (shape[letter] for letter in "TBIHL")
    columns = inputs + H + (L - 1) * 2 * H
    return 2 * T * B * cells.get(cell).num_gates * H * columns * (3 if training else 1)
