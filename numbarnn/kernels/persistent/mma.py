"""Multiply by tensor cores (`mma`) in persistent kernels: float16, bfloat16, float32 rounded to TF32, or 3xTF32.

3xTF32 splits each float32 number into two TF32 numbers, with errors like those of float32 products
(`_make_split_group`).

Lanes hold the operand's rows as matrix B of `mma`: lane 4 g + q loads 16 bytes of row g, the q-th of each chunk of
64 bytes. A product may permute its columns if the weights do so too. So two calls of `mma` take words 0, 1 and 2, 3
of these 16 bytes, and no number passes through shared memory. Weights use the same order: a lane loads the q-th 16
bytes of each chunk for two of 16 rows (m16). Forward these are rows g and g + 8, as in `mma`. Backward units are
neighbors in memory, so a lane loads rows 2 g and 2 g + 1 together and uses them as rows g and g + 8, in the weights
and in sums.

A fragment is a lane's part of 16 rows. It has four words: one of each of its two rows, then the next word of each
row. Fragments are numbered by m (the number of the 16 rows), k-chunk and half of the chunk. Whether a chunk's
fragments are in registers or in shared memory is known when the kernel is made (`_make_fragment`).
"""

from types import SimpleNamespace

import numpy as np

from numbarnn.cuda import ptx
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function, in_turn
from numbarnn.kernels.persistent.exchange import make_gather
from numbarnn.kernels.persistent.tile import M16, N8
from numbarnn.kernels.persistent.weights import LOADED_AT_ONCE, make_pieces_of_two_rows


def make_product(tile):
    """Make the product by `mma` (see `products.make_product`)."""
    m16 = range(tile.rows // M16)  # each lane loads for itself, as fragments have no addresses
    loads = [_make_load_to_registers(tile, m, chunk) for m in m16 for chunk in range(tile.register_chunks)]
    loads += [_make_load_to_shared(tile)] * (tile.shared_chunks > 0)
    return SimpleNamespace(load=in_turn(tuple(loads)), step=_make_step(tile))


@device_function
def _make_step(tile):
    n8, m16 = tile.n8, tile.rows // M16
    all_sums = tile.accumulators * n8  # by m, then by accumulator
    row_stride, zero, PARTIALS, between_warps = tile.row_stride, np.float32(0), tile.partials, tile.between_warps
    store_pair, backward = ptx.store_shared_pair, tile.backward
    # This instruction needs one address and constants; an index in brackets may count from the end.
    put = ptx.store_shared

    multiply = tuple(
        in_turn(
            tuple(
                _make_mma_group(tile, group * tile.gathered + chunk, tile.place_of(group) + chunk)
                for chunk in range(tile.gathered)
            )
        )
        for group in range(tile.groups)
    )
    gather_and_multiply = make_gather(tile, multiply)

    def step(thread, role, turn):
        shared, lane = thread.shared, cuda.threadIdx.x % 32
        partial = PARTIALS + cuda.threadIdx.x // 32 * between_warps
        sums = cuda.local.array((m16, all_sums, 4), np.float32)
        for m in range(m16):
            for n in range(all_sums):
                for k in range(4):
                    sums[m, n, k] = zero
        gather_and_multiply(thread, role, turn, sums)
        for m in range(m16):
            for n in range(n8):
                for other in range(n8 + n, all_sums, n8):
                    for k in range(4):
                        sums[m, n, k] += sums[m, other, k]
                at = partial + (n * N8 + lane % 4 * 2) * row_stride + m * M16
                if backward:
                    store_pair(shared, at + lane // 4 * 2, (sums[m, n, 0], sums[m, n, 2]))
                    store_pair(shared, at + row_stride + lane // 4 * 2, (sums[m, n, 1], sums[m, n, 3]))
                else:
                    at += lane // 4
                    put(shared, at, sums[m, n, 0])
                    put(shared, at + row_stride, sums[m, n, 1])
                    put(shared, at + 8, sums[m, n, 2])
                    put(shared, at + row_stride + 8, sums[m, n, 3])

    return step


# ---- weights
@device_function
def _make_two_fragments(tile):
    """Make two_fragments(role, m, chunk) -> the lane's two fragments of a chunk, four words each."""
    pieces, backward, to_tf32, rounds = make_pieces_of_two_rows(tile), tile.backward, ptx.to_tf32, tile.math == "tf32"
    piece_elements, chunk_elements = tile.piece_elements, tile.chunk_elements

    def two_fragments(role, m, chunk):
        lane = cuda.threadIdx.x & 31
        first = m * M16 + (lane // 4 * 2 if backward else lane // 4)
        second = first + (1 if backward else 8)
        column = chunk * chunk_elements + lane % 4 * piece_elements
        a, b, c, d, e, f, g, h = pieces(role.weights, role.warp, first, second, column)
        if rounds:
            a, b, c, d = to_tf32(a), to_tf32(b), to_tf32(c), to_tf32(d)
            e, f, g, h = to_tf32(e), to_tf32(f), to_tf32(g), to_tf32(h)
        return (a, e, b, f), (c, g, d, h)

    return two_fragments


@device_function
def _make_load_to_registers(tile, m, chunk):
    """Make load(thread, role), which loads the fragments of one m and chunk to registers."""
    two_fragments, at = _make_two_fragments(tile), (m * tile.register_chunks + chunk) * 8

    def load(thread, role):
        first, second = two_fragments(role, m, chunk)
        for k in range(4):
            thread.registers[at + k] = first[k]
            thread.registers[at + 4 + k] = second[k]

    return load


@device_function
def _make_load_to_shared(tile):
    """Make load(thread, role), which loads the other fragments to shared memory."""
    two_fragments, store = _make_two_fragments(tile), ptx.store_shared_words
    chunks, lane_words, numbers = tile.shared_chunks, tile.shared_words, tile.rows // M16 * tile.shared_chunks
    first_chunk = tile.register_chunks

    def load(thread, role):
        shared, held = thread.shared, cuda.local.array((LOADED_AT_ONCE, 8), np.uint32)
        at = cuda.threadIdx.x // 32 * lane_words * 32 + cuda.threadIdx.x % 32 * 4
        for begin in range(0, numbers, LOADED_AT_ONCE):
            for n in range(LOADED_AT_ONCE):
                number = min(begin + n, numbers - 1)
                first, second = two_fragments(role, number // chunks, first_chunk + number % chunks)
                for k in range(4):
                    held[n, k], held[n, 4 + k] = first[k], second[k]
            for n in range(LOADED_AT_ONCE):
                number = min(begin + n, numbers - 1)
                store(shared, at + number * 256, (held[n, 0], held[n, 1], held[n, 2], held[n, 3]))
                store(shared, at + number * 256 + 128, (held[n, 4], held[n, 5], held[n, 6], held[n, 7]))

    return load


@device_function
def _make_fragment(tile, chunk):
    """Make fragment(thread, m, half) -> the four words of the lane's fragment of that m and half of a chunk."""
    get, lane_words, in_registers, in_shared = (
        ptx.load_shared_words, tile.shared_words, tile.register_chunks, tile.shared_chunks
    )  # fmt: skip

    def from_registers(thread, m, half):
        registers, at = thread.registers, ((m * in_registers + chunk) * 2 + half) * 4
        return registers[at], registers[at + 1], registers[at + 2], registers[at + 3]

    def from_shared(thread, m, half):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        number = (m * in_shared + chunk - in_registers) * 2 + half
        return get(thread.shared, warp * lane_words * 32 + number * 128 + lane * 4)

    return from_registers if chunk < in_registers else from_shared


# ---- products
@device_function
def _make_mma_group(tile, chunk, place):
    """Make multiply(thread, sums), which adds the product of the chunk at `place` of the gathered words."""
    m16, fragment = tile.rows // M16, _make_fragment(tile, chunk)
    if tile.math == "tf32x3":
        return _make_split_group(tile, fragment, place)
    n8, keep_order = tile.n8, ptx.keep_order
    # With weights in both places, all loads from shared memory would come first; ptxas then spills some.
    keeps = tile.register_chunks and chunk >= tile.register_chunks
    mma = {"float16": ptx.mma_float16, "bfloat16": ptx.mma_bfloat16, "float32": ptx.mma_tf32}[tile.dtype]
    to_tf32, rounds = ptx.to_tf32, tile.math == "tf32"
    number, accumulators = 2 * chunk, tile.accumulators

    def multiply(thread, sums):
        if keeps:
            keep_order(np.int32(cuda.threadIdx.x))
        for half in range(2):
            skipped = (number + half) % accumulators * n8  # sums of other accumulators
            for m in range(m16):
                a = fragment(thread, m, half)
                for n in range(n8):
                    b = (thread.loaded[n, place, 2 * half], thread.loaded[n, place, 2 * half + 1])
                    if rounds:
                        b = (to_tf32(b[0]), to_tf32(b[1]))
                    at = skipped + n
                    d = mma(a, b, (sums[m, at, 0], sums[m, at, 1], sums[m, at, 2], sums[m, at, 3]))
                    for k in range(4):
                        sums[m, at, k] = d[k]

    return multiply


@device_function
def _make_split_group(tile, fragment, place):
    """Make `multiply` for float32 numbers, each split into a large part (the nearest TF32 number) and a small rest.

    Three of the four products of these parts matter: small * large + large * small + large * large (Ootomo and
    Yokota 2022, "Recovering single precision accuracy from Tensor Cores"; "3xTF32" of CUTLASS). Tensor cores
    truncate their sums, and the loss grows from chunk to chunk. So every three products start from zero, and float32
    additions, which round, add their sums. Weights are split at each step, since two words for each would take twice
    the registers.
    """
    n8, m16 = tile.n8, tile.rows // M16
    mma, split, zero = ptx.mma_tf32, ptx.split_tf32, np.float32(0)

    def multiply(thread, sums):
        loaded = thread.loaded
        operand = cuda.local.array((n8, 4), np.uint32)  # of each row two large parts, then the small ones
        for half in range(2):
            for n in range(n8):
                operand[n, 0], operand[n, 2] = split(loaded[n, place, 2 * half])
                operand[n, 1], operand[n, 3] = split(loaded[n, place, 2 * half + 1])
            for m in range(m16):
                words = fragment(thread, m, half)
                (a, e), (b, f), (c, g), (d, h) = split(words[0]), split(words[1]), split(words[2]), split(words[3])
                large, small = (a, b, c, d), (e, f, g, h)
                for n in range(n8):
                    column = (operand[n, 0], operand[n, 1])
                    found = mma(small, column, (zero, zero, zero, zero))
                    found = mma(large, (operand[n, 2], operand[n, 3]), found)
                    found = mma(large, column, found)
                    for k in range(4):
                        sums[m, n, k] += found[k]

    return multiply
