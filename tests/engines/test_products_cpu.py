"""The CPU engine's products, sums, dropout, copies and arrays."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from child import in_child
from numbarnn.compile.native import host_features
from numbarnn.engines.cpu import openblas, thread_pool
from step_buffers import mask_words, nans, normal

by_threads = pytest.mark.parametrize("threads", (1, 3))
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


PRODUCTS = {  # M, N, K
    "1x1x1": (1, 1, 1),
    "1x33x5": (1, 33, 5),
    "33x1x5": (33, 1, 5),
    "17x49x1": (17, 49, 1),
    "50x17x33": (50, 17, 33),
    "17x50x33": (17, 50, 33),
    "70x49x3": (70, 49, 3),  # few terms, as many as are multiplied row by row where a is transposed, and one more
    "70x49x4": (70, 49, 4),
    "130x64x20": (130, 64, 20),
    "50x40x300": (50, 40, 300),  # many rows, and few: several chunks of terms, pieces of columns
    "9x70x1100": (9, 70, 1100),
}


def slice_of(matrix, seed=1):
    """The same matrix as columns of a wider one, whose other elements are NaN."""
    wide = np.full((matrix.shape[0], matrix.shape[1] + 7), np.nan, matrix.dtype)
    wide[:, 3 : 3 + matrix.shape[1]] = matrix
    return wide, wide[:, 3 : 3 + matrix.shape[1]]


@by_dtype
@by_threads
@pytest.mark.parametrize("accumulate", (False, True), ids=("set", "add"))
@pytest.mark.parametrize("transpose_a, transpose_b", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("M, N, K", PRODUCTS.values(), ids=PRODUCTS)
def test_multiply(engine, M, N, K, transpose_a, transpose_b, accumulate, threads, dtype):
    engine.set_num_threads(threads)
    a, b = normal(dtype, M, K), normal(dtype, K, N, seed=1)
    start = normal(dtype, M, N, seed=2) if accumulate else np.full((M, N), np.nan, dtype)
    _, a_slice = slice_of(np.ascontiguousarray(a.T) if transpose_a else a)
    _, b_slice = slice_of(np.ascontiguousarray(b.T) if transpose_b else b)
    wide, out = slice_of(start)
    engine.multiply(out, a_slice, b_slice, transpose_a=transpose_a, transpose_b=transpose_b, accumulate=accumulate)
    expected = a.astype(np.float64) @ b.astype(np.float64) + (start if accumulate else 0)
    # K + 1 roundings of sums of at most |a| |b| + |start|
    bound = np.finfo(dtype).eps * (K + 1) * (np.abs(a) @ np.abs(b) + np.abs(start if accumulate else 0))
    assert (np.abs(out - expected) <= bound).all()
    assert np.isnan(wide[:, :3]).all() and np.isnan(wide[:, 3 + N :]).all()


# Shapes whose parts OpenBLAS may compute otherwise: few rows or columns, small parts, a last row, one row too many.
SHARED = (
    (2, 300, 700), (38, 300, 512), (48, 300, 300), (64, 40, 1600), (300, 200, 132), (361, 101, 90), (130, 243, 150),
    (600, 1, 300), (515, 130, 257), (145, 150, 260), (300, 256, 100), (400, 160, 300), (400, 256, 300),
)  # fmt: skip
TRANSPOSED = ((False, False), (False, True), (True, False))


def check_bits_of_threads(engine, dtype):
    for (M, N, K), (transpose_a, transpose_b) in product(SHARED, TRANSPOSED):
        a, b, start = normal(dtype, M, K), normal(dtype, K, N, seed=1), normal(dtype, M, N, seed=2)
        a, b = (np.ascontiguousarray(x.T if turned else x) for x, turned in ((a, transpose_a), (b, transpose_b)))
        found = []
        for threads in (1, 2, 3, 4, 7):
            engine.set_num_threads(threads)
            found.append(start.copy())
            engine.multiply(found[-1], a, b, transpose_a=transpose_a, transpose_b=transpose_b, accumulate=True)
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other, f"{M, N, K}, transposed: {transpose_a}, {transpose_b}")


@by_dtype
def test_bits_do_not_depend_on_the_number_of_threads(engine, dtype):
    check_bits_of_threads(engine, dtype)


@pytest.mark.parametrize("core, feature", [("Haswell", "avx2"), ("SkylakeX", "avx512f")])
def test_bits_of_threads_with_kernels_for_other_processors(core, feature):
    """Those of OpenBLAS for AVX2, and for AVX-512, which has others for small matrices."""
    if core == openblas.core_name() or not host_features().get(feature):
        pytest.skip("these kernels are this machine's, as above, or do not run here")
    program = """
        import test_products_cpu
        from numbarnn import engines
        from numbarnn.engines.cpu import engine as cpu
        cpu.LEAST_WORK = 0
        for dtype in ("float32", "float64"):
            test_products_cpu.check_bits_of_threads(engines.get("cpu"), dtype)
    """
    tests = Path(__file__).parents[1]
    in_child(program, paths=(tests.parent, tests / "engines", tests / "support"), OPENBLAS_CORETYPE=core)


def test_what_compiled_code_reads_stays_until_it_has_done(engine, monkeypatch):
    """It gets the addresses of records: where one were let go of before, the next array of its size would take its
    place, such as one that Numba makes when it compiles."""
    run = engine.thread_pool.run

    def run_later(*arguments):
        taking_places = [np.full(size, -1) for size in range(1, 40) for _ in range(20)]
        run(*arguments)
        return taking_places

    monkeypatch.setattr(engine.thread_pool, "run", run_later)
    a, b = normal("float32", 20, 30), normal("float32", 30, 40)
    out, sums = nans("float32", 20, 40), np.zeros(30, np.float32)
    dw = {"W": nans("float32", 40, 30), "b_w": nans("float32", 40)}
    engine.multiply(out, a, b)
    engine.add_column_sums(sums, a)
    engine.weight_gradients(dw, out, None, a, None, False)
    for found, expected in ((out, a @ b), (sums, a.sum(axis=0)), (dw["W"], out.T @ a), (dw["b_w"], out.sum(axis=0))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@by_dtype
@pytest.mark.parametrize("threads", (2, 3))
def test_who_comes_does_not_count(engine, threads, dtype, monkeypatch):
    """The calling thread does alone what was to be shared, while another call has the threads."""
    engine.set_num_threads(threads)
    h, dax = normal(dtype, 70, 33), normal(dtype, 70, 90, seed=1)
    mask, scale = mask_words(0.4, 1, 0, 0)

    def results():
        dw = {name: nans(dtype, *shape) for name, shape in {"W": (90, 33), "R": (90, 33), "b_w": (90,)}.items()}
        dx, dropped = nans(dtype, 70, 33), nans(dtype, 70, 90)
        engine.weight_gradients(dw, dax, dax, h, h, False)
        engine.multiply(dx, dax, dw["W"])
        engine.dropout(dropped, dax, mask, scale)
        return [*dw.values(), dx, dropped]

    together = results()
    monkeypatch.setattr(
        engine.thread_pool, "run", lambda item, steps, count, _: thread_pool.run_alone(item, steps, count)
    )
    for one, other in zip(together, results(), strict=True):
        np.testing.assert_array_equal(one, other)
