"""Products inside persistent kernels by the tensor cores (`mma`): halves, or float32 rounded to TF32.

The lanes of a warp share the operand's rows as `mma` wants its matrix B: lane 4 g + q loads, of row g, the q-th 16
bytes of each chunk of 64 bytes. As the order of the columns does not matter to a product, if it is the same for the
weights, two calls of `mma` take words 0, 1 and 2, 3 of these 16 bytes: no number passes through shared memory.
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
from numbarnn.kernels.persistent.warp_parts import in_turn, make_fragment_load, make_group, make_weight_at


def make_product(tile):
    """By `mma`. A fragment, what a lane holds of a strip of 16 rows, is four words: of row g, of row g + 8, and of
    the same rows the next word; fragments are numbered by strip, chunk and half of the chunk."""
    chunks, octets, strips, rows = tile.chunks, tile.octets, tile.rows // STRIP, tile.rows
    gathered, row_stride, lane_words = tile.gathered, tile.row_stride, tile.fragment_words
    in_registers = tile.resident == "registers"
    weight_word, as_float32 = _make_weight_word(tile), ptx.as_float32
    word_elements = 1 if tile.dtype == "float32" else 2
    zero = np.float32(0)
    to_registers = in_turn(tuple(make_fragment_load(number) for number in range(tile.fragment_words // 4)))

    def load(fragments, shared, weights, matrix):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for index in range(lane, rows * chunks * 16, 32):
            row, word = index // (chunks * 16), index % (chunks * 16)
            chunk, of_chunk = word // 16, word % 16
            owner = row % 8 * 4 + of_chunk // 4  # the lane
            number = (row // 16 * chunks + chunk) * 2 + of_chunk % 4 // 2
            part = of_chunk % 2 * 2 + row % 16 // 8
            value = weight_word(weights, matrix, row, word * word_elements)
            shared[warp * lane_words * 32 + number * 128 + owner * 4 + part] = as_float32(value)
        cuda.syncwarp()
        if in_registers:
            to_registers(fragments, shared, warp * lane_words * 32 + lane * 4)

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
                at = partial + (n * OCTET + lane % 4 * 2) * row_stride + strip * STRIP + lane // 4
                shared[at] = sums[strip, n, 0]
                shared[at + row_stride] = sums[strip, n, 1]
                shared[at + 8] = sums[strip, n, 2]
                shared[at + row_stride + 8] = sums[strip, n, 3]
        return done

    return SimpleNamespace(load=jit(load, BACKEND), step=jit(step, BACKEND))


@cache
def _make_mma_group(tile, chunk, place):
    """A device function that adds the product of one chunk, at `place` of the gathered words, to `sums`."""
    strips, octets, chunks, lane_words = tile.rows // STRIP, tile.octets, tile.chunks, tile.fragment_words
    in_registers, get = tile.resident == "registers", ptx.load_shared_words
    mma = {"float16": ptx.mma_float16, "bfloat16": ptx.mma_bfloat16, "float32": ptx.mma_tf32}[tile.dtype]
    to_tf32, rounds = ptx.to_tf32, tile.dtype == "float32"

    def multiply(fragments, sums, loaded, shared):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        for half in range(2):
            for strip in range(strips):
                number = (strip * chunks + chunk) * 2 + half
                if in_registers:
                    at = number * 4
                    a = (fragments[at], fragments[at + 1], fragments[at + 2], fragments[at + 3])
                else:
                    a = get(shared, warp * lane_words * 32 + number * 128 + lane * 4)
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
def _make_weight_word(tile):
    """A device function: a word of weights, as `mma` takes it: two halves of neighbouring columns, or one TF32."""
    weight_at, pack, as_word, to_tf32 = make_weight_at(tile), ptx.pack_halves, ptx.as_word, ptx.to_tf32
    if tile.dtype == "float32":

        def weight_word(weights, matrix, row, column):
            return to_tf32(as_word(weight_at(weights, matrix, row, column)))

    else:

        def weight_word(weights, matrix, row, column):
            return pack(weight_at(weights, matrix, row, column), weight_at(weights, matrix, row, column + 1))

    return jit(weight_word, BACKEND)
