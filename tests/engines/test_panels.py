"""Products with weights in panels and as they lie, and the packing of panels, against NumPy: all heights of tiles,
widths that are no multiple of a panel's, few and many terms. What is not theirs is NaN: neither read nor written."""

import ctypes
from functools import partial

import numpy as np
import pytest

from child import in_child
from numbarnn.compile.types import from_dtype
from numbarnn.engines.cpu import panels, vectors
from numbarnn.engines.cpu.calls import address
from numbarnn.engines.cpu.records import Product
from step_buffers import nans, normal

ROWS = range(2 * vectors.MOST_ROWS + 2)  # up to two tiles and a row
TERMS = (0, 1, 7, panels.KC, panels.KC + 1, 600)  # none, no whole square to transpose, one KC and more
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
by_terms = pytest.mark.parametrize("terms", TERMS)
as_they_lie = pytest.mark.parametrize("lie", ("panels", "wide", "rows", "columns"))


# ------------------------------------------------------------------------------------------ calls by address
def run(function, dtype, **values):
    """Call a function of panels.py as compiled code does: by its address, with a `records.Product`."""
    record, number = Product(**values), ctypes.c_float if dtype == "float32" else ctypes.c_double
    kind = ctypes.CFUNCTYPE(None, number, ctypes.c_int64)
    kind(function.address(from_dtype(np.dtype(dtype))))(0, ctypes.addressof(record))


def among_nans(matrix, before=1, beside=5):
    """(memory, the same matrix as a part of it): rows that stand apart, and NaN all around."""
    (rows, columns), dtype = matrix.shape, matrix.dtype
    memory = nans(dtype, rows + before + 1, columns + 2 * beside)
    memory[before : before + rows, beside : beside + columns] = matrix
    return memory, memory[before : before + rows, beside : beside + columns]


def untouched(memory, part):
    """Whether a memory is NaN but for a part."""
    rest = memory.copy()
    offset = (address(part) - address(memory)) // memory.itemsize if part.size else 0
    top, left = divmod(offset, memory.shape[1])
    rest[top : top + part.shape[0], left : left + part.shape[1]] = np.nan
    return np.isnan(rest).all()


def packed(weights, width, by_columns=False):
    """(panels, columns rounded up / width, terms, width) of weights (terms, columns), with zeros where there are no
    more columns; `by_columns`: of weights as they are, else of rows of the transposed ones."""
    terms, columns = weights.shape
    memory = nans(str(weights.dtype), -(-columns // width) + 2, terms, width)
    _, source = among_nans(weights if by_columns else np.ascontiguousarray(weights.T))
    run(
        panels.pack_columns if by_columns else panels.pack_rows, str(weights.dtype), columns=columns, units=columns,
        out_next=columns, terms=terms, b=source.ctypes.data, b_row=source.strides[0], out=memory[1:].ctypes.data,
        panel_row=width * memory.itemsize,
    )  # fmt: skip
    assert np.isnan(memory[0]).all() and np.isnan(memory[-1]).all()
    return memory[1:-1]


def columns_of(width):
    """Less than a panel, whole ones, and more: tiles of one, two and four panels, and what is left of each."""
    return (1, width, width + 1, 2 * width + 3, 4 * width, 9 * width - 1)


def product(a, in_panels, out, columns, terms, add):
    """out = a b, or +=, where b is in panels; a and out may stand apart."""
    run(
        panels.panel_product, str(a.dtype), rows=a.shape[0], columns=columns, terms=terms, a=a.ctypes.data,
        a_row=a.strides[0], b=in_panels.ctypes.data, b_row=in_panels.strides[0],
        panel_row=in_panels.shape[2] * a.itemsize, out=out.ctypes.data, out_row=out.strides[0], add=add,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ packing
def width_of(dtype, lie):
    """Columns of a panel, or of a wide one."""
    return (panels.GEMV_ROW if lie == "wide" else panels.PANEL_ROW) // np.dtype(dtype).itemsize


@by_dtype
@by_terms
@pytest.mark.parametrize("lie", ("panels", "wide"))
@pytest.mark.parametrize("by_columns", (False, True), ids=("rows", "columns"))
def test_packing(by_columns, lie, terms, dtype):
    width = width_of(dtype, lie)
    for columns in columns_of(width):
        weights = normal(dtype, terms, columns, seed=columns)
        found = packed(weights, width, by_columns)
        expected = np.zeros((terms, len(found) * width), dtype)
        expected[:, :columns] = weights
        np.testing.assert_array_equal(found, expected.reshape(terms, len(found), width).swapaxes(0, 1), strict=True)


def product_as_they_lie(by_columns, a, b, out, columns, terms, add):
    """out = a b, or +=, of weights b (terms, columns), or as rows (columns, terms)."""
    run(
        panels.multiply_by_columns if by_columns else panels.multiply_by_rows, str(a.dtype), rows=a.shape[0],
        columns=columns, terms=terms, a=a.ctypes.data, a_row=a.strides[0], b=b.ctypes.data, b_row=b.strides[0],
        out=out.ctypes.data, out_row=out.strides[0], add=add,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ products
def arranged(b, width, lie):
    """(Weights as a product reads them, the product): in panels of a width, as columns, or as rows."""
    if lie in ("panels", "wide"):
        return packed(b, width), product
    _, apart = among_nans(b if lie == "columns" else np.ascontiguousarray(b.T))
    return apart, partial(product_as_they_lie, lie == "columns")


def check_product(dtype, terms, rows=ROWS, lie="panels"):
    """All numbers of rows and columns; set, and added to what stands there."""
    width, eps = width_of(dtype, lie), np.finfo(dtype).eps
    for columns in columns_of(width):
        b = normal(dtype, terms, columns, seed=1)
        weights, multiply = arranged(b, width, lie)
        for count in rows:
            a = normal(dtype, count, terms)
            _, apart = among_nans(a)
            exact, size = a.astype(np.float64) @ b.astype(np.float64), np.abs(a) @ np.abs(b)
            for start in (nans(dtype, count, columns), normal(dtype, count, columns, seed=2)):
                add = bool(start.size) and not np.isnan(start).any()
                memory, out = among_nans(start)
                multiply(apart, weights, out, columns, terms, add)
                bound = eps * (terms + 1) * (size + np.abs(start) if add else size)
                error = np.abs(out - (exact + start if add else exact))
                assert (error <= bound).all(), (count, columns, add)
                assert untouched(memory, out), (count, columns, add)


@by_dtype
@by_terms
@as_they_lie
def test_product_is_numpys(lie, terms, dtype):
    check_product(dtype, terms, lie=lie)


@by_dtype
@by_terms
@as_they_lie
def test_bits_of_a_row_do_not_depend_on_rows_and_columns_beside_it(lie, terms, dtype):
    """Threads that share sequences, or units, get those of one thread."""
    width = width_of(dtype, lie)
    columns = 9 * width + 3
    weights, product = arranged(normal(dtype, terms, columns, seed=1), width, lie)
    a, last_panel = normal(dtype, max(ROWS), terms), -(-columns // width)
    start = normal(dtype, max(ROWS), columns, seed=2)
    for add in (False, True):
        alone = start.copy()
        for row in range(max(ROWS)):
            product(a[row : row + 1], weights, alone[row : row + 1], columns, terms, add)
        for rows in ROWS:
            together = start[:rows].copy()
            product(a[:rows], weights, together, columns, terms, add)
            np.testing.assert_array_equal(together, alone[:rows])
        for first in range(last_panel):
            for last in range(first + 1, last_panel + 1):
                mine = slice(first * width, min(columns, last * width))
                out = start[:3, mine].copy()
                own = {"columns": np.s_[:, mine], "rows": mine}.get(lie, np.s_[first:last])
                product(a[:3], weights[own], out, out.shape[1], terms, add)
                np.testing.assert_array_equal(out, alone[:3, mine])


@by_dtype
def test_several_blocks_of_terms_change_no_bit(dtype):
    """As many rows as a block has: more terms than there is memory for are multiplied block by block."""
    rows, terms = panels.BLOCK_ROWS, 2 * panels.BLOCK_BYTES // panels.BLOCK_ROWS // 4 + 5
    columns = width_of(dtype, "panels") + 3
    a, start = normal(dtype, rows, terms), normal(dtype, rows, columns, seed=2)
    in_panels = packed(normal(dtype, terms, columns, seed=1), width_of(dtype, "panels"))
    for add in (False, True):
        expected, found = start.copy(), start.copy()
        for row in range(rows):
            product(a[row : row + 1], in_panels, expected[row : row + 1], columns, terms, add)
        product(a, in_panels, found, columns, terms, add)
        np.testing.assert_array_equal(found, expected)


@by_dtype
@pytest.mark.parametrize("terms", (256, 4096))
@pytest.mark.parametrize("lie, rows", [("panels", 6), ("panels", 2), ("wide", 1), ("wide", 2), ("wide", 3)])
def test_sums_round_as_pytorchs_do(lie, rows, terms, dtype):
    """PyTorch adds up 128 terms of 256 one after another; its longer sums err as those of 256 do."""
    width, most = width_of(dtype, lie), 128 if terms == 256 else 256
    columns = 32 * width
    a, b, out = normal(dtype, rows, terms), normal(dtype, terms, columns, seed=1), nans(dtype, rows, columns)
    product(a, packed(b, width), out, columns, terms, False)
    exact, in_turn = a.astype(np.longdouble) @ b.astype(np.longdouble), np.zeros_like(out)
    for start in range(0, terms, most):
        part = np.zeros_like(out)
        for k in range(start, start + most):
            part += a[:, k : k + 1] * b[k]
        in_turn += part
    error, other = (np.sqrt(np.mean((found - exact) ** 2)) for found in (out, in_turn))
    assert error < 1.15 * other, f"{error / other:.2f} times that of sums of {most}"


# ------------------------------------------------------------------------------------------ memory
def test_a_thread_with_a_small_stack_is_enough():
    """As servers with many threads have them; a block of rows is on the stack, of the engine's own threads too."""
    program = """
        import threading
        import numpy as np
        import numbarnn as nr

        def train():
            layer = nr.LSTM(64, 64, device="cpu")
            y, _, tape = layer.forward(np.ones((8, 16, 64), np.float32))
            print(np.isfinite(layer.backward(tape, y).x).all())

        threading.stack_size(256 << 10)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """
    assert in_child(program) == "True\n"
