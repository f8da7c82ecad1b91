"""An engine's matrix products and column sums as `joined.FusedPart`s: their records, compiled functions and threads."""

from ctypes import addressof

from numbarnn.engines.base import EVERY_ROW
from numbarnn.engines.cpu import few_rows, joined, openblas, panels, products
from numbarnn.engines.cpu.calls import address, row_bytes
from numbarnn.engines.cpu.records import Product, Sums, Work

# Multiply-adds below which a product of few rows runs on one thread: reading so many weights takes that long.
# Other products and sums use the engine's own limit.
SERIAL_READ = 700_000
WRITING = 8  # multiply-adds that take as long as writing one number of a large matrix


class ProductParts:
    """Makes a `joined.FusedPart` for each product method of the engine; names and arguments are the engine's.

    Args:
        threads_for: f(work, parts, enough), the number of threads for that many multiply-adds (`CpuEngine._threads`).
        address_of: f(function, dtype), the address of a compiled function.
        are_one: f(a, b), whether two arrays are views of the same elements.
    """

    def __init__(self, threads_for, address_of, are_one):
        self._threads_for, self._address_of, self._are_one = threads_for, address_of, are_one

    def multiply(self, out, a, b, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        m, n = out.shape
        enough, function = None, products.blas_product
        if m <= panels.FEW_ROWS and not transpose_a:  # OpenBLAS takes a third longer
            enough = SERIAL_READ * m
            function = few_rows.multiply_by_rows if transpose_b else few_rows.multiply_by_columns
        threads = self._threads_for(out.size * (a.shape[0] if transpose_a else a.shape[1]), max(m, n), enough)
        product = _product(out, a, b, transpose_a, transpose_b, accumulate)
        return self._part(threads, out.dtype, [product], [], function)

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

    def _part(self, threads, dtype, gemms, sums, function=products.blas_product):
        """Return the `Part` for some `records.Product`s, which `function` multiplies, and some `records.Sums`."""
        has_small = openblas.has_small_kernels()
        for one in gemms:
            products.choose_pieces(one, dtype, has_small)
        gemms, sums = (Product * len(gemms))(*gemms), (Sums * len(sums))(*sums)
        record = Work(
            products=addressof(gemms), products_count=len(gemms), sums=addressof(sums), sums_count=len(sums),
            function=self._address_of(function, dtype), has_small=has_small, pieces=threads,
        )  # fmt: skip
        work = self._address_of(products.multiply_and_add, dtype)
        return joined.FusedPart(dtype.itemsize, work, record, threads, (gemms, sums))


def _product(out, a, b, transpose_a, transpose_b, add):
    """Return a `records.Product`: out (rows, columns) = op(a) op(b), or +=."""
    rows, columns = out.shape
    return Product(
        rows=rows, columns=columns, terms=a.shape[0 if transpose_a else 1], a=address(a), a_row=row_bytes(a),
        b=address(b), b_row=row_bytes(b), out=address(out), out_row=row_bytes(out), transpose_a=transpose_a,
        transpose_b=transpose_b, add=add,
    )  # fmt: skip


def _sums(out, x, add, also=None):
    """Return a `records.Sums`: out (columns,) = column sums of x, or +=. The array `also` receives the same sums."""
    rows, columns = x.shape[0], min(out.shape[0], x.shape[1])
    return Sums(
        rows=rows, columns=columns, x=address(x), x_row=row_bytes(x), out=address(out), also=address(also), add=add
    )
