"""Products inside persistent kernels by FMA: float32 and float64 as they are, and halves where no tensor cores are.

The gathered chunks go to shared memory first, where each lane of the warp finds all of them.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
from numba import cuda

from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.exchange import make_gather
from numbarnn.kernels.persistent.tiles import next_power_of_two
from numbarnn.kernels.persistent.warp_parts import in_turn, make_fragment_load, make_group, make_weight_at

SEQUENCES_AT_ONCE = (
    2  # that a lane multiplies with weights in registers, so that one's loads go on during the other's sums
)


def make_product_from_registers(cut):
    """By FMA, with the weights in registers: a lane has a few rows, of every k_lanes-th 16 bytes of the columns.

    Each number it loads from shared memory is multiplied with all of its rows (from shared memory weights would come as
    slowly as they are multiplied); then lanes with the same rows add their sums, each keeping a part of the rows.
    """
    rows, columns, stride, sequences = cut.rows, cut.chunks * cut.chunk_elements, cut.staged_stride, cut.sequences
    row_lanes, row_stride, staged, lane_words = cut.row_lanes, cut.row_stride, cut.weight_elements, cut.fragment_words
    k_lanes, own_rows = 32 // row_lanes, rows // row_lanes
    vectors = columns // (4 * k_lanes)  # of 16 bytes, per lane
    weight_at, widen = make_weight_at(cut), storage.widen(cut.dtype)
    zero, rows_first, at_once = np.float32(0), cut.groups == 1, SEQUENCES_AT_ONCE
    to_registers = in_turn(tuple(make_fragment_load(number) for number in range(lane_words // 4)))
    multiply = in_turn(tuple(_make_vector_product(cut, number, own_rows, k_lanes) for number in range(vectors)))
    add_lanes = _make_lane_sums(own_rows, k_lanes)
    kept = max(1, next_power_of_two(own_rows) // k_lanes)  # rows that a lane has after the reduction

    def load(fragments, weights, shared, at, units, groups, group_stride, unit_stride, column_stride, count):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for index in range(lane, rows * columns, 32):
            row, column = (index % rows, index // rows) if rows_first else (index // columns, index % columns)
            weight = weight_at(weights, at, row, column, units, groups, group_stride, unit_stride, column_stride, count)
            vector = column // 4
            owner = row // own_rows * k_lanes + vector % k_lanes
            number = vector // k_lanes * own_rows + row % own_rows
            shared[warp * lane_words * 32 + number * 128 + owner * 4 + column % 4] = widen(weight)
        cuda.syncwarp()
        to_registers(fragments, shared, warp * lane_words * 32 + lane * 4)

    groups = range(cut.chunks // cut.gathered)
    gather_and_stage = in_turn(tuple(make_group(make_gather(cut, n), _make_stage(cut, n)) for n in groups))

    def step(
        fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit, trouble
    ):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        sums = cuda.local.array((at_once, own_rows), np.float32)
        cuda.syncwarp()  # other lanes may still read what was staged before
        where = (vector, row, batch, first, end, width, column, count, wait, limit, trouble)
        done = gather_and_stage(fragments, sums, words, shared, where)
        cuda.syncwarp()
        at = staged + warp * sequences * stride + lane % k_lanes * 4
        out = partial + lane // k_lanes * own_rows
        for b in range(0, sequences, at_once):
            for n in range(at_once):
                for r in range(own_rows):
                    sums[n, r] = zero
            multiply(fragments, sums, shared, at + b * stride)
            for n in range(at_once):
                first_row = add_lanes(sums, n)
                for r in range(kept):
                    if first_row + r < own_rows:
                        shared[out + (b + n) * row_stride + first_row + r] = sums[n, r]
        return done

    return SimpleNamespace(load=jit(load, BACKEND), step=jit(step, BACKEND))


@cache
def _make_vector_product(cut, number, own_rows, k_lanes):
    """A device function that adds the products of a lane's `number`-th 16 bytes, of some sequences, to `sums`."""
    stride, at_once = cut.staged_stride, SEQUENCES_AT_ONCE
    first, skipped = number * own_rows * 4, number * k_lanes * 4
    get, as_float32 = ptx.load_shared, ptx.as_float32

    def multiply(fragments, sums, shared, at):
        for n in range(at_once):
            four = get(shared, at + n * stride + skipped)
            for r in range(own_rows):
                total = sums[n, r]
                for k in range(4):
                    total += as_float32(fragments[first + r * 4 + k]) * four[k]
                sums[n, r] = total
        return True

    return jit(multiply, BACKEND)


@cache
def _make_lane_sums(rows, lanes):
    """A device function reduce(sums, n) -> first row: adds sums[n, :rows] over groups of neighbouring lanes.

    In each round a lane gives half of its rows to a partner and takes the partner's part of the other half, so that at
    last it has the sums of few rows, the first of which is returned, at the front.
    """
    if lanes == 1:
        return jit(lambda sums, n: 0, BACKEND)
    half, partner = max(1, next_power_of_two(rows) // 2), lanes // 2
    rest, zero = _make_lane_sums(half, lanes // 2), np.float32(0)
    if rows == 1:

        def reduce(sums, n):
            sums[n, 0] += cuda.shfl_xor_sync(0xFFFFFFFF, sums[n, 0], partner)
            return rest(sums, n)

    else:

        def reduce(sums, n):
            upper = cuda.threadIdx.x & partner != 0
            for r in range(half):
                low, high = sums[n, r], (sums[n, r + half] if r + half < rows else zero)
                given = cuda.shfl_xor_sync(0xFFFFFFFF, low if upper else high, partner)
                sums[n, r] = (high if upper else low) + given
            return rest(sums, n) + (half if upper else 0)

    return jit(reduce, BACKEND)


def _rectangle(cut):
    """(row_lanes, batch_lanes, rows, sequences): lanes along both sides of a warp's result, and what each computes:
    rows l, l + row_lanes, ..., and sequences likewise."""
    batch_lanes = 32 // cut.row_lanes
    return cut.row_lanes, batch_lanes, cut.rows // cut.row_lanes, cut.sequences // batch_lanes


def make_product_from_shared(cut):
    """By FMA from shared memory: lanes share the (row, sequence) pairs of the result, each a small rectangle."""
    rows, row_stride, stride, columns = cut.rows, cut.row_stride, cut.weight_stride, cut.chunks * cut.chunk_elements
    row_lanes, batch_lanes, own_rows, own_batch = _rectangle(cut)
    weight_at, widen = make_weight_at(cut), storage.widen(cut.dtype)
    number = np.dtype(compute_dtype(cut.dtype)).type
    zero = number(0)
    rows_first = cut.groups == 1  # backward: units, not columns, are neighbours in memory

    def load(fragments, weights, shared, at, units, groups, group_stride, unit_stride, column_stride, count):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for index in range(lane, rows * columns, 32):
            row, column = (index % rows, index // rows) if rows_first else (index // columns, index % columns)
            weight = weight_at(weights, at, row, column, units, groups, group_stride, unit_stride, column_stride, count)
            shared[(warp * rows + row) * stride + column] = widen(weight)

    gather_and_multiply = in_turn(
        tuple(
            make_group(make_gather(cut, group), _make_fma_group(cut, group))
            for group in range(cut.chunks // cut.gathered)
        )
    )

    def step(
        fragments, words, shared, partial, vector, row, batch, first, end, width, column, count, wait, limit, trouble
    ):
        lane = cuda.threadIdx.x % 32
        sums = cuda.local.array((own_rows, own_batch), number)
        for i in range(own_rows):
            for j in range(own_batch):
                sums[i, j] = zero
        where = (vector, row, batch, first, end, width, column, count, wait, limit, trouble)
        done = gather_and_multiply(fragments, sums, words, shared, where)
        at = partial + lane // row_lanes * row_stride + lane % row_lanes
        for i in range(own_rows):
            for j in range(own_batch):
                shared[at + j * batch_lanes * row_stride + i * row_lanes] = sums[i, j]
        return done

    return SimpleNamespace(load=jit(load, BACKEND), step=jit(step, BACKEND))


@cache
def _make_fma_group(cut, group):
    """A device function that takes a group of gathered chunks to shared memory and adds its product to `sums`."""
    row_lanes, batch_lanes, own_rows, own_batch = _rectangle(cut)
    number = np.dtype(compute_dtype(cut.dtype)).type
    rows, weight_stride, stride, columns = (
        cut.rows,
        cut.weight_stride,
        cut.staged_stride,
        cut.gathered * cut.chunk_elements,
    )
    get, stage, staged, sequences = ptx.load_shared, _make_stage(cut, group), cut.weight_elements, cut.sequences
    skipped, unrolled = group * columns, 2  # loads of the next columns go on during the sums of these

    def multiply(fragments, sums, words, shared):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        cuda.syncwarp()  # other lanes may still read what was staged before
        stage(fragments, sums, words, shared)
        cuda.syncwarp()
        vectors = cuda.local.array((own_batch, 4), number)
        own_weights = (warp * rows + lane % row_lanes) * weight_stride + skipped
        own_stage = staged + (warp * sequences + lane // row_lanes) * stride
        for first in range(0, columns, 4 * unrolled):
            for part in range(unrolled):
                at = first + 4 * part
                for j in range(own_batch):
                    four = get(shared, own_stage + j * batch_lanes * stride + at)
                    for k in range(4):
                        vectors[j, k] = four[k]
                for i in range(own_rows):
                    weight = get(shared, own_weights + i * row_lanes * weight_stride + at)
                    for j in range(own_batch):
                        total = sums[i, j]
                        for k in range(4):
                            total += weight[k] * vectors[j, k]
                        sums[i, j] = total
        return True

    return jit(multiply, BACKEND)


@cache
def _make_stage(cut, group):
    """A device function that puts a group of gathered chunks into shared memory, as numbers."""
    put, tiles, gathered, stride, sequences = (
        _make_put(cut.dtype), cut.tiles, cut.gathered, cut.staged_stride, cut.sequences,
    )  # fmt: skip
    chunk_elements, vector_elements, staged = cut.chunk_elements, cut.vector_elements, cut.weight_elements
    skipped = group * gathered * chunk_elements if cut.resident == "registers" else 0

    def stage(fragments, sums, words, shared):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        row = staged + (warp * sequences + lane // 4) * stride + skipped + lane % 4 * vector_elements
        for n in range(tiles):
            for chunk in range(gathered):
                put(shared, row + n * 8 * stride + chunk * chunk_elements, words, n, chunk)
        return True

    return jit(stage, BACKEND)


@cache
def _make_put(dtype):
    """A device function that puts 16 gathered bytes into shared memory, as numbers."""
    if dtype == "float64":
        as_float64 = ptx.as_float64

        def put(shared, at, words, n, chunk):
            shared[at] = as_float64(words[n, chunk, 0], words[n, chunk, 1])
            shared[at + 1] = as_float64(words[n, chunk, 2], words[n, chunk, 3])

    elif dtype == "float32":
        store = ptx.store_shared_words

        def put(shared, at, words, n, chunk):
            four = (words[n, chunk, 0], words[n, chunk, 1], words[n, chunk, 2], words[n, chunk, 3])
            store(shared, at, four)

    else:
        widen, low, shift = storage.widen(dtype), np.uint32(0xFFFF), np.uint32(16)

        def put(shared, at, words, n, chunk):
            for k in range(4):
                word = words[n, chunk, k]
                shared[at + 2 * k] = widen(np.uint16(word & low))
                shared[at + 2 * k + 1] = widen(np.uint16(word >> shift))

    return jit(put, BACKEND)
