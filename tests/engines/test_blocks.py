"""Large products in the panels' tiles, in place of OpenBLAS's: against NumPy, and as the engine chooses them."""

import numpy as np
import pytest
from test_panels import among_nans, run, untouched

from numbarnn.compile.types import from_dtype
from numbarnn.engines.cpu import blocks, packing, panels, products, vectors
from numbarnn.engines.cpu.calls import address
from step_buffers import nans, normal

by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
SHAPES = {  # M, N, K
    "tiles": (8 * vectors.MOST_ROWS, 64, products.CHAIN),
    "nothing whole": (2 * panels.BLOCK_ROWS + vectors.MOST_ROWS + 1, 75, 2 * products.CHAIN + 5),
    "several pieces of b": (64, blocks.PACKED_BYTES // 70 // 4 + 3, 70),
    "terms of several": (64, 40, panels.BLOCK_ROW // 4 + products.CHAIN + 5),
}


def block_product(out, a, b, transpose_a, transpose_b, add):
    """out = op(a) op(b), or +=."""
    dtype, (rows, columns) = str(out.dtype), out.shape
    scratch = nans(dtype, blocks.PACKED_BYTES // out.itemsize)
    given = {"panel_product": panels.panel_product, "pack_rows": packing.pack_rows}
    functions = {name: function.address(from_dtype(out.dtype)) for name, function in given.items()}
    run(
        blocks.block_product, dtype, rows=rows, columns=columns, terms=a.shape[0 if transpose_a else 1], a=address(a),
        a_row=a.strides[0], b=address(b), b_row=b.strides[0], out=address(out), out_row=out.strides[0],
        transpose_a=transpose_a, transpose_b=transpose_b, add=add, scratch=address(scratch), **functions,
    )  # fmt: skip


@by_dtype
@pytest.mark.parametrize("transpose_a, transpose_b", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("M, N, K", SHAPES.values(), ids=SHAPES)
def test_block_product_is_numpys(M, N, K, transpose_a, transpose_b, dtype):
    a, b, start = normal(dtype, M, K), normal(dtype, K, N, seed=1), normal(dtype, M, N, seed=2)
    _, own_a = among_nans(np.ascontiguousarray(a.T) if transpose_a else a)
    _, own_b = among_nans(np.ascontiguousarray(b.T) if transpose_b else b)
    exact, size = a.astype(np.longdouble) @ b.astype(np.longdouble), np.abs(a) @ np.abs(b)
    for before in (nans(dtype, M, N), start):
        add = before is start
        memory, out = among_nans(before)
        block_product(out, own_a, own_b, transpose_a, transpose_b, add)
        error = np.abs(out - (exact + start if add else exact))
        assert (error <= np.finfo(dtype).eps * (K + 1) * (size + np.abs(start) if add else size)).all()
        assert untouched(memory, out)


@by_dtype
def test_sums_are_those_of_chains(dtype):
    """Of so many terms, which are added up: no longer ones, as they err more."""
    terms = 64 * products.CHAIN
    rng = np.random.default_rng(0)
    a, b, out = rng.random((64, terms)).astype(dtype), rng.random((terms, 64)).astype(dtype), nans(dtype, 64, 64)
    block_product(out, a, b, False, False, False)
    expected = np.zeros((64, 64), dtype)
    for start in range(0, terms, products.CHAIN):
        expected += a[:, start : start + products.CHAIN] @ b[start : start + products.CHAIN]
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    assert np.abs(out / exact - 1).max() < 2 * np.abs(expected / exact - 1).max()


@by_dtype
@pytest.mark.parametrize("wins", (False, True), ids=("OpenBLAS", "blocks"))
def test_engine_takes_them_for_large_products(cpu_on_threads, monkeypatch, wins, dtype):
    """The same numbers, on several threads; and only where they win."""
    engine, (M, N, K) = cpu_on_threads, (2 * products.LARGE, products.WIDER + 3, products.LARGE)
    monkeypatch.setattr(blocks, "WINS", wins)
    monkeypatch.setattr(engine, "_functions", {})
    a, b = normal(dtype, K, M), normal(dtype, K, N, seed=1)
    taken = []
    for threads in (1, 2):
        engine.set_num_threads(threads)
        out = nans(dtype, M, N)
        engine.multiply(out, a, b, transpose_a=True)
        taken.append(out)
        np.testing.assert_allclose(out, a.T @ b, rtol=0, atol=K * np.finfo(dtype).eps * 10)
    assert wins == any(function is blocks.block_product for function, _ in engine._functions)
    if wins:
        np.testing.assert_array_equal(*taken)


@pytest.mark.parametrize("M, K", [(2, products.LARGE), (products.PIECED_ROWS, products.LARGE), (products.LARGE, 40)])
def test_products_that_are_not_large_have_no_memory_for_them(cpu_on_threads, monkeypatch, M, K):
    """Such as those of few rows: small calls would allocate it, and compile what they never call."""
    monkeypatch.setattr(blocks, "WINS", True)
    monkeypatch.setattr(cpu_on_threads, "_functions", {})
    a, b = normal("float32", M, K), normal("float32", K, products.WIDER, seed=1)
    out = nans("float32", M, products.WIDER)
    cpu_on_threads.multiply(out, a, b)
    np.testing.assert_allclose(out, a @ b, rtol=0, atol=K * np.finfo("float32").eps * 10)
    assert blocks.block_product not in [function for function, _ in cpu_on_threads._functions]
