"""The machine's ceilings, and how much a call has to do: multiply-adds, and bytes from memory."""

import time
from ctypes import addressof

import numpy as np

from numbarnn import cells
from numbarnn.bench.cases.passes import PRODUCTS
from numbarnn.bench.cases.sequences import half_lengths
from numbarnn.common import precision
from numbarnn.compile.types import from_dtype
from numbarnn.engines.cpu.calls import address
from numbarnn.engines.cpu.packed_tile import packed_tile
from numbarnn.engines.cpu.records import Product, by_address, job_at, product_at
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.engines.cpu.vectors import MOST_ROWS, numbers_at, panel_width

TERMS = 128  # of each sum: rows and panel stay in the first cache
TILES = 4000  # in one call, which takes a millisecond or less
CALLS = 200
READ_BYTES = 1 << 28  # more than caches hold
READS = 8
_WORD = np.uint64(0)

_tile, _ROWS = packed_tile(MOST_ROWS, MOST_ROWS), np.intp(MOST_ROWS)


@by_address
def _tiles(zero, job_address):
    """A thread's part: one tile of the engine's products (a `Product`), again and again."""
    job = job_at(job_address)
    what = product_at(job.what)
    out, row = what.out + job.thread * MOST_ROWS * what.out_row, what.out_row
    for _ in range(what.rows):
        _tile(zero, _ROWS, what.a, what.b, what.b, what.terms, what.terms, out, row, False)


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
    return 2 * TERMS * TILES * out.size / _fastest(pool, _tiles, dtype, threads, what, CALLS)


def _fastest(pool, part, dtype, threads, what, runs):
    """Seconds of the fastest of several runs of threads' parts; ends the pool's threads."""
    function, seconds = part.address(from_dtype(dtype)), []
    for _ in range(runs):
        begin = time.perf_counter()
        pool.run(dtype.itemsize, function, threads, addressof(what))
        seconds.append(time.perf_counter() - begin)
    pool.resize(1)
    return min(seconds)


@by_address
def _read(zero, job_address):
    """A thread's part: the sum of its share of an array of words (a `Product`'s a, `terms` words for each thread)."""
    job = job_at(job_address)
    what, total = product_at(job.what), _WORD
    words = numbers_at(_WORD, what.a + job.thread * what.terms * 8)
    for i in range(what.terms):
        total += words[i]
    numbers_at(_WORD, what.out)[job.thread * 8] = total  # lines of the caches apart


def cpu_bandwidth(threads):
    """Bytes per second that so many threads read from memory together; the most of several runs."""
    pool, words = ThreadPool(threads), np.ones(READ_BYTES // 8, np.uint64)
    sums = np.zeros(8 * threads, np.uint64)
    what = Product(terms=words.size // threads, a=address(words), out=address(sums))
    fastest = _fastest(pool, _read, np.dtype("float32"), threads, what, READS)
    if sums.sum() != words.size // threads * threads:
        raise RuntimeError(f"the sum of {words.size} ones came out as {sums.sum()}")
    return words.size // threads * threads * 8 / fastest


def smallest_traffic(cell, shape, dtype, training, form=()):
    """Bytes that a call must move: weights, x and y once; in training their gradients too, and what it saves."""
    inputs, H, L = (shape[letter] for letter in "IHL")
    gates, item, D = cells.get(cell).num_gates, precision.itemsize(dtype), directions(form)
    vectors = vectors_of(shape, form)
    weights = D * gates * H * (columns(shape, form) + 2 * L)
    numbers = weights + vectors * (inputs + D * H)
    if training:
        numbers = 2 * numbers + 2 * D * L * vectors * gates * H  # saved gates are written, and read again
    return numbers * item


def work_of(row):
    """Floating-point operations of a row's call; row: of a record, as a dict."""
    skip, form = row.get("input_mode") == "skip", row.get("form", ())
    return PRODUCTS[row["what"]] * operations(row["cell"], row["shape"], training=False, skip=skip, form=form)


def operations(cell, shape, training, skip=False, form=()):
    """Floating-point operations of the products of a call: x Wᵀ and h Rᵀ of all layers; in training twice as many more.

    Args:
        cell: its name. shape: of sizes, a dict of T, B, I, H, L. skip: layer 0 has no W. form: words of `shapes.FORMS`.
    """
    gates = directions(form) * cells.get(cell).num_gates * shape["H"]
    terms = columns(shape, form) - (shape["I"] if skip else 0)
    return 2 * vectors_of(shape, form) * gates * terms * (3 if training else 1)


def columns(shape, form):
    """How many columns W and R of all layers have in one direction."""
    inputs, H, L = (shape[letter] for letter in "IHL")
    return inputs + H + (L - 1) * (directions(form) + 1) * H


def directions(form):
    return 2 if "bidirectional" in form else 1


def vectors_of(shape, form):
    """How many vectors x has: a batch's of all times, without padding."""
    T, B = shape["T"], shape["B"]
    return int(half_lengths(T, B).sum()) if "lengths" in form else T * B
