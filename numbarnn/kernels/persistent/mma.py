"""Products inside persistent kernels by the tensor cores (`mma`): halves, float32 rounded to TF32, or float32 as sums
of two TF32 numbers, with errors like those of float32 products (`_make_split_group`).

The lanes of a warp share the operand's rows as `mma` wants its matrix B: lane 4 g + q loads, of row g, the q-th 16
bytes of each chunk of 64 bytes. As the order of the columns does not matter to a product, if it is the same for the
weights, two calls of `mma` take words 0, 1 and 2, 3 of these 16 bytes: no number passes through shared memory. Likewise
it holds, of two rows of a strip of weights, the q-th 16 bytes of each chunk, which it loads from memory at once: the
rows g and g + 8 that `mma` means, forward. Backward units are neighbours in memory, so that a lane takes two that it
loads together, and 2 g and 2 g + 1 stand in the places of g and g + 8, in the weights as in their sums.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
from numba import cuda

from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.exchange import make_gather
from numbarnn.kernels.persistent.tile import OCTET, STRIP
from numbarnn.kernels.persistent.warp_parts import in_turn, make_group
from numbarnn.kernels.persistent.weights import LOADED_AT_ONCE, make_pieces_of_two_rows


def make_product(tile):
    """By `mma`. A fragment, what a lane holds of a strip of 16 rows, is four words: of its first row, of its second,
    and of the same rows the next word; fragments are numbered by strip, chunk and half of the chunk."""
    chunks, octets, strips = tile.chunks, tile.octets, tile.rows // STRIP
    gathered, row_stride, zero = tile.gathered, tile.row_stride, np.float32(0)
    store_pair, backward = ptx.store_shared_pair, tile.backward

    multiply = tuple(
        in_turn(tuple(_make_mma_group(tile, group * gathered + chunk, chunk) for chunk in range(gathered)))
        for group in range(chunks // gathered)
    )
    gather_and_multiply = in_turn(
        tuple(make_group(make_gather(tile, group), multiply[group]) for group in range(chunks // gathered))
    )

    def step(fragments, loaded, shared, partial, operand, patience):
        lane = cuda.threadIdx.x % 32
        sums = cuda.local.array((strips, octets, 4), np.float32)
        for strip in range(strips):
            for n in range(octets):
                for k in range(4):
                    sums[strip, n, k] = zero
        done = gather_and_multiply(fragments, sums, loaded, shared, operand, patience)
        for strip in range(strips):
            for n in range(octets):
                at = partial + (n * OCTET + lane % 4 * 2) * row_stride + strip * STRIP
                if backward:
                    store_pair(shared, at + lane // 4 * 2, (sums[strip, n, 0], sums[strip, n, 2]))
                    store_pair(shared, at + row_stride + lane // 4 * 2, (sums[strip, n, 1], sums[strip, n, 3]))
                else:
                    at += lane // 4
                    shared[at] = sums[strip, n, 0]
                    shared[at + row_stride] = sums[strip, n, 1]
                    shared[at + 8] = sums[strip, n, 2]
                    shared[at + row_stride + 8] = sums[strip, n, 3]
        return done

    load = _make_load_to_registers(tile) if tile.resident == "registers" else _make_load_to_shared(tile)
    return SimpleNamespace(load=load, step=jit(step, BACKEND))


@cache
def _make_two_fragments(tile):
    """A device function two_fragments(weights, matrix, strip, chunk): the lane's two fragments of a chunk, four words
    each."""
    pieces, backward, to_tf32 = make_pieces_of_two_rows(tile), tile.backward, ptx.to_tf32
    piece_elements, chunk_elements = tile.piece_elements, tile.chunk_elements

    def two_fragments(weights, matrix, strip, chunk):
        lane = cuda.threadIdx.x & 31
        first = strip * STRIP + (lane // 4 * 2 if backward else lane // 4)
        second = first + (1 if backward else 8)
        column = chunk * chunk_elements + lane % 4 * piece_elements
        a, b, c, d, e, f, g, h = pieces(weights, matrix, first, second, column)
        return (a, e, b, f), (c, g, d, h)

    def rounded(weights, matrix, strip, chunk):
        (a, b, c, d), (e, f, g, h) = stored(weights, matrix, strip, chunk)
        return (to_tf32(a), to_tf32(b), to_tf32(c), to_tf32(d)), (to_tf32(e), to_tf32(f), to_tf32(g), to_tf32(h))

    stored = jit(two_fragments, BACKEND)
    return jit(rounded, BACKEND) if tile.math == "tf32" else stored


def _make_load_to_registers(tile):
    """`load` of `products.make_product`, each lane for itself: fragments have no addresses."""
    return in_turn(tuple(_make_fragments_load(tile, number) for number in range(tile.rows // STRIP * tile.chunks)))


@cache
def _make_fragments_load(tile, number):
    """A device function that loads the fragments of one strip and chunk to registers."""
    two_fragments, (strip, chunk) = _make_two_fragments(tile), divmod(number, tile.chunks)

    def fragments_load(fragments, shared, weights, matrix):
        first, second = two_fragments(weights, matrix, strip, chunk)
        for k in range(4):
            fragments[number * 8 + k] = first[k]
            fragments[number * 8 + 4 + k] = second[k]
        return True

    return jit(fragments_load, BACKEND)


def _make_load_to_shared(tile):
    """Likewise to shared memory, where each lane finds its own."""
    two_fragments, store = _make_two_fragments(tile), ptx.store_shared_words
    chunks, lane_words, numbers = tile.chunks, tile.fragment_words, tile.rows // STRIP * tile.chunks

    def load(fragments, shared, weights, matrix):
        held = cuda.local.array((LOADED_AT_ONCE, 8), np.uint32)
        at = cuda.threadIdx.x // 32 * lane_words * 32 + cuda.threadIdx.x % 32 * 4
        for begin in range(0, numbers, LOADED_AT_ONCE):
            for n in range(LOADED_AT_ONCE):
                number = min(begin + n, numbers - 1)
                first, second = two_fragments(weights, matrix, number // chunks, number % chunks)
                for k in range(4):
                    held[n, k], held[n, 4 + k] = first[k], second[k]
            for n in range(LOADED_AT_ONCE):
                number = min(begin + n, numbers - 1)
                store(shared, at + number * 256, (held[n, 0], held[n, 1], held[n, 2], held[n, 3]))
                store(shared, at + number * 256 + 128, (held[n, 4], held[n, 5], held[n, 6], held[n, 7]))

    return jit(load, BACKEND)


@cache
def _make_fragment(tile):
    """A device function fragment(fragments, shared, number): the four words of the lane's fragment of that number."""
    get, lane_words = ptx.load_shared_words, tile.fragment_words

    def from_registers(fragments, shared, number):
        at = number * 4
        return fragments[at], fragments[at + 1], fragments[at + 2], fragments[at + 3]

    def from_shared(fragments, shared, number):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        return get(shared, warp * lane_words * 32 + number * 128 + lane * 4)

    return jit(from_registers if tile.resident == "registers" else from_shared, BACKEND)


@cache
def _make_mma_group(tile, chunk, place):
    """A device function that adds the product of one chunk, at `place` of the gathered words, to `sums`."""
    if tile.math == "tf32x3":
        return _make_split_group(tile, chunk, place)
    strips, octets, chunks, fragment = tile.rows // STRIP, tile.octets, tile.chunks, _make_fragment(tile)
    mma = {"float16": ptx.mma_float16, "bfloat16": ptx.mma_bfloat16, "float32": ptx.mma_tf32}[tile.dtype]
    to_tf32, rounds = ptx.to_tf32, tile.math == "tf32"

    def multiply(fragments, sums, loaded, shared):
        for half in range(2):
            for strip in range(strips):
                a = fragment(fragments, shared, (strip * chunks + chunk) * 2 + half)
                for n in range(octets):
                    b = (loaded[n, place, 2 * half], loaded[n, place, 2 * half + 1])
                    if rounds:
                        b = (to_tf32(b[0]), to_tf32(b[1]))
                    d = mma(a, b, (sums[strip, n, 0], sums[strip, n, 1], sums[strip, n, 2], sums[strip, n, 3]))
                    for k in range(4):
                        sums[strip, n, k] = d[k]
        return True

    return jit(multiply, BACKEND)


@cache
def _make_split_group(tile, chunk, place):
    """`_make_mma_group` of float32 numbers, each split into two for TF32: large, its nearest, and small, the rest.

    Of the four products of these parts three count: small * large + large * small + large * large (Ootomo and Yokota
    2022, "Recovering single precision accuracy from Tensor Cores"; "3xTF32" of CUTLASS). The tensor cores cut what
    their sums lose, which adds up from chunk to chunk; so each three products begin at zero, and what they give is
    added by float32 additions, which round. Weights are split in each step: as two words each they would take twice the
    registers.
    """
    strips, octets, chunks, fragment = tile.rows // STRIP, tile.octets, tile.chunks, _make_fragment(tile)
    mma, split, zero = ptx.mma_tf32, ptx.split_tf32, np.float32(0)

    def multiply(fragments, sums, loaded, shared):
        operand = cuda.local.array((octets, 4), np.uint32)  # of each row two large parts, then the small ones
        for half in range(2):
            for n in range(octets):
                operand[n, 0], operand[n, 2] = split(loaded[n, place, 2 * half])
                operand[n, 1], operand[n, 3] = split(loaded[n, place, 2 * half + 1])
            for strip in range(strips):
                words = fragment(fragments, shared, (strip * chunks + chunk) * 2 + half)
                (a, e), (b, f), (c, g), (d, h) = split(words[0]), split(words[1]), split(words[2]), split(words[3])
                large, small = (a, b, c, d), (e, f, g, h)
                for n in range(octets):
                    column = (operand[n, 0], operand[n, 1])
                    found = mma(small, column, (zero, zero, zero, zero))
                    found = mma(large, (operand[n, 2], operand[n, 3]), found)
                    found = mma(large, column, found)
                    for k in range(4):
                        sums[strip, n, k] += found[k]
        return True

    return jit(multiply, BACKEND)
