"""The planner of the persistent schedule: which launches a problem takes and how their layers are tiled over blocks, or
why it cannot run.

A pure function of numbers: a `Problem` and a `DeviceProfile`. A launch runs consecutive layers, all that fit on the
device together (or fewer, where that is taken to be faster); each of its blocks owns the same number of units of
one layer and direction. Estimates are of one step: bytes over bandwidth, multiply-adds over rate, and the exchange; the
numbers that they are made of, and the records that those are from, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import NamedTuple

from numbarnn.cells import Cell
from numbarnn.common.precision import compute_dtype, is_half, itemsize
from numbarnn.kernels.persistent.columns import INPUT, RECURRENT
from numbarnn.kernels.persistent.tile import CHUNK_BYTES, OCTET, PIECE_BYTES, Tile
from numbarnn.schedules import calibration
from numbarnn.schedules.persistent.costs import Estimate, estimate_of, steps_in_all, tiling_us
from numbarnn.schedules.persistent.residence import Room, looking_ahead, mixed_tiles, whole_tile, with_octets

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


class DoesNotFit(RuntimeError):
    """The problem cannot run as persistent kernels on this device; the message says why, with the numbers."""


@dataclass(frozen=True)
class Source:
    """A matrix, and what it is multiplied with at each step.

    Attributes:
        kind: `RECURRENT` or `INPUT`.
        direction: of the layer above whose input it was, backward; else 0.
        columns: that a block multiplies.
        width: columns of the matrix.
        start: the first of those columns, of a block with the layer's first units.
        head: units of a head. Of a block in the head after it these columns begin `head` further on, and so on.
    """

    kind: int
    direction: int
    columns: int
    width: int
    start: int = 0
    head: int = 0

    def first_column(self, unit):
        """The first column that the block multiplies whose first unit is that one."""
        return self.start + (unit // self.head * self.head if self.head else 0)


class BlockSize(NamedTuple):
    """How many units and warps a block has, before its `Tile` is made."""

    units: int
    warps: int


@dataclass(frozen=True)
class Launch:
    """One cooperative launch.

    Attributes:
        first, last: layers [first, last).
        tile: the tile of every block.
        blocks: number of blocks.
        slices: of the batch: so many blocks have the same units, each for its own slice of the sequences.
        sequences: most sequences of a block.
        shared_bytes: dynamic shared memory of each block.
        estimate: of one step; None while tilings are compared.
        steps: T.
        directions: D.
        backward: whether it is of the backward pass.
        tiling_us: by which it is compared with other tilings: see `costs.tiling_us`.
    """

    first: int
    last: int
    tile: Tile
    blocks: int
    slices: int
    sequences: int
    shared_bytes: int
    estimate: Estimate | None
    steps: int
    directions: int
    backward: bool
    tiling_us: float

    @property
    def microseconds(self):
        """Estimated time of the launch."""
        per_word = calibration.LOAD_BACKWARD_US if self.backward else calibration.LOAD_US
        load = per_word.value * self.tile.words_per_lane
        steps = self.steps_in_all + self.backward  # backward one more, which carries the gradient to the initial state
        return calibration.LAUNCH_US.value + load + steps * self.estimate.step

    @property
    def layer_range(self):
        """Its layers, as a range."""
        return range(self.first, self.last)

    @cached_property
    def places(self):
        """The (layer, direction) pairs of its layers, in order."""
        return [(layer, direction) for layer in self.layer_range for direction in range(self.directions)]

    @property
    def layers(self):
        """Its layers, as text."""
        return f"layer {self.first}" if self.last == self.first + 1 else f"layers {self.first} to {self.last - 1}"

    @property
    def home(self):
        """Where the weights are during the steps, as text; of several places how much of a block's is in each."""
        tile, stored, kept = self.tile, itemsize(self.tile.dtype), itemsize(compute_dtype(self.tile.dtype))
        places = {
            "registers": (tile.register_chunks, stored),
            "shared memory": (tile.shared_chunks, kept if tile.math == "fma" else stored),
            "streamed from the L2 cache at each step": (tile.streamed_chunks, stored),
        }
        used = {place: sizes for place, sizes in places.items() if sizes[0]}
        if len(used) == 1:
            return next(iter(used))
        elements = tile.warps * tile.rows * tile.chunk_elements
        *most, last = [
            f"{place} ({count * elements * size / 1024:.3g} KiB)" for place, (count, size) in used.items()
        ]  # fmt: skip
        return f"{', '.join(most)} and {last}"

    @property
    def steps_in_all(self):
        """Steps that follow each other."""
        return steps_in_all(self.steps, self.last - self.first, self.directions)

    @property
    def details(self):
        """How it is tiled and what a step is expected to take, as text."""
        tile, estimate = self.tile, self.estimate
        untimed = " (a rate that no device has been asked for)" if tile.math == "tf32x3" else ""
        stream = ""
        if tile.streamed_chunks:
            stream = (
                f"stream {estimate.stream:.2f} for {estimate.stream_bytes / 1024:.3g} KiB of weights (not timed on any "
                f"device), "
            )
        return (
            f"{self.blocks} blocks of {tile.threads} threads, each {tile.units} units of {self.sequences} sequences, "
            f"by {tile.math}; weights in {self.home}, {self.shared_bytes / 1024:.3g} KiB of shared memory per block; "
            f"a step: exchange {estimate.exchange:.2f} µs, read {estimate.read:.2f} for "
            f"{estimate.read_bytes / 1024:.3g} KiB, {stream}multiply {estimate.multiply:.2f}{untimed}, "
            f"add {estimate.add:.2f}; "
            f"{self.microseconds:.0f} µs in all"
        )

    def __str__(self):
        return (
            f"{self.layers} in {self.blocks} blocks of {self.tile.units} units and {self.sequences} sequences, "
            f"{self.estimate.step:.2f} µs per step, most of it {self.estimate.bound}"
        )


def sources(problem, first, layer, last, backward, tile):
    """What a block of `layer` multiplies at each step, in a launch of the layers [first, last).

    Args:
        tile: for its units and warps, a `Tile` or a `BlockSize`.
    """
    return _sources(problem, first, layer, last, backward, BlockSize(tile.units, tile.warps))


@lru_cache(maxsize=1024)  # each tiling of some layers asks for the same ones
def _sources(problem, first, layer, last, backward, size):
    hidden, D, others = problem.hidden_sizes, problem.directions, []
    if not backward and layer > first:
        others = [Source(INPUT, 0, D * hidden[layer - 1], D * hidden[layer - 1])]
    elif backward and layer + 1 < last:
        columns = problem.cell.num_gates * hidden[layer + 1]
        others = [Source(INPUT, direction, columns, columns) for direction in range(D)]
    own = _sources_of_head(problem, hidden[layer], backward, size.units)
    if not own or len(own + others) > size.warps:
        columns = problem.cell.num_recurrent * hidden[layer] if backward else hidden[layer]
        own = [Source(RECURRENT, 0, columns, columns)] * (problem.cell.num_recurrent > 0)
    return own + others


def _sources_of_head(problem, hidden, backward, units):
    """The sources of R's product where R has blocks on the diagonal (`Cell.heads`), and what a block of the grid owns
    are units of one of them: that head's columns, backward of each gate. None where it cannot be so.

    All other columns are zero. A dense product would multiply them, and wait for them; it would also carry an infinite
    number of another head here, as 0 * inf is NaN.
    """
    gates, head = problem.cell.num_recurrent, hidden // problem.cell.heads
    if head == hidden or head % units or head * itemsize(problem.dtype) % PIECE_BYTES:
        return []
    width = gates * hidden if backward else hidden
    return [Source(RECURRENT, 0, head, width, start, head) for start in range(0, width, hidden)] if gates else []


def variant(problem, launch):
    """(inputs, drops, masked), the options of the launch's kernel: see `kernels.persistent.forward.make_forward`."""
    several = len(launch.layer_range) > 1
    return several, several and problem.dropping, problem.masked


def share(sources, warps, tile):
    """Warps of a block shared among its sources: per warp (source, first column, number of columns); None for a warp
    without work.

    Args:
        sources: see `sources`.
        warps: number of warps.
        tile: for its chunks per warp.
    """
    shares = []
    for source in sources:
        size = tile.chunks * tile.chunk_elements
        shares += [(source, first, min(size, source.columns - first)) for first in range(0, source.columns, size)]
    return shares + [None] * (warps - len(shares))


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
    room = _room(profile, launch.sequences, cell.num_states, of_pair)
    more = with_octets(tile, octets, room)
    if more is None:
        return launch
    return replace(launch, tile=more, shared_bytes=more.shared_bytes(launch.sequences, cell.num_states))


def _room(profile, sequences, num_states, num_per_unit):
    """The `Room` of a block on a device."""
    return Room(profile.registers, profile.shared_bytes - STATIC_SHARED_BYTES, sequences, num_states, num_per_unit)


@lru_cache(maxsize=1024)
def _columns(problem, first, last, backward, tile):
    """Most columns that a block multiplies at each step; 0 where nothing is multiplied."""
    return max(
        sum(source.columns for source in sources(problem, first, layer, last, backward, tile))
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
    for mixed in MIXED:
        launches, refusals = [], []
        for units in UNITS:
            for warps in profile.warps:
                for slices in SLICES:
                    launch = _launch(problem, profile, first, last, backward, BlockSize(units, warps), slices, mixed)
                    if not isinstance(launch, str):
                        launches.append(launch)
                    elif slices == 1:
                        refusals.append(launch)
        if launches:
            return min(launches, key=lambda launch: launch.tiling_us)
    raise DoesNotFit(_refusal(problem, profile, first, last, refusals))


def forget():
    """Forget all that is remembered of plans: what they are made of has changed."""
    for remembered in (plan_launches, _best_launch, _tiling_or_refusal, _columns, _sources):
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


def _launch(problem, profile, first, last, backward, size_of_block, slices, mixed):
    """The Launch with blocks of a `BlockSize` and that many slices of the batch, or why not, as text.

    mixed: whether weights may be in several places; else they are in one.
    """
    hidden, D, batch = problem.hidden_sizes[first:last], problem.directions, problem.batch
    units, warps = size_of_block
    sequences = ceil(ceil(batch / OCTET) / slices) * OCTET
    slices, sequences = ceil(batch / sequences), min(batch, sequences)
    blocks = sum(D * ceil(width / units) for width in hidden) * slices
    if blocks > profile.multiprocessors:
        return f"{units} units per block make {blocks} blocks, for {profile.multiprocessors} SMs"
    parameters = _parameter_bytes(problem, last - first, backward)
    if parameters > MAX_PARAMETER_BYTES:
        return (
            f"the arrays of {last - first} layers are {parameters} bytes of parameters, at most {MAX_PARAMETER_BYTES}"
        )
    math = _math(problem, profile)
    all_sources = [sources(problem, first, layer, last, backward, size_of_block) for layer in range(first, last)]
    size = itemsize(problem.dtype)
    chunk_elements = CHUNK_BYTES // size
    chunks = _chunks_per_warp(all_sources, warps, chunk_elements)
    if chunks is None:
        return f"{max(map(len, all_sources))} products for {warps} warps"
    aligned = all(width * size % 16 == 0 for width in problem.hidden_sizes) and units * size % 4 == 0
    gates, recurrent = problem.cell.num_gates, problem.cell.num_recurrent
    rows = 1 if backward else max(1, recurrent, gates if last > first + 1 else 0)  # per unit
    biases = 0 if backward else gates + recurrent
    octets = _octets(math, rows * units, warps, sequences)
    if octets == 0:
        return (
            f"{rows * units} rows of weights and {warps} warps leave too few registers to float32 numbers that are "
            f"split in two: at most {ROWS_IF_SPLIT[0]} rows and {WARPS_IF_SPLIT} warps; with allow_tf32=False or True "
            f"more fit"
        )
    plain = Tile(problem.dtype, math, rows, units, warps, chunks, 1, octets, aligned, unit_biases=biases)
    states, per_unit = problem.cell.num_states, problem.cell.num_per_unit
    room = _room(profile, sequences, states, per_unit)
    tiles = mixed_tiles(plain, room) if mixed else (whole_tile(plain, room),)
    needed, launches = [], []
    for tile in tiles:
        share_of_warp = tile.chunks * chunk_elements
        whole = all(source.columns % share_of_warp == 0 for each in all_sources for source in each)
        tile = replace(looking_ahead(tile, room), whole=whole)
        needed.append(tile.shared_bytes(sequences, states))
        if needed[-1] <= room.shared_bytes:
            columns = _columns(problem, first, last, backward, tile)
            compared = tiling_us(problem, profile, tile, (blocks, slices, sequences, last - first), columns)
            launches.append(
                Launch(
                    first, last, tile, blocks, slices, sequences, needed[-1], None, problem.steps, D, backward, compared
                )
            )  # fmt: skip
    if launches:
        return min(launches, key=lambda launch: launch.tiling_us)
    if not needed:
        return f"{rows * units} rows of weights and {warps} warps leave too few registers to weights on their way"
    return (
        f"{blocks} blocks of {units} units with {warps} warps need {min(needed) / 1024:.0f} KiB of shared memory "
        f"each, of {profile.shared_bytes / 1024:.0f} KiB"
    )


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
    # One-dimensional; then noise and masks, both tables, scale and sizes; settings, and two numbers of each random one.
    numbers = max(1, len(cell.settings)) + max(1, 2 * len(cell.noise))
    return 8 * (7 * (arrays + 2) + 9 + 9 + 9 + 11 + 1 + 2 + numbers)


def _chunks_per_warp(all_sources, warps, chunk_elements):
    """Fewest chunks per warp with which the warps of a block can share all of its products; None if they cannot."""
    if max(map(len, all_sources)) > warps:
        return None
    needed = [[ceil(source.columns / chunk_elements) for source in each] for each in all_sources]
    chunks = 1
    while any(sum(ceil(number / chunks) for number in each) > warps for each in needed):
        chunks += 1
    return chunks
