"""Compiled code of the CPU engine without cells: products by OpenBLAS, sums, dropout, each on several threads.

It finds the addresses of arrays in the tables of `records`. Several threads run the same function, each with its own
`records.ThreadJob`; the work is cut into pieces.
"""

from ctypes import addressof
from typing import NamedTuple

import numpy as np

from numbarnn.common.order import mask_of_step
from numbarnn.common.philox import philox
from numbarnn.compile.plain import plain
from numbarnn.compile.translate import of_types
from numbarnn.engines.base import EVERY_ROW, entry_of
from numbarnn.engines.cpu import fused, openblas
from numbarnn.engines.cpu.calls import address, row_bytes
from numbarnn.engines.cpu.records import (
    PRODUCT_BYTES,
    SUMS_BYTES,
    Product,
    Sums,
    Work,
    by_address,
    dropout_at,
    from_python,
    job_at,
    new_product,
    product_at,
    sums_at,
    work_at,
)
from numbarnn.engines.cpu.sharing import ZERO, cut
from numbarnn.engines.cpu.vectors import bytes_of, numbers_at, own_numbers

UNITS = 16  # slices of units start at multiples of this: one 64-byte line of float32
SMALL_PRODUCT = 1_000_000  # m n k up to which OpenBLAS has other kernels on some processors, which add up otherwise
SMALL_OUT = 1200  # m n up to which it has them for a bᵀ
# Columns below which OpenBLAS gets so few rows at a time that it uses these kernels, which copy no matrix first:
# training with (T, B, H, L) = (50, 32, 128, 2) takes .94 of the time. The second number holds for at most KC rows or
# terms.
NARROW, NARROW_OF_FEW = 176, 320
KC = 128  # terms of an accumulation block; 384 gave up to 6x PyTorch's rounding error in dR on AVX-512
FEW_TERMS = 3  # terms up to which `_few_terms` multiplies
ROWS_ALIKE = 12  # rows (float64: twice as many) of OpenBLAS's block: a cut at a multiple changes no row's bits
WRITING = 8  # multiply-adds that take as long as writing one number of a large matrix
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
def _multiply(zero, at):
    """Compute a `records.Product` of unpacked matrices by OpenBLAS, in blocks of at most KC terms.
    OpenBLAS adds up to 500 terms one after another; sums of KC terms halve the rounding error at no cost."""
    item = bytes_of(zero)
    if at.transpose_a != 0 and at.transpose_b == 0 and at.terms <= FEW_TERMS:
        _few_terms(zero, at)
        return
    lda, ldb, ldc = max(1, at.a_row // item), max(1, at.b_row // item), max(1, at.out_row // item)
    transpose_a, transpose_b, blocks, m = at.transpose_a != 0, at.transpose_b != 0, _k_blocks(at), 0
    while m < at.rows:
        rows = min(at.rows - m, at.call_rows)
        rows += at.rows - m == rows + 1  # one row alone would be multiplied in another order
        for number in range(blocks):
            k, end = cut(at.terms, UNITS, number, blocks)
            a = at.a + (k * lda + m if transpose_a else m * lda + k) * item
            b, out, adds = at.b + (k if transpose_b else k * ldb) * item, at.out + m * at.out_row, at.add or k > 0
            _blas(zero, transpose_a, transpose_b, rows, at.columns, end - k, a, lda, b, ldb, adds, out, ldc)
        m += rows


# ------------------------------------------------------------------------------------------ parts of a product
# A product has as many parts as threads, and its bits must not depend on the parts. OpenBLAS's order of additions
# depends on where the last columns are, on rows modulo ROWS_ALIKE, and on whether a product is small. So parts are cut
# at multiples of ROWS_ALIKE, all or none are small, and no part has a single row unless the product has.
@plain
def _k_blocks(at):
    """Return the number of blocks of terms of a `records.Product`: at least one, each of at most KC terms."""
    return max(1, (at.terms + KC - 1) // KC)


@plain
def _least_rows(whole, has_small):
    """Return the least rows of a part: enough that OpenBLAS does not treat it as small when the whole is not."""
    if has_small == 0 or whole.call_rows < whole.rows:
        return 2
    if whole.transpose_b:
        return SMALL_OUT // max(1, whole.columns) + 2
    blocks = _k_blocks(whole)  # the first or the last is the shortest
    terms = min(cut(whole.terms, UNITS, ZERO, blocks)[1], whole.terms - cut(whole.terms, UNITS, blocks - 1, blocks)[0])
    return SMALL_PRODUCT // max(1, whole.columns * terms) + 2


@plain
def share_of_product(size, alike, least, piece, pieces):
    """Return [first, last) of a piece, cut at multiples of `alike`, with at least `least` elements or none."""
    count = size // alike
    pieces = max(1, min(pieces, count // ((least + alike - 1) // alike)))
    first, end = (count * piece + pieces - 1) // pieces * alike, (count * (piece + 1) + pieces - 1) // pieces * alike
    return first if piece < pieces else size, size if piece + 1 >= pieces else end


@plain
def _multiply_piece(zero, address, number, piece, work):
    """Compute a piece of a product of a `records.Work`, for the set of matrices of that number."""
    whole, at, item = product_at(address), product_at(new_product()), bytes_of(zero)
    at.terms, at.a, at.a_row, at.b, at.b_row = whole.terms, whole.a, whole.a_row, whole.b, whole.b_row
    at.out, at.out_row, at.rows, at.columns = whole.out, whole.out_row, whole.rows, whole.columns
    at.transpose_a, at.transpose_b, at.add = whole.transpose_a, whole.transpose_b, whole.add
    least = _least_rows(whole, work.has_small)
    first, last = share_of_product(whole.rows, ROWS_ALIKE * item // 4, least, piece, work.pieces)
    at.rows, at.call_rows = last - first, whole.call_rows
    at.a += number * whole.a_next + first * (item if whole.transpose_a else whole.a_row)
    at.b += number * whole.b_next
    at.out += number * whole.out_next + first * whole.out_row
    if first < last:
        _multiply(zero, at)


# ------------------------------------------------------------------------------------------ sums
@plain
def _add_column_sums(zero, address, number, piece, work):
    """Compute a piece of a `records.Sums` of a `records.Work`, for the set of matrices of that number.
    Three levels keep the rounding error almost independent of the number of rows: sums of SUM_ROWS rows, sums of
    SUM_ROWS of these, and their sum."""
    at, item = sums_at(address), bytes_of(zero)
    n0, n1 = cut(at.columns, UNITS, piece, work.pieces)
    x = at.x + number * at.x_next
    many, all_rows = own_numbers(zero, SUM_COLUMNS), own_numbers(zero, SUM_COLUMNS)
    for start in range(n0, n1, SUM_COLUMNS):
        n = min(SUM_COLUMNS, n1 - start)
        for j in range(SUM_COLUMNS):
            many[j] = all_rows[j] = zero
        for m in range(0, at.rows, SUM_ROWS):
            rows = min(SUM_ROWS, at.rows - m)
            _add_rows(zero, many, x + m * at.x_row + start * item, at.x_row, rows, n)
            if (m + rows) % SUM_ROWS**2 == 0 or m + rows == at.rows:
                _move_sums(zero, all_rows, many)
        for place in (at.out, at.also):
            if place:
                out = numbers_at(zero, place + number * at.out_next + start * item)
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
    for one in range(job.thread, work.pieces * (1 + work.others), job.threads):  # one thread does all: the same bits
        number, piece = one // work.pieces, one % work.pieces
        for place in range(work.products_count):
            _multiply_piece(zero, work.products + place * PRODUCT_BYTES, number, piece, work)
        for place in range(work.sums_count):
            _add_column_sums(zero, work.sums + place * SUMS_BYTES, number, piece, work)


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
    _drop_piece(zero, at, cut(at.size, UNITS, job.thread, job.threads))


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


# ------------------------------------------------------------------------------------------ for the engine
class ProductParts:
    """Makes a `fused.FusedPart` for each product method of the engine; names and arguments are the engine's.

    Args:
        threads_for: f(work, parts), the number of threads for that many multiply-adds (`CpuEngine._threads`).
        address_of: f(function, dtype), the address of a compiled function.
        are_one: f(a, b), whether two arrays are views of the same elements.
    """

    def __init__(self, threads_for, address_of, are_one):
        self._threads_for, self._address_of, self._are_one = threads_for, address_of, are_one

    def multiply(self, out, a, b, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        m, n = out.shape
        threads = self._threads_for(out.size * (a.shape[0] if transpose_a else a.shape[1]), max(m, n))
        return self._part(threads, out.dtype, [_product(out, a, b, transpose_a, transpose_b, accumulate)], [])

    def add_column_sums(self, out, x):
        return self._part(self._threads_for(x.size, x.shape[1]), x.dtype, [], [_sums(out, x, True)])

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False, rows_of_h=EVERY_ROW):
        weights = sum(dw[name].size for name in ("W", "R") if name in dw)
        gemms = [(dw["W"], dax, x)] if "W" in dw else []
        if "R" in dw:
            gemms.append((dw["R"], dah[rows_of_h], h_before[rows_of_h]))
        gemms = [_product(out, d[:, : len(out)], other, True, False, accumulate) for out, d, other in gemms]
        if "b_w" in dw and "b_r" in dw and self._are_one(dax, dah):  # true for most cells
            sums = [_sums(dw["b_w"], dax, accumulate, dw["b_r"])]
        else:
            sums = [_sums(dw[name], d, accumulate) for name, d in (("b_w", dax), ("b_r", dah)) if name in dw]
        rows = max(len(x), WRITING)
        return self._part(self._threads_for(rows * weights, dax.shape[1]), dax.dtype, gemms, sums)

    def each(self, kind, count, operands, options):
        """Make one part of an operation on every entry of its operands' first axes, see `Engine.each`.
        A thread does whole entries."""
        make = getattr(self, kind, None)
        if make is None:
            return None
        first, last = (make(*entry_of(operands, number), **options) for number in (0, count - 1))
        work, steps = 0, max(1, count - 1)
        for own, other in zip(first.kept[0], last.kept[0], strict=True):
            for name in ("a", "b", "out"):
                setattr(own, f"{name}_next", (getattr(other, name) - getattr(own, name)) // steps)
            work += count * own.rows * own.columns * own.terms
        for own, other in zip(first.kept[1], last.kept[1], strict=True):
            own.x_next, own.out_next = (other.x - own.x) // steps, (other.out - own.out) // steps
            work += count * own.rows * own.columns
        first.record.pieces, first.record.others = 1, count - 1
        return first._replace(threads=self._threads_for(work, count * UNITS))

    def _part(self, threads, dtype, gemms, sums):
        """Return the `FusedPart` for some `records.Product`s and some `records.Sums`."""
        gemms, sums = (Product * len(gemms))(*gemms), (Sums * len(sums))(*sums)
        record = Work(
            products=addressof(gemms), products_count=len(gemms), sums=addressof(sums), sums_count=len(sums),
            has_small=openblas.has_small_kernels(), pieces=threads,
        )  # fmt: skip
        work = self._address_of(multiply_and_add, dtype)
        return fused.FusedPart(dtype.itemsize, work, record, threads, (gemms, sums))


def _product(out, a, b, transpose_a, transpose_b, add):
    """Return a `records.Product`: out (rows, columns) = op(a) op(b), or +=."""
    (rows, columns), terms = out.shape, a.shape[0 if transpose_a else 1]
    is_narrow = columns < (NARROW_OF_FEW if min(rows, terms) <= KC else NARROW)
    call_rows, alike = rows, ROWS_ALIKE * out.itemsize // 4
    if is_narrow and columns and not transpose_b and openblas.has_small_kernels():  # small, even with a row more
        call_rows = (SMALL_PRODUCT // (columns * KC) - 1) // alike * alike or rows
    return Product(
        rows=rows, columns=columns, terms=terms, a=address(a), a_row=row_bytes(a), b=address(b), b_row=row_bytes(b),
        out=address(out), out_row=row_bytes(out), transpose_a=transpose_a, transpose_b=transpose_b, add=add,
        call_rows=call_rows,
    )  # fmt: skip


def _sums(out, x, add, also=None):
    """Return a `records.Sums`: out (columns,) = column sums of x, or +=. The array `also` receives the same sums."""
    rows, columns = x.shape[0], min(out.shape[0], x.shape[1])
    return Sums(
        rows=rows, columns=columns, x=address(x), x_row=row_bytes(x), out=address(out), also=address(also), add=add
    )
