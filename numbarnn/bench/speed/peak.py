"""The machine's ceilings, and how much a call has to do: multiply-adds, and bytes from memory."""

import time
from ctypes import addressof

import numpy as np

from numbarnn import cells
from numbarnn.bench.cases.passes import PRODUCTS
from numbarnn.compile.types import from_dtype
from numbarnn.engines.cpu.calls import address
from numbarnn.engines.cpu.records import Product, by_address, job_at, product_at
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.engines.cpu.vectors import MOST_ROWS, numbers_at, packed_tile, panel_width

TERMS = 128  # of each sum: rows and panel stay in the first cache
TILES = 4000  # in one call, which takes a millisecond or less
CALLS = 200
READ_BYTES = 1 << 28  # more than caches hold
READS = 8
_WORD = np.uint64(0)

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
    function, fastest = _read.address(from_dtype(np.dtype("float32"))), float("inf")
    for _ in range(READS):
        begin = time.perf_counter()
        pool.run(4, function, threads, addressof(what))
        fastest = min(fastest, time.perf_counter() - begin)
    pool.resize(1)
    if sums.sum() != words.size // threads * threads:
        raise RuntimeError(f"the sum of {words.size} ones came out as {sums.sum()}")
    return words.size // threads * threads * 8 / fastest


def smallest_traffic(cell, shape, dtype, training):
    """Bytes that a call must move at least: weights, x and y once; in training their gradients too, and what it saves.

    Args:
        as of `operations`, and the dtype's name.
    """
    T, B, inputs, H, L = (shape[letter] for letter in "TBIHL")
    gates, item = cells.get(cell).num_gates, 2 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    weights = gates * H * (inputs + H + (L - 1) * 2 * H + 2 * L)
    numbers = weights + T * B * (inputs + H)
    if training:
        numbers = 2 * numbers + 2 * L * T * B * gates * H  # saved gates are written, and read again
    return numbers * item


def work_of(row):
    """Floating-point operations of a row's call; row: of a record, as a dict."""
    skip = row.get("input_mode") == "skip"
    return PRODUCTS[row["what"]] * operations(row["cell"], row["shape"], training=False, skip=skip)


def operations(cell, shape, training, skip=False):
    """Floating-point operations of the products of a call: x Wᵀ and h Rᵀ of all layers; in training twice as many more.

    Args:
        cell: its name. shape: of sizes, a dict of T, B, I, H, L. skip: layer 0 has no W.
    """
    T, B, inputs, H, L = (shape[letter] for letter in "TBIHL")
    columns = (0 if skip else inputs) + H + (L - 1) * 2 * H
    return 2 * T * B * cells.get(cell).num_gates * H * columns * (3 if training else 1)
