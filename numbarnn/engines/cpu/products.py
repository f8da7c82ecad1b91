"""Compiled code of the CPU engine without cells: products by OpenBLAS, sums, dropout, each on several threads.

It takes addresses of arrays in `records`. Threads share a function of a `records.Job`, cut into pieces.
"""

from typing import NamedTuple

import numpy as np

from numbarnn.common.order import mask_of_step
from numbarnn.common.philox import philox
from numbarnn.compile.plain import plain
from numbarnn.compile.translate import of_types
from numbarnn.engines.cpu import openblas
from numbarnn.engines.cpu.records import (
    PRODUCT_BYTES,
    SUMS_BYTES,
    by_address,
    dropout_at,
    from_python,
    job_at,
    new_product,
    product_at,
    run_at,
    sums_at,
    work_at,
)
from numbarnn.engines.cpu.vectors import bytes_of, numbers_at, own_numbers

UNITS = 16  # slices of units start at multiples of this: one 64-byte line of float32
SMALL_PRODUCT = 1_000_000  # m n k up to which OpenBLAS multiplies unpacked matrices
SMALL_OUT = 1200  # m n up to which it does so for a bᵀ
KC = 128  # terms of an accumulation block; 384 gave up to 6x PyTorch's rounding error in dR on AVX-512
FEW_TERMS = 3  # terms up to which `_few_terms` multiplies
# Columns from which OpenBLAS does not get small pieces. With kernels for small products: from WIDE_OF_SMALL, or, with
# columns that fill no whole vectors or few rows or terms, from WIDER.
WIDE, WIDE_OF_SMALL, WIDER = 128, 176, 320
ROWS_ALIKE = 12  # rows (float64: twice as many) of OpenBLAS's block: a cut at a multiple changes no row's bits
PIECED_ROWS = 40  # m up to which OpenBLAS gets a product in small pieces
SUM_ROWS = 16  # rows added up one after another, then as many sums of rows
SUM_COLUMNS = 256  # columns added up together
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


# ------------------------------------------------------------------------------------------ products
_gemm = of_types(lambda zero: openblas.blas_function(str(zero), "gemm"))
_gemv = of_types(lambda zero: openblas.blas_function(str(zero), "gemv"))
_one = of_types(lambda zero: getattr(np, str(zero))(1))


@plain
def _blas(zero, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    one, gemm, gemv = _one(zero), _gemm(zero), _gemv(zero)
    beta = one if accumulate else zero
    if m == 1:  # c = op(b)ᵀ a, without packing: up to 6 times faster
        gemv(
            _ROW_MAJOR, _NO_TRANS if transpose_b else _TRANS, n if transpose_b else k, k if transpose_b else n,
            one, b, ldb, a, lda if transpose_a else 1, beta, c, 1,
        )  # fmt: skip
    else:
        gemm(
            _ROW_MAJOR, _TRANS if transpose_a else _NO_TRANS, _TRANS if transpose_b else _NO_TRANS,
            m, n, k, one, a, lda, b, ldb, beta, c, ldc,
        )  # fmt: skip


@plain
def slice_of_piece(size, piece, pieces):
    """Return [first, last) of a piece of `size` units, cut at multiples of UNITS."""
    blocks = (size + UNITS - 1) // UNITS
    return min(size, blocks * piece // pieces * UNITS), min(size, blocks * (piece + 1) // pieces * UNITS)


@plain
def _few_terms(zero, at):
    """Compute a `records.Product` aᵀ b of few or no terms, row by row.
    It writes out once. OpenBLAS would write zeros first, then read and write everything again."""
    item = bytes_of(zero)
    for i in range(at.rows):
        out = numbers_at(zero, at.out + i * at.out_row)
        if at.terms == 0 and at.add == 0:
            for j in range(at.columns):
                out[j] = zero
        for k in range(at.terms):
            factor, b = numbers_at(zero, at.a + k * at.a_row + i * item)[0], numbers_at(zero, at.b + k * at.b_row)
            if k > 0 or at.add != 0:
                for j in range(at.columns):
                    out[j] = out[j] + factor * b[j]
            else:
                for j in range(at.columns):
                    out[j] = factor * b[j]


@plain
def _multiply_in_calls(zero, at):
    """Compute a `records.Product` of unpacked matrices in the calls of OpenBLAS that `_set_calls` planned."""
    item = bytes_of(zero)
    if at.transpose_a != 0 and at.transpose_b == 0 and at.terms <= FEW_TERMS:
        _few_terms(zero, at)
        return
    lda, ldb, ldc = max(1, at.a_row // item), max(1, at.b_row // item), max(1, at.out_row // item)
    transpose_a, transpose_b = at.transpose_a != 0, at.transpose_b != 0
    m = rows = 0
    while m < at.rows:
        rows = min(at.call_rows, at.rows - m)
        if at.rows - m - rows == 1:  # OpenBLAS multiplies one row in another way
            rows -= ROWS_ALIKE
        for n in range(0, at.columns, max(1, at.call_columns)):
            for number in range(at.k_blocks):
                (k, end), columns = slice_of_piece(at.terms, number, at.k_blocks), min(at.call_columns, at.columns - n)
                a = at.a + (k * lda + m if transpose_a else m * lda + k) * item
                b = at.b + (n * ldb + k if transpose_b else k * ldb + n) * item
                out, adds = at.out + m * at.out_row + n * item, at.add != 0 or k > 0
                _blas(zero, transpose_a, transpose_b, rows, columns, end - k, a, lda, b, ldb, adds, out, ldc)
        m += rows


@by_address
def blas_product(zero, address):
    """Compute a `records.Product` of unpacked matrices by OpenBLAS."""
    _multiply_in_calls(zero, product_at(address))


def choose_pieces(product, dtype, has_small):
    """Decide whether OpenBLAS gets a `records.Product` in small pieces, as it has few columns (`narrow`)."""
    rows, columns, terms = product.rows, product.columns, product.terms
    product.narrow = columns < WIDE
    if has_small and not product.transpose_b and columns < WIDER:
        spare, few = dtype.itemsize == 4 and columns % (2 * UNITS) != 0, min(rows, terms) <= KC
        product.narrow = columns < WIDE_OF_SMALL or spare or few


# ------------------------------------------------------------------------------------------ parts of a product
# A product has as many parts as threads, and its bits must not depend on the parts. OpenBLAS's order of additions
# depends on where the last columns are, on rows modulo ROWS_ALIKE, and on whether a product is small. So parts are cut
# at multiples of ROWS_ALIKE, and the whole product decides what is small.
@plain
def _is_pieced(whole):
    """Return whether OpenBLAS gets a `records.Product` in small pieces, as it has few rows."""
    return whole.rows <= PIECED_ROWS and whole.transpose_a == 0


@plain
def _columns_of_piece(whole):
    """Return the columns of such a piece."""
    return 2 * UNITS if whole.transpose_b else 4 * UNITS


@plain
def _k_blocks(terms, most):
    """Return the number of blocks, at least one, into which a sum is cut so that each has at most `most` terms."""
    return max(1, (terms + most - 1) // most)


@plain
def _is_small(whole, has_small):
    """Return whether OpenBLAS gets the rows of a `records.Product` in small pieces.
    OpenBLAS packs both matrices of a product that is not small. With few columns packing costs up to half of the time,
    if the processor has kernels for small products."""
    return has_small != 0 and not whole.transpose_b and whole.narrow != 0


@plain
def _set_calls(at, whole, has_small):
    """Plan OpenBLAS's calls for a part of a `records.Product`: rows and columns per call, and blocks of terms.
    OpenBLAS adds up to 500 terms one after another; sums of KC terms halve the rounding error at no cost. With few
    rows, small pieces need no packing and are up to 3 times faster."""
    at.call_rows, at.call_columns, at.k_blocks = at.rows, at.columns, _k_blocks(at.terms, KC)
    if whole.rows == 1:
        at.k_blocks = 1
    elif _is_pieced(whole):
        lanes = 8 if whole.transpose_b else 1  # a bᵀ: OpenBLAS adds the terms up in several lanes anyway
        at.call_columns = _columns_of_piece(whole)
        most = min(lanes * KC, SMALL_PRODUCT // (max(1, whole.rows) * at.call_columns))
        at.k_blocks = _k_blocks(at.terms, most)
    elif _is_small(whole, has_small):
        at.call_rows = SMALL_PRODUCT // (max(1, whole.columns) * KC * ROWS_ALIKE) * ROWS_ALIKE


@plain
def _least_rows(whole, has_small):
    """Return the least rows of a part: enough that OpenBLAS does not treat it as small when the whole is not."""
    if has_small == 0 or _is_small(whole, has_small):
        return 1
    if whole.transpose_b:
        return SMALL_OUT // max(1, whole.columns) + 1
    k_blocks = _k_blocks(whole.terms, KC)  # the first or the last is the shortest
    terms = min(
        slice_of_piece(whole.terms, 0, k_blocks)[1],
        whole.terms - slice_of_piece(whole.terms, k_blocks - 1, k_blocks)[0],
    )
    return SMALL_PRODUCT // max(1, whole.columns * terms) + 1


@plain
def share_of_product(size, alike, least, piece, pieces):
    """Return [first, last) of a piece, cut at multiples of `alike`, with at least `least` elements or none."""
    count = size // alike
    pieces = max(1, min(pieces, count // ((least + alike - 1) // alike)))
    first, end = (count * piece + pieces - 1) // pieces * alike, (count * (piece + 1) + pieces - 1) // pieces * alike
    return first if piece < pieces else size, size if piece + 1 >= pieces else end


@plain
def _multiply_piece(zero, address, piece, pieces, work):
    """Compute a piece of a product of a `records.Work`."""
    whole, place, item = product_at(address), new_product(), bytes_of(zero)
    at = product_at(place)
    at.terms, at.a, at.a_row, at.b, at.b_row = whole.terms, whole.a, whole.a_row, whole.b, whole.b_row
    at.out, at.out_row, at.rows, at.columns = whole.out, whole.out_row, whole.rows, whole.columns
    at.transpose_a, at.transpose_b, at.add = whole.transpose_a, whole.transpose_b, whole.add
    if _is_pieced(whole):
        first, last = share_of_product(whole.columns, _columns_of_piece(whole), 1, piece, pieces)
        at.columns = last - first
        at.b += first * (whole.b_row if whole.transpose_b else item)
        at.out += first * item
    else:
        least = _least_rows(whole, work.has_small)
        first, last = share_of_product(whole.rows, ROWS_ALIKE * item // 4, least, piece, pieces)
        at.rows = last - first
        at.a += first * (item if whole.transpose_a else whole.a_row)
        at.out += first * whole.out_row
    if first < last:
        _set_calls(at, whole, work.has_small)
        run_at(zero, work.function, place)


# ------------------------------------------------------------------------------------------ sums
@plain
def _add_column_sums(zero, address, piece, pieces):
    """Compute a piece of a `records.Sums`.
    Three levels keep the rounding error almost independent of the number of rows: sums of SUM_ROWS rows, sums of
    SUM_ROWS of these, and their sum."""
    at, item = sums_at(address), bytes_of(zero)
    n0, n1 = slice_of_piece(at.columns, piece, pieces)
    many, all_rows = own_numbers(zero, SUM_COLUMNS), own_numbers(zero, SUM_COLUMNS)
    for start in range(n0, n1, SUM_COLUMNS):
        n = min(SUM_COLUMNS, n1 - start)
        for j in range(SUM_COLUMNS):
            many[j] = all_rows[j] = zero
        for m in range(0, at.rows, SUM_ROWS):
            rows = min(SUM_ROWS, at.rows - m)
            _add_rows(zero, many, at.x + m * at.x_row + start * item, at.x_row, rows, n)
            if (m + rows) % SUM_ROWS**2 == 0 or m + rows == at.rows:
                _move_sums(zero, all_rows, many)
        for place in (at.out, at.also):
            if place:
                out = numbers_at(zero, place + start * item)
                for j in range(n):
                    out[j] = out[j] + all_rows[j] if at.add else all_rows[j]


@plain
def _add_rows(zero, total, x, x_row, rows, n):
    """Add the sum of at most SUM_ROWS rows of n numbers to total; the sum of exactly SUM_ROWS stays in registers."""
    if rows == SUM_ROWS:
        for j in range(n):
            part = zero
            for i in range(SUM_ROWS):
                part += numbers_at(zero, x + i * x_row)[j]
            total[j] += part
        return
    few = own_numbers(zero, SUM_COLUMNS)
    for j in range(SUM_COLUMNS):
        few[j] = zero
    for i in range(rows):
        row = numbers_at(zero, x + i * x_row)
        for j in range(n):
            few[j] += row[j]
    _move_sums(zero, total, few)


@plain
def _move_sums(zero, total, part):
    """Add part to total and set part = 0."""
    for j in range(SUM_COLUMNS):
        total[j] += part[j]
        part[j] = zero


@by_address
def multiply_and_add(zero, address):
    """Compute a thread's part in a `records.Work`."""
    job = job_at(address)
    work = work_at(job.record)
    for piece in range(job.thread, work.pieces, job.threads):  # one thread does all pieces: the same bits
        for number in range(work.products_count):
            _multiply_piece(zero, work.products + number * PRODUCT_BYTES, piece, work.pieces, work)
        for number in range(work.sums_count):
            _add_column_sums(zero, work.sums + number * SUMS_BYTES, piece, work.pieces)


# ------------------------------------------------------------------------------------------ masks
_philox = plain(philox)


_mask_of_step = plain(mask_of_step)
_BYTE, _LENGTH, _NUMBER = np.uint8(0), np.int32(0), np.int64(0)


class _Resets(NamedTuple):
    """The resets (T, B) that `mask_of_step` reads: address, shape, and bytes between neighbors along either axis."""

    address: int
    shape: tuple
    strides: tuple

    @plain
    def number_at(self, t, b):
        """Return whether sequence b is reset at time t."""
        return numbers_at(_BYTE, self.address + t * self.strides[0] + b * self.strides[1])[0] != 0


@from_python
def fill_step_mask(step_mask, directions, times, batch, lengths, resets):
    """Fill a step mask (D, T, B) from lengths and resets at addresses, see `Engine.fill_step_mask`.

    Args:
        step_mask: of the direction's first time; the mask has room for two more times than T.
        lengths: (B,).
        resets: four int64: address of (times, B), `times`, bytes between rows, bytes between columns.
    """
    mask, length_of = numbers_at(_BYTE, step_mask), numbers_at(_LENGTH, lengths)
    numbers = numbers_at(_NUMBER, resets)
    reset_array = _Resets(numbers[0], (numbers[1], batch), (numbers[2], numbers[3]))
    for direction in range(directions):
        for t in range(times):
            for b in range(batch):
                place = (direction * (times + 2) + t) * batch + b
                mask[place] = _mask_of_step(t, direction, int(length_of[b]), reset_array, b)


@by_address
def apply_dropout(zero, address):
    """Compute a thread's part in a `records.Dropout`, with the numbers of `kernels.arrays.dropout`."""
    job = job_at(address)
    at = dropout_at(job.record)
    _drop_piece(zero, at, slice_of_piece(at.size, job.thread, job.threads))


@plain
def _drop_piece(zero, at, elements):
    """Apply dropout to elements [first, last)."""
    (first, last) = elements
    mask, scale = numbers_at(np.uint64(0), at.mask), numbers_at(zero, at.scale)[0]
    out, x, position = numbers_at(zero, at.out), numbers_at(zero, at.x), at.position
    words = own_numbers(np.uint64(0), 4)
    threshold, key_0, key_1, stream_0, stream_1 = mask[0], mask[1], mask[2], mask[3], mask[4]
    for group in range((position + first) // 4, (position + last + 3) // 4):
        low, high = np.uint64(group) & np.uint64(0xFFFFFFFF), np.uint64(group) >> np.uint64(32)
        words[0], words[1], words[2], words[3] = _philox(low, high, stream_0, stream_1, key_0, key_1)
        for k in range(4):
            i = group * 4 + k - position
            if first <= i < last:
                out[i] = x[i] * scale if words[k] >= threshold else scale - scale
