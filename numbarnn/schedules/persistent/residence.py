"""Where the weights of a tile are during the steps: in registers, in shared memory, or some in each.

    whole_tile(plain, room)       # all in one place
    for way in ways(plain):       # as many as fit in registers, the rest in shared memory
        mixed_tile(way.tile, room, way.most_shared_chunks(...))

These functions take a `tile.Tile` whose warps share the work with as few chunks as possible. They set how many chunks
are loaded at once, and where the chunks stay. With math "fma", weights are in registers only if all of them fit there:
a lane's columns differ between weights in registers and in shared memory.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from numbarnn.common.precision import compute_dtype, itemsize
from numbarnn.kernels.persistent.tile import M16, Tile

# Words that a thread loads at once, and its registers without weights, words and sums; in blocks of up to 8 warps, and
# in larger ones. The second number of words also holds for cells with sums over units, and for cells with further
# products whose weights are in several places.
WORDS_ON_THE_WAY = (32, 16)
OTHER_REGISTERS = (104, 60)
# More registers for mixed tiles, where some fragments come from shared memory while others stay in registers. Found by
# compiling for sm_90 without spills.
REGISTERS_IF_MIXED = 24
# For each 8 sequences, where float32 numbers are split in two.
REGISTERS_IF_SPLIT = 32
# Independent products of `mma` that a warp should have at once: each takes some 33 clocks, and may begin 8 clocks after
# the previous one unless it waits for that one's sums.
MOST_ACCUMULATORS = 4
MOST_IF_AHEAD = 16  # products of a group that is loaded ahead of time, fewer than that
# Registers of `OTHER_REGISTERS` that accumulators may use in blocks of up to 8 warps, but not with stages or
# projections. Found by compiling for sm_80, sm_90 and sm_100 without spills.
REGISTERS_FOR_ACCUMULATORS = 12
# Registers that must remain free if each thread keeps its biases; found by compiling.
REGISTERS_BESIDE_BIASES = 16
# Registers that must remain free for a cell with stages if a warp loads ahead of time; found by compiling.
REGISTERS_IF_AHEAD = 8


class Room(NamedTuple):
    """The memory in which a block can keep weights.

    Attributes:
        registers: 32-bit registers of an SM. shared_bytes: shared memory of a block. sequences: the block's most
            sequences.
        num_states, num_per_unit: numbers that a unit keeps from step to step, and the cell's per-unit parameters.
        for_stages: registers that a thread needs for the cell's stages.
    """

    registers: int
    shared_bytes: int
    sequences: int
    num_states: int
    num_per_unit: int
    for_stages: int = 0


def whole_tile(plain, room):
    """Return the tile with all weights in registers, or if they do not fit all in shared memory, even if they do not
    fit."""
    tile = _with_groups(plain)
    if tile.fragment_words <= _free_registers(tile, room):
        return tile
    return _with_groups(replace(plain, shared_chunks=plain.chunks))


@dataclass(frozen=True, eq=False)
class Way:
    """A way to go through a tile's chunks with weights in several places: sequences and chunks at once.

    Attributes:
        tile: the `tile.Tile` with all chunks in shared memory.
        all_bytes: of shared memory, besides states, that it takes. chunk_bytes: that each chunk takes there.
    """

    tile: Tile
    all_bytes: int
    chunk_bytes: int

    def most_shared_chunks(self, free):
        """Return how many chunks fit in `free` bytes of shared memory beside states.
        A negative number: not even what steps need fits."""
        return self.tile.chunks - max(0, ceil((self.all_bytes - free) / self.chunk_bytes))


def ways(plain, few=False):
    """Return each `Way` of a tile. `mixed_tile` returns None for those whose weights do not fit.

    Args:
        few: it loads fewer words at once, as the cell has further products, whose code takes registers too.
    """
    most = WORDS_ON_THE_WAY[plain.warps > 8 or few] // 4
    for n8 in range(plain.n8, 0, -1):
        for gathered in (8, 4, 2, 1):
            if gathered <= most // n8:
                chunks = ceil(plain.chunks / gathered) * gathered
                yield _way(replace(plain, n8=n8, gathered=gathered, chunks=chunks, shared_chunks=chunks))


def _way(tile):
    chunk_bytes = tile.warps * tile.rows * tile.chunk_elements * itemsize(compute_dtype(tile.dtype))
    if tile.math != "fma":
        chunk_bytes = tile.threads * (tile.rows // M16) * 8 * 4
    return Way(tile, tile.shared_bytes(0, 0), chunk_bytes)


def mixed_tile(tile, room, shared):
    """Return a `Way`'s tile with weights in registers first, then in shared memory, which holds `shared` chunks.
    It returns None if the weights do not fit. By FMA all are in shared memory."""
    chunks, in_registers = tile.chunks, 0
    if tile.math != "fma":
        free = max(_free_registers(tile, room) - REGISTERS_IF_MIXED, 0)
        in_registers = min(free // (tile.rows // M16 * 8), chunks)  # words of a chunk
    fits = 0 <= shared and chunks <= in_registers + shared
    return replace(tile, shared_chunks=chunks - in_registers) if fits else None


def _with_groups(tile):
    """Return the Tile with its chunks rounded up, loading as many at once as registers allow.
    Chunks on the way take registers; more groups take more trips to the L2 cache."""
    chunks = ceil(tile.chunks / tile.whole_chunks) * tile.whole_chunks
    most = WORDS_ON_THE_WAY[tile.warps > 8 or tile.for_stages > 0] // (4 * tile.n8)
    while True:
        gathered = max(number for number in range(1, most + 1) if chunks % number == 0)
        if gathered * 2 > most or gathered == chunks:  # few trips
            shared = chunks if tile.shared_chunks else 0
            return replace(tile, chunks=chunks, gathered=gathered, shared_chunks=shared)
        chunks += tile.whole_chunks


def with_n8(tile, n8, room):
    """Return the Tile, with weights in shared memory, for `n8` sets of 8 sequences at once; None if it does not fit.
    A warp that loads all of its chunks at once still does, if registers allow."""
    more = replace(tile, n8=n8, groups_ahead=0, accumulators=1, keeps_biases=False)
    if more.groups > 1 or _free_registers(more, room) < 0:
        more = _with_groups(more)
    fits = more.shared_bytes(room.sequences, room.num_states) <= room.shared_bytes and _free_registers(more, room) >= 0
    return with_extras(more, room) if more.chunks <= tile.chunks and fits else None


def with_extras(tile, room):
    """Return the Tile with extras as registers allow: first loading ahead, then accumulators, then biases."""
    return keeping_biases(with_accumulators(looking_ahead(tile, room), room), room)


def looking_ahead(tile, room):
    """Return the Tile whose warps load the next group of chunks ahead of time, if there is one and registers allow.

    Compiling has spilled registers with more than 8 warps (sm_100), in backward with a projection (sm_80), and in
    backward with two groups of 4 chunks, two m16 and 16 sequences (sm_90). These tiles do not load ahead.
    """
    ahead = replace(tile, groups_ahead=1)
    free = _free_registers(ahead, room) - (REGISTERS_IF_MIXED if tile.register_chunks and tile.shared_chunks else 0)
    free -= REGISTERS_IF_AHEAD if room.for_stages else 0
    few = tile.groups > 1 and tile.warps <= 8 and not (tile.projects and tile.backward)
    if tile.math != "fma" and tile.backward:
        few = few and tile.rows // M16 * tile.n8 * tile.gathered < MOST_IF_AHEAD
    return ahead if few and ahead.fragment_words <= free else tile


def with_accumulators(tile, room):
    """Return the Tile with as many accumulators as keep the tensor cores busy, or fewer if registers are short."""
    if tile.math not in ("mma", "tf32"):
        return tile
    sums = tile.rows // M16 * tile.n8
    margin = REGISTERS_IF_MIXED if tile.register_chunks and tile.shared_chunks else 0
    margin -= REGISTERS_FOR_ACCUMULATORS if tile.warps <= 8 and not room.for_stages else 0
    for accumulators in range(min(ceil(MOST_ACCUMULATORS / sums), 2 * tile.chunks), 1, -1):
        more = replace(tile, accumulators=accumulators)
        if more.fragment_words + margin <= _free_registers(more, room):
            return more
    return tile


def keeping_biases(tile, room):
    """Return the Tile whose threads keep their pairs' biases in registers, if there are any and registers allow.
    Cells with stages and projections leave them in shared memory."""
    biases = tile.pairs * tile.unit_biases
    free = _free_registers(tile, room) - (REGISTERS_IF_MIXED if tile.register_chunks and tile.shared_chunks else 0)
    few = not room.for_stages and tile.warps <= 8
    fits = biases + REGISTERS_BESIDE_BIASES + tile.fragment_words <= free
    return replace(tile, keeps_biases=True) if biases and few and fits else tile


def _free_registers(tile, room):
    """Return a thread's registers for weights, besides sums, loads and the cell's per-unit parameters."""
    most = min(255, room.registers // tile.threads)
    words = tile.n8 * tile.chunks_on_the_way * 4
    of_strips = tile.n8 * tile.accumulators * 4
    sums = tile.rows // tile.row_lanes * 2 if tile.math == "fma" else tile.rows // M16 * of_strips
    if tile.math == "fma" and not tile.register_chunks:  # a rectangle of sums, and of their factors
        own_batch = tile.sequences * tile.row_lanes // 32
        numbers = tile.rows // tile.row_lanes * own_batch + own_batch * 4
        sums = numbers * itemsize(compute_dtype(tile.dtype)) // 4
    sums += tile.n8 * REGISTERS_IF_SPLIT if tile.math == "tf32x3" else 0
    return most - words - sums - tile.pairs * room.num_per_unit - room.for_stages - OTHER_REGISTERS[tile.warps > 8]
