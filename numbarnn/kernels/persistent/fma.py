"""Multiply float32 numbers by FMA in persistent kernels.

Gathered chunks first go to shared memory, where each lane of the warp reads all of them.
"""

from math import gcd
from types import SimpleNamespace

import numpy as np

from numbarnn.cuda import ptx
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function, in_turn
from numbarnn.kernels.persistent.exchange import make_gather
from numbarnn.kernels.persistent.tile import N8, next_power_of_two
from numbarnn.kernels.persistent.weights import LOADED_AT_ONCE, make_numbers

# Sequences that a lane multiplies at once with weights in registers: one's loads overlap with the other's sums.
SEQUENCES_AT_ONCE = 2


def make_product_from_registers(tile):
    """Make the product by FMA with weights in registers: a lane has a few rows of every k_lanes-th 16 bytes of columns.

    It multiplies each number from shared memory by all of its rows, since loading weights from shared memory would
    take as long as multiplying. Then lanes with the same rows add their sums, and each lane keeps the sums of some
    rows.
    """
    own_rows, k_lanes = tile.rows // tile.row_lanes, 32 // tile.row_lanes
    pieces = range(tile.chunks * tile.chunk_elements // (4 * k_lanes))  # of 16 bytes, per lane
    load = in_turn(tuple(_make_piece_load(tile, number, own_rows, k_lanes) for number in pieces))
    multiply = in_turn(tuple(_make_piece_product(tile, number, own_rows, k_lanes) for number in pieces))
    return SimpleNamespace(load=load, step=_make_step_from_registers(tile, multiply, own_rows, k_lanes))


@device_function
def _make_step_from_registers(tile, multiply, own_rows, k_lanes):
    stride, sequences, row_stride, staged = tile.staged_stride, tile.sequences, tile.row_stride, tile.weight_elements
    zero, at_once, add_lanes = np.float32(0), SEQUENCES_AT_ONCE, _make_lane_sums(own_rows, k_lanes)
    kept = max(1, next_power_of_two(own_rows) // k_lanes)  # rows that a lane has after the reduction
    gather_and_stage = make_gather(tile, tuple(_make_stage(tile, group) for group in range(tile.groups)))
    PARTIALS, between_warps = tile.partials, tile.between_warps

    def step(thread, role, turn):
        shared, lane, warp = thread.shared, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        partial = PARTIALS + warp * between_warps
        sums = cuda.local.array((at_once, own_rows), np.float32)
        cuda.syncwarp()  # other lanes may still read what was staged before
        gather_and_stage(thread, role, turn, sums)
        cuda.syncwarp()
        at = staged + warp * sequences * stride + lane % k_lanes * 4
        out = partial + lane // k_lanes * own_rows
        for b in range(0, sequences, at_once):
            for n in range(at_once):
                for r in range(own_rows):
                    sums[n, r] = zero
            multiply(thread, sums, at + b * stride)
            for n in range(at_once):
                first_row = add_lanes(sums, n)
                for r in range(kept):
                    if first_row + r < own_rows:
                        shared[out + (b + n) * row_stride + first_row + r] = sums[n, r]

    return step


@device_function
def _make_piece_load(tile, number, own_rows, k_lanes):
    """Make piece_load(thread, role), which loads a lane's `number`-th four columns of its rows to registers."""
    at_once = gcd(4, own_rows, tile.units) if tile.backward else 4
    numbers, as_word = make_numbers(tile, at_once), ptx.as_word
    fragment = number * own_rows * 4
    # Of the four columns of all rows: backward as many rows at once of a column, forward all columns of a row.
    rows, columns = (at_once, 1) if tile.backward else (1, 4)

    def piece_load(thread, role):
        lane = cuda.threadIdx.x & 31
        first_row, first_column = lane // k_lanes * own_rows, (number * k_lanes + lane % k_lanes) * 4
        for r in range(0, own_rows, rows):
            for k in range(0, 4, columns):
                found = numbers(role.weights, role.warp, first_row + r, first_column + k)
                for n in range(at_once):
                    at = (r + n) * 4 + k if rows == at_once else r * 4 + k + n
                    thread.registers[fragment + at] = as_word(found[n])

    return piece_load


@device_function
def _make_piece_product(tile, number, own_rows, k_lanes):
    """Make multiply(thread, sums, at), which adds the products of a lane's `number`-th 16 bytes for some sequences."""
    stride, at_once = tile.staged_stride, SEQUENCES_AT_ONCE
    fragment, skipped = number * own_rows * 4, number * k_lanes * 4
    get, as_float32 = ptx.load_shared, ptx.as_float32

    def multiply(thread, sums, at):
        for n in range(at_once):
            four = get(thread.shared, at + n * stride + skipped)
            for r in range(own_rows):
                total = sums[n, r]
                for k in range(4):
                    total += as_float32(thread.registers[fragment + r * 4 + k]) * four[k]
                sums[n, r] = total

    return multiply


@device_function
def _make_lane_sums(rows, lanes):
    """Make reduce(sums, n) -> first row, which adds sums[n, :rows] over neighboring lanes. In each round a lane passes
    half of its rows to a partner and adds the partner's part of the other half to its own. In the end it has the
    sums of a few rows, from the returned row on, at the front of sums[n]."""
    if lanes == 1:
        return lambda sums, n: 0
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
                received = cuda.shfl_xor_sync(0xFFFFFFFF, low if upper else high, partner)
                sums[n, r] = (high if upper else low) + received
            return rest(sums, n) + (half if upper else 0)

    return reduce


def _rectangle(tile):
    """Return (row_lanes, batch_lanes, rows, sequences): lanes along both sides of a warp's result, and the size of each
    lane's part. A lane has the rows l, l + row_lanes, ..., and every batch_lanes-th sequence."""
    batch_lanes = 32 // tile.row_lanes
    return tile.row_lanes, batch_lanes, tile.rows // tile.row_lanes, tile.sequences // batch_lanes


def make_product_from_shared(tile):
    """Make the product by FMA from shared memory, in which each lane computes some rows and sequences."""
    return SimpleNamespace(load=_make_load_to_shared(tile), step=_make_step_from_shared(tile))


@device_function
def _make_step_from_shared(tile):
    row_stride, (row_lanes, batch_lanes, own_rows, own_batch) = tile.row_stride, _rectangle(tile)
    gather_and_multiply = make_gather(tile, tuple(_make_fma_group(tile, group) for group in range(tile.groups)))
    zero, PARTIALS, between_warps = np.float32(0), tile.partials, tile.between_warps

    def step(thread, role, turn):
        shared, lane = thread.shared, cuda.threadIdx.x % 32
        partial = PARTIALS + cuda.threadIdx.x // 32 * between_warps
        sums = cuda.local.array((own_rows, own_batch), np.float32)
        for i in range(own_rows):
            for j in range(own_batch):
                sums[i, j] = zero
        gather_and_multiply(thread, role, turn, sums)
        at = partial + lane // row_lanes * row_stride + lane % row_lanes
        for i in range(own_rows):
            for j in range(own_batch):
                shared[at + j * batch_lanes * row_stride + i * row_lanes] = sums[i, j]

    return step


@device_function
def _make_load_to_shared(tile):
    """Make load(thread, role) for `products.make_product`, in which the lanes of a warp read neighbors in memory.
    Neighbors are along a row forward, along the units of a column backward."""
    rows, columns, stride = tile.rows, tile.shared_chunks * tile.chunk_elements, tile.weight_stride
    backward, at_once = tile.backward, gcd(4, rows, tile.units) if tile.backward else 4
    numbers = make_numbers(tile, at_once)
    between, sets = (stride, rows // at_once) if backward else (1, columns // at_once)  # in shared memory; in memory
    total = rows * columns // at_once

    def load(thread, role):
        shared, lane, warp = thread.shared, cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        held = cuda.local.array((LOADED_AT_ONCE, at_once), np.float32)
        for begin in range(lane, total, 32 * LOADED_AT_ONCE):
            for n in range(LOADED_AT_ONCE):
                index = min(begin + n * 32, total - 1)
                line, place = index // sets, index % sets * at_once
                row, column = (place, line) if backward else (line, place)
                found = numbers(role.weights, role.warp, row, column)
                for k in range(at_once):
                    held[n, k] = found[k]
            for n in range(LOADED_AT_ONCE):
                index = begin + n * 32
                if index < total:
                    line, place = index // sets, index % sets * at_once
                    row, column = (place, line) if backward else (line, place)
                    for k in range(at_once):
                        shared[(warp * rows + row) * stride + column + k * between] = held[n, k]

    return load


@device_function
def _make_fma_group(tile, group):
    """Make multiply(thread, sums), which stages a group of gathered chunks in shared memory and adds its product."""
    row_lanes, batch_lanes, own_rows, own_batch = _rectangle(tile)
    rows, weight_stride, stride = tile.rows, tile.weight_stride, tile.staged_stride
    columns = tile.gathered * tile.chunk_elements
    get, stage, staged, sequences = ptx.load_shared, _make_stage(tile, group), tile.weight_elements, tile.sequences
    skipped, unrolled = group * columns, 2  # loads of the next columns overlap with the sums of these

    def multiply(thread, sums):
        shared, lane, warp = thread.shared, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        cuda.syncwarp()  # other lanes may still read what was staged before
        stage(thread, sums)
        cuda.syncwarp()
        pieces = cuda.local.array((own_batch, 4), np.float32)
        own_weights = (warp * rows + lane % row_lanes) * weight_stride + skipped
        own_stage = staged + (warp * sequences + lane // row_lanes) * stride
        for column in range(0, columns, 4 * unrolled):
            for part in range(unrolled):
                at = column + 4 * part
                for j in range(own_batch):
                    four = get(shared, own_stage + j * batch_lanes * stride + at)
                    for k in range(4):
                        pieces[j, k] = four[k]
                for i in range(own_rows):
                    weight = get(shared, own_weights + i * row_lanes * weight_stride + at)
                    for j in range(own_batch):
                        total = sums[i, j]
                        for k in range(4):
                            total += weight[k] * pieces[j, k]
                        sums[i, j] = total

    return multiply


@device_function
def _make_stage(tile, group):
    """Make stage(thread, sums), which stores a group of gathered chunks in shared memory.
    With weights in registers it replaces a group's `multiply`, and so has the same arguments."""
    store, n8, gathered, stride, sequences = (
        ptx.store_shared_words, tile.n8, tile.gathered, tile.staged_stride, tile.sequences,
    )  # fmt: skip
    chunk_elements, piece_elements, staged = tile.chunk_elements, tile.piece_elements, tile.weight_elements
    skipped = group * gathered * chunk_elements if tile.register_chunks else 0
    place = tile.place_of(group)

    def stage(thread, sums):
        loaded, lane, warp = thread.loaded, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        row = staged + (warp * sequences + lane // 4) * stride + skipped + lane % 4 * piece_elements
        for n in range(n8):
            for chunk in range(gathered):
                at, words = row + n * N8 * stride + chunk * chunk_elements, place + chunk
                four = (loaded[n, words, 0], loaded[n, words, 1], loaded[n, words, 2], loaded[n, words, 3])
                store(thread.shared, at, four)

    return stage
