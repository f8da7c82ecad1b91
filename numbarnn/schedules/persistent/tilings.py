"""Find the fastest tiling of layers over the blocks of a launch, or the reason why none fits.

Tiles and their costs are cached for any batch size. For a new one they are compared, and few or no new ones are made.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, log2
from operator import itemgetter
from typing import Any, NamedTuple

from numbarnn.cells import Cell
from numbarnn.common.precision import compute_dtype, is_half, itemsize
from numbarnn.common.words import counted
from numbarnn.kernels.persistent.tile import CHUNK_BYTES, N8, Tile
from numbarnn.schedules.persistent import shares
from numbarnn.schedules.persistent.costs import StepChain
from numbarnn.schedules.persistent.launch import Launch
from numbarnn.schedules.persistent.residence import Room, mixed_tile, ways, whole_tile, with_extras
from numbarnn.schedules.persistent.shares import BlockSize

UNITS = (4, 8, 12, 16, 24, 32)  # per block, tried in this order
SLICES = (1, 2, 3, 4, 6, 8, 16)  # of the batch, among blocks with the same units
# A layer's weights may be in registers and in shared memory together. Blocks may be larger then, and all together read
# less of what is exchanged, which bounds a step backward. If one place holds all weights, mixing must save this share
# of the step's time. Never measured on a device.
MIXED_GAIN = 0.12
MAX_PARAMETER_BYTES = 4096  # of a kernel launch
STATIC_SHARED_BYTES = 1024 + 16  # what the system takes on compute capability 9.0, and the kernel's flag
# Most warps, and most rows with 8 and with 16 sequences at once, if numbers are split in two: the parts take registers.
# Found by compiling for sm_90 without spills.
WARPS_IF_SPLIT, ROWS_IF_SPLIT = 8, (64, 32)
# Registers that a thread needs for the exchanges of a cell's stages, and of a projection (forward, backward); most
# warps of such a block. Found by compiling.
REGISTERS_IF_STAGED, REGISTERS_IF_PROJECTED, WARPS_IF_STAGED = 64, (16, 40), 8
CHUNKS_IF_STAGED = 20  # most chunks of tensor cores' weights all in shared memory then; found by compiling


class DoesNotFit(RuntimeError):
    """The problem cannot run as persistent kernels on this device; the message says why, with the numbers."""


class TilingSizes(NamedTuple):
    """The fields of a `Problem` that determine a launch's tiling.

    T is not among them: every tiling's time grows with the same number of steps, so the fastest one is the same for all
    T.
    """

    cell: Cell
    dtype: str
    input_size: int
    hidden_sizes: tuple[int, ...]
    directions: int
    projection: int
    batch: int
    allow_tf32: bool
    splits_tf32: bool


def sizes_of(problem):
    """Return the `TilingSizes` of a problem whose input's width does not matter, as no block multiplies it."""
    return TilingSizes(*(getattr(problem, name) for name in TilingSizes._fields))._replace(input_size=0)


@dataclass(frozen=True, eq=False)
class _Part:
    """Describe some layers of a problem for one launch, with any batch size. `_part` caches one instance of each.

    Attributes:
        sizes: the `TilingSizes`, with a batch of 0.
        profile: the device's profile. first, last: the part's layers, [first, last).
        backward: whether it belongs to the backward pass. given: see `Tile`.
    """

    sizes: TilingSizes
    profile: Any
    first: int
    last: int
    backward: bool
    given: bool

    def blocks_of(self):
        """Units of a block -> blocks, for each slice of the batch."""
        D, hidden = self.sizes.directions, self.sizes.hidden_sizes[self.first : self.last]
        return {units: sum(D * ceil(width / units) for width in hidden) for units in UNITS}

    @cached_property
    def products(self):
        """Most products of a layer's step, each of which takes a warp of a block."""
        size, layers = BlockSize(UNITS[0], self.profile.warps[0], self.given), range(self.first, self.last)
        of_layer = (shares.sources(self.sizes, self.first, one, self.last, self.backward, size) for one in layers)
        return max(map(len, of_layer))

    @property
    def warps(self):
        """Numbers of warps that a block may have: the profile's, or enough for one per product of a layer."""
        enough = self.last > self.first + 1 or self.products <= max(self.profile.warps)
        enough = enough or self.products > WARPS_IF_STAGED
        return self.profile.warps if enough else (2 ** ceil(log2(self.products)),)

    @property
    def shared_bytes(self):
        """Bytes of shared memory that a block may ask for."""
        return self.profile.shared_bytes - STATIC_SHARED_BYTES

    def state_bytes(self, units, sequences):
        """Return the bytes of shared memory that the states of a block's units take."""
        return sequences * units * self.sizes.cell.num_states * itemsize(compute_dtype(self.sizes.dtype))


_part = lru_cache(maxsize=1024)(_Part)


def best_tiling(sizes, profile, first, last, backward, given=False):
    """Return the `Launch` with the tiling that should be fastest, for any T, and without an estimate."""
    part = _part(sizes._replace(batch=0), profile, first, last, backward, given)
    slicings = _slicings(sizes.batch)
    fastest = _fastest(part, slicings)
    if fastest is None:
        raise DoesNotFit(_refusal(sizes, part, _closest(part, slicings[0])))
    us, tile, blocks, (slices, sequences) = fastest
    shared_bytes = tile.shared_bytes(sequences, sizes.cell.num_states)
    return Launch(first, last, tile, blocks, slices, sequences, shared_bytes, None, 0, sizes.directions, backward, us)


def _fastest(part, slicings):
    """Return the `_fitting` launch that should be fastest; None if none fits."""
    microseconds = itemgetter(0)
    in_one_place = min(_fitting(part, slicings, False), key=microseconds, default=None)
    mixed = _fitting(part, slicings, True)
    if in_one_place is None:
        return min(mixed, key=microseconds, default=None)
    # The records do not support sharing a launch among more layers. Forward, compiling has spilled registers for sm_90,
    # and for sm_80 if a warp has to leave chunks out.
    if not part.backward or part.last > part.first + 1:
        return in_one_place
    mixed = (one for one in mixed if one[1].resident == "registers+shared" and one[1].whole)
    best = min(mixed, key=microseconds, default=in_one_place)
    return best if best[0] < (1 - MIXED_GAIN) * in_one_place[0] else in_one_place


def _fitting(part, slicings, mixed):
    """Yield (microseconds of a step, tile, blocks, slicing) of each launch that fits.

    Args:
        slicings: see `_slicings`. mixed: whether weights may be in several places; else they are in one.
    """
    most, room, step_us = part.profile.multiprocessors, part.shared_bytes, StepChain.step_us
    for units, blocks_of_slice in part.blocks_of().items():
        for warps in part.warps:
            for slices, sequences in slicings:
                blocks = blocks_of_slice * slices
                if blocks > most:
                    break  # further slicings have more slices
                tiles = _tiles(part, BlockSize(units, warps, part.given), sequences, mixed)
                if isinstance(tiles, str):
                    continue
                free = room - part.state_bytes(units, sequences)
                for chain, shared_bytes in tiles:
                    if shared_bytes <= free:
                        us = step_us(chain, part.profile, blocks, slices, sequences)
                        yield us, chain.tile, blocks, (slices, sequences)


@lru_cache(maxsize=1024)
def columns_of(problem, first, last, backward, tile):
    """Return the most columns that a block multiplies at each step; 0 if nothing is multiplied."""
    return max(
        sum(source.columns for source in shares.sources(problem, first, layer, last, backward, tile))
        for layer in range(first, last)
    )


def _refusal(problem, part, closest):
    """Explain as text why no tiling fits; `closest` is the reason of the tiling that is closest to fitting."""
    hidden, profile = problem.hidden_sizes[part.first : part.last], part.profile
    sizes = ", ".join(map(str, hidden))
    rows, P = problem.cell.num_ah, problem.projection
    numbers = sum(rows * size * (P or size) + P * size for size in hidden)
    total = problem.directions * numbers * itemsize(problem.dtype)
    room = profile.multiprocessors * profile.shared_bytes
    weights = (
        f" ({total / 2**20:.1f} MiB of recurrent weights, for {profile.multiprocessors} SMs with "
        f"{profile.shared_bytes / 1024:.0f} KiB of shared memory each, {room / 2**20:.1f} MiB, which steps need too)"
    )
    return (
        f"{problem.cell.name} with hidden size {sizes} in {problem.dtype}, batch {problem.batch}, does not fit on "
        f"{profile.name}: {closest}{weights if total and part.products <= WARPS_IF_STAGED else ''}. "
        f"Use schedule='wavefront' or 'stepwise'"
    )


def _closest(part, slicing):
    """Explain why the smallest blocks that are few enough for the SMs, or else the largest, do not fit either."""
    most, warps = part.profile.multiprocessors, part.warps
    if part.products > WARPS_IF_STAGED:
        return f"{part.products} products per step, of at most {WARPS_IF_STAGED}, a warp for each"
    few_enough = [units for units, blocks in part.blocks_of().items() if blocks <= most]
    units, warps = (few_enough[0], warps[0]) if few_enough else (UNITS[-1], warps[-1])
    slices, sequences = slicing
    blocks = part.blocks_of()[units] * slices
    if blocks > most:
        return f"{units} units per block make {blocks} blocks, for {counted(most, 'SM')}"
    tiles = _tiles(part, BlockSize(units, warps, part.given), sequences, mixed=False)
    if isinstance(tiles, str):
        return tiles
    needed = min(shared_bytes for _, shared_bytes in tiles) + part.state_bytes(units, sequences)
    return (
        f"{counted(blocks, 'block')} of {units} units with {warps} warps "
        f"{'needs' if blocks == 1 else 'need each'} {needed / 1024:.0f} KiB of shared memory, of "
        f"{part.profile.shared_bytes / 1024:.0f} KiB"
    )


def _math(problem, profile):
    """Return how products are computed: "mma", "tf32" and "tf32x3" by tensor cores, or "fma"."""
    if is_half(problem.dtype):
        return "mma"
    if problem.dtype == "float32" and problem.allow_tf32 and profile.tensor_cores:
        return "tf32"
    if problem.dtype == "float32" and problem.splits_tf32 and profile.tensor_cores:
        return "tf32x3"
    return "fma"


def _slicings(batch):
    """Return ways to slice a batch among blocks with the same units: (slices, most sequences of one)."""
    lengths = [min(batch, ceil(ceil(batch / N8) / slices) * N8) for slices in SLICES]
    return [(ceil(batch / sequences), sequences) for sequences in dict.fromkeys(lengths)]


def _tiles(part, size, sequences, mixed):
    """Return ((`Chain`, bytes of shared memory besides states), ...) for the tiles of a `BlockSize`, or a text: why
    none.

    Results are cached for other batches with as many sequences at once.
    """
    n8 = 1 if sequences <= N8 else 2  # otherwise only shared memory depends on sequences
    if not mixed:
        return _whole(part, size, n8)
    ways_or_refusal = _ways(part, size, n8)
    if isinstance(ways_or_refusal, str):
        return ways_or_refusal
    free = part.shared_bytes - part.state_bytes(size.units, sequences)
    tiles = [_finished(part, way, way.most_shared_chunks(free)) for way in ways_or_refusal]
    return [one for one in tiles if one is not None] or (
        f"{_rows(part) * size.units} rows of weights and {size.warps} warps find too little room in registers and "
        f"shared memory"
    )


@lru_cache(maxsize=4096)
def _whole(part, size, n8):
    """Return `_tiles` whose weights are all in one place, for blocks with at most 8 sequences (1) or more (2)."""
    plain = _plain_tile(part, size, n8)
    if isinstance(plain, str):
        return plain
    tile = whole_tile(plain, _room_beside(part))
    if tile.for_stages and tile.math != "fma" and tile.shared_chunks > CHUNKS_IF_STAGED:
        return f"{tile.shared_chunks} chunks of weights in shared memory leave a cell with stages too few registers"
    return (_with_chain(part, tile),)


@lru_cache(maxsize=4096)
def _ways(part, size, n8):
    """Return the `residence.Way`s of `_tiles` whose weights may be in several places, or a text: why none."""
    plain = _plain_tile(part, size, n8)
    return plain if isinstance(plain, str) else tuple(ways(plain, part.sizes.cell.num_products > 0))


@lru_cache(maxsize=4096)
def _finished(part, way, shared):
    """Return one of `_tiles`, for a `Way`, if shared memory holds `shared` chunks; None if registers are short."""
    tile = mixed_tile(way.tile, _room_beside(part), shared)
    return None if tile is None else _with_chain(part, tile)


def _with_chain(part, tile):
    """Return a tile's entry of `_tiles`."""
    sizes, first, last, backward = part.sizes, part.first, part.last, part.backward
    share, places = tile.chunks * tile.chunk_elements, (last - first) * sizes.directions
    of_layers = (shares.sources(sizes, first, layer, last, backward, tile) for layer in range(first, last))
    whole = all(source.columns % share == 0 for sources in of_layers for source in sources)
    tile = replace(with_extras(tile, _room_beside(part)), whole=whole)
    chain = StepChain.of(sizes, part.profile, tile, columns_of(sizes, first, last, backward, tile), places)
    return chain, tile.shared_bytes(0, 0)


def _room_beside(part):
    """Return the `Room` of a block beside states."""
    cell = part.sizes.cell
    staged = len(cell.stages) > 0
    return room_of(part.profile, 0, part.sizes, part.backward, 0 if staged else cell.num_per_unit)


def _rows(part):
    """Return the rows of weights per unit."""
    cell, multiplies_input = part.sizes.cell, part.given or part.last > part.first + 1
    of_stages = [len(stage.gates) for stage in cell.stages]
    return 1 if part.backward else max(1, cell.num_recurrent, *of_stages, cell.num_gates if multiplies_input else 0)


def _plain_tile(part, size, n8):
    """Return the `Tile` with the fewest chunks, not yet placed or grouped; or why there is none, as text."""
    sizes, (units, warps, given) = part.sizes, size
    first, last, backward = part.first, part.last, part.backward
    parameters = parameter_bytes(sizes, last - first, backward)
    if parameters > MAX_PARAMETER_BYTES:
        return (
            f"the arrays of {last - first} layers are {parameters} bytes of parameters, at most {MAX_PARAMETER_BYTES}"
        )
    math, bytes_each, staged = _math(sizes, part.profile), itemsize(sizes.dtype), len(sizes.cell.stages) > 0
    if (staged or sizes.projection) and warps > WARPS_IF_STAGED:
        feature = "a cell with stages" if staged else "a projection"
        return f"{feature} leaves {warps} warps too few registers: at most {WARPS_IF_STAGED}"
    all_sources = [shares.sources(sizes, first, layer, last, backward, size) for layer in range(first, last)]
    chunks = shares.chunks_per_warp(all_sources, warps, CHUNK_BYTES // bytes_each)
    if chunks is None:
        return f"{max(map(len, all_sources))} products for {warps} warps"
    widths = (*sizes.hidden_sizes, sizes.projection, *[sizes.input_size] * (given and first == 0))
    aligned = all(width * bytes_each % 16 == 0 for width in widths) and units * bytes_each % 4 == 0
    rows, biases = _rows(part), 0 if backward else sizes.cell.num_gates + sizes.cell.num_ah
    n8 = _n8(math, rows * units, warps, n8)
    if n8 == 0:
        return (
            f"{rows * units} rows of weights and {warps} warps leave too few registers to float32 numbers that are "
            f"split in two: at most {ROWS_IF_SPLIT[0]} rows and {WARPS_IF_SPLIT} warps; with allow_tf32=False or True "
            f"more fit"
        )
    return Tile(
        sizes.dtype, math, rows, units, warps, chunks, 1, n8, aligned, unit_biases=biases, given=given,
        for_stages=_numbers_for_stages(sizes.cell, units),
        unit_parameters=sizes.cell.num_per_unit if staged else 0,
        projects=sizes.projection > 0,
    )  # fmt: skip


def _numbers_for_stages(cell, units):
    """Return how many numbers stages of sums add up per sequence: the totals, and one stage's terms of the units."""
    return cell.num_sums + max((len(stage.sums) for stage in cell.stages), default=0) * units


def _n8(math, rows, warps, n8):
    """Return how many of `n8` sets of 8 sequences are multiplied at once; 0 if registers do not suffice for one."""
    if math != "tf32x3":
        return n8
    return 0 if warps > WARPS_IF_SPLIT else sum(rows <= most for most in ROWS_IF_SPLIT[:n8])


def parameter_bytes(problem, layers, backward):
    """Return the most bytes of a kernel's parameters: each array is an address, its sizes and strides."""
    places, cell = layers * problem.directions, problem.cell
    if backward:
        arrays = (places if cell.same_gradient else 2 * places) + 2 * layers + places  # exchanged; h, c; saved
        arrays += (places if cell.per_unit else 1) + 1 + places * (problem.projection > 0)
    else:
        arrays = 3 * layers + places + 1  # the input of the first layer among them
        arrays += places * (cell.num_products > 0) + layers * (problem.projection > 0)
    # First and last states, one array of all layers of one size; two words (`ends`); the step mask, weights, the flag.
    arrays += 4 * (1 if len(set(problem.hidden_sizes)) == 1 else layers) + 2 + 3
    arrays += 2 * places * (cell.num_sums > 0)
    # One-dimensional; then three numbers of the ends; noise and masks, both tables, scale and sizes; two numbers of
    # each random one.
    numbers = max(1, 2 * len(cell.noise))
    return 8 * (7 * arrays + 3 + 9 + 9 + 9 + 11 + 1 + 2 + numbers)


def room_of(profile, sequences, sizes, backward, num_per_unit):
    """Return the `Room` of a block on a device, for `TilingSizes` or a `Problem`."""
    cell, shared_bytes = sizes.cell, profile.shared_bytes - STATIC_SHARED_BYTES
    for_stages = REGISTERS_IF_STAGED if cell.stages else 0
    for_stages += REGISTERS_IF_PROJECTED[backward] if sizes.projection else 0
    return Room(profile.registers, shared_bytes, sequences, cell.num_states, num_per_unit, for_stages)


def forget():
    """Forget all cached tilings, because what they depend on has changed."""
    for remembered in (_part, _whole, _ways, _finished, columns_of, shares.sources_of):
        remembered.cache_clear()
