"""The planner of the persistent schedule: which launches a problem takes and how their layers are tiled over blocks, or
why it cannot run.

A pure function of numbers: a `Problem` and a `DeviceProfile`. A launch runs consecutive layers, all that fit on the
device together (or fewer, where that is taken to be faster); each of its blocks owns the same number of units of
one layer and direction. Estimates are of one step: bytes over bandwidth, multiply-adds over rate, and the exchange; the
numbers that they are made of, and the records that those are from, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from numbarnn.cells import Cell
from numbarnn.common.precision import compute_dtype, is_half, itemsize
from numbarnn.kernels.persistent.tile import CHUNK_BYTES, OCTET, Tile
from numbarnn.schedules.persistent import shares
from numbarnn.schedules.persistent.costs import estimate_of, tiling_us
from numbarnn.schedules.persistent.launch import Launch
from numbarnn.schedules.persistent.residence import Room, looking_ahead, mixed_tiles, whole_tile, with_octets
from numbarnn.schedules.persistent.shares import BlockSize

UNITS = (4, 8, 12, 16, 24, 32)  # per block, tried in this order
SLICES = (1, 2, 3, 4, 6, 8, 16)  # of the batch, among blocks with the same units
# Whether weights are in several places, in this order: it is tried only where no place has room for all of them, as no
# device has been asked how long it takes.
MIXED = (False, True)
MAX_PARAMETER_BYTES = 4096  # of a kernel launch
STATIC_SHARED_BYTES = 1024 + 16  # what the system takes on compute capability 9.0, and the kernel's flag
# Most sets of 8 sequences at once backward, where the tensor cores' weights stand in shared memory: each turn loads all
# of them. Forward, where a unit has several rows, their sums leave no room: compiled for sm_90, registers are spilled.
MOST_OCTETS = 4
# Where numbers are split in two, whose parts take registers too: most warps, most rows with 8 and with 16 sequences at
# once. Found by compiling for sm_90, as nothing may be spilled.
WARPS_IF_SPLIT, ROWS_IF_SPLIT = 8, (64, 32)

# Of a thread, for the exchanges of a cell's stages, and most warps of a block then, likewise.
REGISTERS_IF_STAGED, WARPS_IF_STAGED = 64, 8


class DoesNotFit(RuntimeError):
    """The problem cannot run as persistent kernels on this device; the message says why, with the numbers."""


def variant(problem, launch):
    """(inputs, drops, masked), the options of the launch's kernel: see `kernels.persistent.forward.make_forward`."""
    several = len(launch.layer_range) > 1
    return several, several and problem.dropping, problem.masked


@lru_cache(maxsize=256)
def plan_launches(problem, profile, backward):
    """The launches of a pass, in their order.

    Raises:
        DoesNotFit: not even a single layer of it fits; says which, with the numbers.
    """
    if not profile.cooperative:
        raise DoesNotFit(f"{profile.name} has no cooperative launches, which persistent kernels need")
    plan, end = [], problem.layers
    first = 0
    while first < end:
        alone = _best_launch(problem, profile, first, first + 1, backward)
        best, spent = alone, alone.tiling_us
        for last in range(first + 2, end + 1):
            try:
                together = _best_launch(problem, profile, first, last, backward)
            except DoesNotFit:
                break
            own = _best_launch(problem, profile, last - 1, last, backward)
            if together.tile.streamed_chunks and not (alone.tile.streamed_chunks or own.tile.streamed_chunks):
                break  # more layers in a launch are not worth reading their weights at each step
            spent += own.tiling_us
            if together.tiling_us < spent:
                best, spent = together, together.tiling_us
        plan.append(best)
        first = best.last
    return tuple(reversed(plan)) if backward else tuple(plan)


class _Sizes(NamedTuple):
    """What decides about a launch's tiling: of a `Problem`, see there. How long it takes grows with T by the same steps
    in all, whatever the tiling, so that the best one is the best of each T: `steps` is a number for all of them."""

    cell: Cell
    dtype: str
    hidden_sizes: tuple[int, ...]
    directions: int
    batch: int
    allow_tf32: bool
    splits_tf32: bool
    steps: int = 1 << 20


def _sizes(problem):
    return _Sizes(*(getattr(problem, name) for name in _Sizes._fields[:-1]))


@lru_cache(maxsize=1024)
def _best_launch(problem, profile, first, last, backward):
    """The launch of the layers [first, last) whose tiling is taken to be the fastest, with its estimate."""
    alike = len(set(problem.hidden_sizes)) == 1  # then so many layers are tiled in the same way wherever they begin
    layers = (0, last - first) if alike else (first, last)
    found = _tiling_or_refusal(_sizes(problem), profile, *layers, backward)
    if isinstance(found, DoesNotFit):
        raise DoesNotFit(*found.args)
    columns = _columns(problem, first, last, backward, found.tile)
    launched = found.blocks, found.slices, found.sequences, last - first
    launch = _with_fewer_turns(problem, profile, found)
    return replace(
        launch, first=first, last=last, steps=problem.steps,
        estimate=estimate_of(problem, profile, launch, columns),
        tiling_us=tiling_us(problem, profile, found.tile, launched, columns),
    )  # fmt: skip


def _with_fewer_turns(problem, profile, launch):
    """The Launch with more sequences at once, where its turns would load weights from shared memory, and registers and
    shared memory allow. Its tiling is chosen before, with two sets of sequences at most: by a model that no record has
    tested with more."""
    octets, tile, cell = min(MOST_OCTETS, ceil(launch.sequences / OCTET)), launch.tile, problem.cell
    if not launch.backward or tile.math != "mma" or tile.resident != "shared" or octets <= tile.octets:
        return launch
    of_pair = cell.num_per_unit + cell.num_saved + 2 * cell.num_states  # a thread has more pairs, too
    room = _room(profile, launch.sequences, cell.num_states, of_pair, bool(cell.stages))
    more = with_octets(tile, octets, room)
    if more is None:
        return launch
    return replace(launch, tile=more, shared_bytes=more.shared_bytes(launch.sequences, cell.num_states))


def _room(profile, sequences, num_states, num_per_unit, staged):
    """The `Room` of a block on a device."""
    shared_bytes, for_stages = profile.shared_bytes - STATIC_SHARED_BYTES, REGISTERS_IF_STAGED if staged else 0
    return Room(profile.registers, shared_bytes, sequences, num_states, num_per_unit, for_stages)


@lru_cache(maxsize=1024)
def _columns(problem, first, last, backward, tile):
    """Most columns that a block multiplies at each step; 0 where nothing is multiplied."""
    return max(
        sum(source.columns for source in shares.sources(problem, first, layer, last, backward, tile))
        for layer in range(first, last)
    )


@lru_cache(maxsize=1024)
def _tiling_or_refusal(sizes, profile, first, last, backward):
    """`_best_tiling`, or the DoesNotFit that it raised."""
    try:
        return _best_tiling(sizes, profile, first, last, backward)
    except DoesNotFit as refusal:
        return refusal


def _best_tiling(problem, profile, first, last, backward):
    """`_best_launch` without an estimate, for a problem or its `_Sizes`."""
    kept, part, cuts = _sizes(problem)._replace(batch=0), (first, last, backward), _slices(problem.batch)
    for mixed in MIXED:
        launches, refusals = [], []
        for units in UNITS:
            for warps in profile.warps:
                for cut in cuts:
                    launch = _launch(problem, kept, profile, part, BlockSize(units, warps), cut, mixed)
                    if not isinstance(launch, str):
                        launches.append(launch)
                    elif cut == cuts[0]:
                        refusals.append(launch)
        if launches:
            return min(launches, key=lambda launch: launch.tiling_us)
    raise DoesNotFit(_refusal(problem, profile, first, last, refusals))


def forget():
    """Forget all that is remembered of plans: what they are made of has changed."""
    for remembered in (plan_launches, _best_launch, _tiling_or_refusal, _tiles, _columns, shares.sources_of):
        remembered.cache_clear()


def _refusal(problem, profile, first, last, refusals):
    """Why no tiling fits, as text. `refusals` has one for each number of units and warps, in their order."""
    hidden = problem.hidden_sizes[first:last]
    sizes = ", ".join(map(str, hidden))
    kept = compute_dtype(problem.dtype) if _math(problem, profile) == "fma" else problem.dtype  # "fma" keeps no halves
    total = sum(problem.directions * problem.cell.num_recurrent * size * size * itemsize(kept) for size in hidden)
    room = profile.multiprocessors * profile.shared_bytes
    few_enough = [
        sum(problem.directions * ceil(size / units) for size in hidden) <= profile.multiprocessors
        for units in UNITS for _ in profile.warps
    ]  # fmt: skip
    closest = refusals[few_enough.index(True) if any(few_enough) else -1]  # the smallest slices for these SMs
    weights = (
        f"its recurrent weights take {total / 2**20:.1f} MiB, and {profile.multiprocessors} SMs with "
        f"{profile.shared_bytes / 1024:.0f} KiB of shared memory each hold {room / 2**20:.1f} MiB, besides what the "
        f"steps need; "
    )
    return (
        f"{problem.cell.name} with hidden size {sizes} in {problem.dtype}, batch {problem.batch}, does not fit on "
        f"{profile.name}: {weights if total else ''}closest: {closest}. Use schedule='wavefront' or 'stepwise'"
    )


def _math(problem, profile):
    """How products are computed: "mma", "tf32" and "tf32x3" on the tensor cores, or "fma"."""
    if is_half(problem.dtype) and profile.tensor_cores:
        return "mma"
    if problem.dtype == "float32" and problem.allow_tf32 and profile.tensor_cores:
        return "tf32"
    if problem.dtype == "float32" and problem.splits_tf32 and profile.tensor_cores:
        return "tf32x3"
    return "fma"


def _slices(batch):
    """Ways to cut a batch among blocks with the same units: (slices, most sequences of one)."""
    lengths = [min(batch, ceil(ceil(batch / OCTET) / slices) * OCTET) for slices in SLICES]
    return [(ceil(batch / sequences), sequences) for sequences in dict.fromkeys(lengths)]


def _launch(problem, kept, profile, part, size_of_block, cut, mixed):
    """The Launch with blocks of a `BlockSize` and the batch cut in one of its `_slices`, or why not, as text.

    Args:
        kept: the problem's `_Sizes` without its batch. part: (first, last, backward).
        mixed: whether weights may be in several places; else they are in one.
    """
    (first, last, backward), (units, warps), (slices, sequences) = part, size_of_block, cut
    directions = problem.directions
    blocks = sum([directions * ceil(width / units) for width in problem.hidden_sizes[first:last]]) * slices
    if blocks > profile.multiprocessors:
        return f"{units} units per block make {blocks} blocks, for {profile.multiprocessors} SMs"
    # Of a batch only mixed tiles know more than whether it is multiplied 8 or 16 sequences at once.
    tiles = _tiles(kept, profile, part, size_of_block, sequences if mixed else min(sequences, OCTET + 1), mixed)
    if isinstance(tiles, str):
        return tiles
    found, needed = None, []
    for tile, columns in tiles:
        needed.append(tile.shared_bytes(sequences, problem.cell.num_states))
        if needed[-1] <= profile.shared_bytes - STATIC_SHARED_BYTES:
            compared = tiling_us(problem, profile, tile, (blocks, slices, sequences, last - first), columns)
            if found is None or compared < found[-1]:
                found = tile, blocks, slices, sequences, needed[-1], None, problem.steps, directions, backward, compared
    if found is None:
        return (
            f"{blocks} blocks of {units} units with {warps} warps need {min(needed) / 1024:.0f} KiB of shared memory "
            f"each, of {profile.shared_bytes / 1024:.0f} KiB"
        )
    return Launch(first, last, *found)


@lru_cache(maxsize=4096)
def _tiles(kept, profile, part, size_of_block, sequences, mixed):
    """((tile, most columns that a block multiplies), ...) of blocks of that many sequences, or why there is none, as
    text; arguments as of `_launch`. A new batch finds the tiles of those before it here."""
    (first, last, backward), (units, warps) = part, size_of_block
    parameters, staged = _parameter_bytes(kept, last - first, backward), len(kept.cell.stages) > 0
    if parameters > MAX_PARAMETER_BYTES:
        return (
            f"the arrays of {last - first} layers are {parameters} bytes of parameters, at most {MAX_PARAMETER_BYTES}"
        )
    math = _math(kept, profile)
    all_sources = [shares.sources(kept, first, layer, last, backward, size_of_block) for layer in range(first, last)]
    size = itemsize(kept.dtype)
    chunk_elements = CHUNK_BYTES // size
    if staged and warps > WARPS_IF_STAGED:
        return f"a cell with stages leaves {warps} warps too few registers: at most {WARPS_IF_STAGED}"
    chunks = shares.chunks_per_warp(all_sources, warps, chunk_elements)
    if chunks is None:
        return f"{max(map(len, all_sources))} products for {warps} warps"
    aligned = all(width * size % 16 == 0 for width in kept.hidden_sizes) and units * size % 4 == 0
    gates, recurrent = kept.cell.num_gates, kept.cell.num_recurrent
    rows = 1 if backward else max(1, recurrent, gates if last > first + 1 else 0)  # per unit
    biases = 0 if backward else gates + recurrent
    octets = _octets(math, rows * units, warps, sequences)
    if octets == 0:
        return (
            f"{rows * units} rows of weights and {warps} warps leave too few registers to float32 numbers that are "
            f"split in two: at most {ROWS_IF_SPLIT[0]} rows and {WARPS_IF_SPLIT} warps; with allow_tf32=False or True "
            f"more fit"
        )
    plain = Tile(
        kept.dtype, math, rows, units, warps, chunks, 1, octets, aligned, unit_biases=biases,
        for_stages=_numbers_for_stages(kept.cell, units),
        unit_parameters=kept.cell.num_per_unit if staged else 0,
    )  # fmt: skip
    room = _room(profile, sequences, kept.cell.num_states, 0 if staged else kept.cell.num_per_unit, staged)
    found = []
    for tile in mixed_tiles(plain, room) if mixed else (whole_tile(plain, room),):
        share_of_warp = tile.chunks * chunk_elements
        whole = all(source.columns % share_of_warp == 0 for each in all_sources for source in each)
        tile = replace(looking_ahead(tile, room), whole=whole)
        found.append((tile, _columns(kept, first, last, backward, tile)))
    return (
        tuple(found)
        or f"{rows * units} rows of weights and {warps} warps leave too few registers to weights on their way"
    )


def _numbers_for_stages(cell, units):
    """What stages of sums add up, of each sequence: the totals, and of one stage the terms of a block's units."""
    return cell.num_sums + max((len(stage.sums) for stage in cell.stages), default=0) * units


def _octets(math, rows, warps, sequences):
    """Sets of 8 sequences that are multiplied at once; 0 where registers do not suffice for one."""
    octets = 1 if sequences <= OCTET else 2
    if math != "tf32x3":
        return octets
    return 0 if warps > WARPS_IF_SPLIT else sum(rows <= most for most in ROWS_IF_SPLIT[:octets])


def _parameter_bytes(problem, layers, backward):
    """Bytes of a kernel's parameters, at most: each array is an address, its sizes and strides."""
    places, cell = layers * problem.directions, problem.cell
    if backward:
        exchanged = places if cell.same_gradient else 2 * places
        per_unit = places if cell.per_unit else 1
        arrays = exchanged + 2 * layers + 3 * places + per_unit + 2
    else:
        arrays = 3 * layers - 1 + places + 1
    arrays += 2 * places * (cell.num_sums > 0)
    # One-dimensional; then noise and masks, both tables, scale and sizes; settings, and two numbers of each random one.
    numbers = max(1, len(cell.settings)) + max(1, 2 * len(cell.noise))
    return 8 * (7 * (arrays + 2) + 9 + 9 + 9 + 11 + 1 + 2 + numbers)
