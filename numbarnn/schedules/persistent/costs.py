"""What a launch of a persistent kernel is estimated to cost, and by what its tilings are compared.

An estimate is of one step: bytes over bandwidth, multiply-adds over rate, sums and the exchange. The numbers that it is
made of, and the records that those are from, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import dataclass
from math import ceil

from numbarnn.common.precision import itemsize
from numbarnn.schedules import calibration

# By which tilings are compared (`tiling_us`). Clocks, as profiled on an H200: of a trip to the L2 cache, and of a
# turn's instructions besides loads and products; shares of the peak rate, by where weights come from.
L2_CLOCKS, TURN_CLOCKS = 600, 1300
FMA_EFFICIENCY = {"registers": 0.7, "shared": 0.25}
TILING_LAUNCH_US = 8.0
# Instructions of the rate `mma_per_clock` that a product takes on the tensor cores: TF32 has half that rate, three
# products a third of TF32's. No record has either ("tf32x3" not even the choice of its tiling): the shares of the rate
# that are reached are those of halves, and splitting the numbers is taken to hide behind the products.
MMA_TIMES = {"mma": 1, "tf32": 2, "tf32x3": 6}


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one step, and what they are made of.

    Attributes:
        exchange: storing a block's part of the state and having all others' parts.
        read_bytes: of what is exchanged, by one block.
        read: reading them from the L2 cache.
        multiply: the products of one block.
        add: adding the warps' partial sums and the cell.
        stream_bytes: of weights that do not stay on the chip, by one block.
        stream: reading these, from the L2 cache, or from memory where all blocks' together are larger than the cache.
        rounds: how often blocks exchange something within the step, for the cell's stages.
        within: doing that, all turns together.
    """

    exchange: float
    read_bytes: int
    read: float
    multiply: float
    add: float
    stream_bytes: int = 0
    stream: float = 0.0
    rounds: int = 0
    within: float = 0.0

    @property
    def step(self):
        """All together: they follow each other."""
        return self.exchange + self.within + self.read + self.multiply + self.add + self.stream

    @property
    def bound(self):
        """What takes the most time."""
        return max(("exchange", "within", "read", "multiply", "add", "stream"), key=lambda part: getattr(self, part))


def steps_in_all(steps, layers, directions):
    """Steps of a launch that follow each other. A layer of two directions waits for the whole layer that it reads:
    nothing overlaps."""
    return steps + layers - 1 if directions == 1 else steps * layers


def estimate_of(problem, profile, launch, columns):
    """The Estimate of a step of a `planner.Launch`: of `turns` through a block's sequences, each a chain of loads,
    products and sums. Rows that are padded are multiplied too."""
    tile, blocks, sequences = launch.tile, launch.blocks, launch.sequences
    clock = profile.clock_ghz * 1e3  # per microsecond
    turns = ceil(sequences / tile.sequences)
    read_bytes = sequences * columns * itemsize(problem.dtype)
    read = calibration.L2_SHARE.value * blocks * read_bytes / (profile.l2_gb_s * 1e3)
    if tile.math == "fma":
        rate = calibration.FMA_SHARE[_fma_place(tile)].value * profile.fma_per_clock
    else:
        rate = calibration.MMA_SHARE.value * profile.mma_per_clock / MMA_TIMES[tile.math]
    if problem.dtype == "float64":
        rate *= profile.double_per_clock / profile.fma_per_clock
    multiply = tile.rows * columns * turns * tile.sequences / rate / clock
    if tile.shared_chunks and tile.math != "fma":
        loads = turns * tile.rows * columns * itemsize(problem.dtype) / 128 / clock
        multiply += loads * tile.shared_chunks / tile.chunks / calibration.SHARED_SHARE.value
    sums = tile.warps * tile.rows_per_unit * tile.pairs * tile.warps
    add = turns * sums * calibration.SUM_CLOCKS.value / clock
    add += turns * tile.pairs * calibration.CELL_BACKWARD_US.value * launch.backward
    # What comes from another layer is there before it is needed.
    exchange = profile.exchange_us if problem.cell.num_recurrent else 0.0
    stream_bytes = turns * _streamed_bytes(tile, columns)
    stream = calibration.STREAM_SHARE.value * _stream_us(profile, tile, (blocks, launch.slices), turns, columns)
    rounds, layers = _rounds(problem.cell, tile), launch.last - launch.first
    within = calibration.WITHIN_SHARE.value * turns * rounds * profile.exchange_us
    words = _words_us(problem, profile, sequences, (blocks, launch.slices, layers))
    within += calibration.L2_SHARE.value * words
    return Estimate(exchange, read_bytes, read, multiply, add, stream_bytes, stream, rounds, within)


def _rounds(cell, tile):
    """How often blocks exchange something within a step: once for each of the cell's stages, but that nothing flows
    back through the largest of terms."""
    return sum(1 for stage in cell.stages if not (tile.backward and stage.largest))


def _words_us(problem, profile, sequences, blocks):
    """Microseconds of a step in which each block reads the words of all sums over units of its sequences
    (`kernels.persistent.across`), from all blocks of its layer, at the full rate of the L2 cache.

    Args:
        sequences: of a block. blocks: (blocks, slices of the batch, layers).
    """
    blocks, slices, layers = blocks
    of_layer = blocks / (slices * layers * problem.directions)
    return blocks * problem.cell.num_sums * sequences * of_layer * 8 / (profile.l2_gb_s * 1e3)


def _fma_place(tile):
    """By which number products by FMA are estimated."""
    return "registers" if tile.register_chunks else "shared"


def _streamed_bytes(tile, columns):
    """Of weights that a block reads each time it goes through a part of its sequences."""
    size = tile.rows_per_unit * tile.units * columns * itemsize(tile.dtype)
    return size * tile.streamed_chunks // tile.chunks


def _stream_us(profile, tile, blocks, turns, columns):
    """Microseconds of a step in which all blocks' streamed weights come at the full rate of the L2 cache, or of memory
    where they are larger than the cache: weights that are read in turn then leave it before they are read again.

    Args:
        blocks: (blocks, slices of the batch, whose blocks have the same weights).
    """
    blocks, slices = blocks
    every = blocks * _streamed_bytes(tile, columns)
    from_l2 = every / (profile.l2_gb_s * 1e3)
    different = every / slices
    return turns * (from_l2 if different <= profile.l2_bytes else max(from_l2, different / (profile.memory_gb_s * 1e3)))


def tiling_us(problem, profile, tile, launched, columns):
    """Microseconds of a launch by which tilings of a problem are compared.

    The records have one tiling for each problem: what they were fitted to (`calibration`) says nothing about others. So
    the choice stays what it was when they were taken, by a model of a step's chain: a trip to the L2 cache for each
    group of chunks, the products, a turn's instructions, and an exchange that further turns hide.

    Args:
        launched: (blocks, slices, sequences of a block, layers).
    """
    blocks, slices, sequences, layers = launched
    clock, size = profile.clock_ghz * 1e3, itemsize(problem.dtype)
    turns, groups = ceil(sequences / tile.sequences), tile.chunks // tile.gathered if columns else 0
    read_bytes = sequences * columns * size
    together = blocks * read_bytes / (profile.l2_gb_s * 1e3)
    chain = turns * groups * L2_CLOCKS / clock + max(read_bytes / (64 * clock), together)
    if tile.math == "fma":
        rate = FMA_EFFICIENCY[_fma_place(tile)] * profile.fma_per_clock
    else:
        rate = profile.mma_per_clock / MMA_TIMES[tile.math]
    rate *= profile.double_per_clock / profile.fma_per_clock if problem.dtype == "float64" else 1
    chain += tile.rows * columns * turns * tile.sequences / rate / clock
    if tile.shared_chunks and tile.math != "fma":
        chain += turns * tile.rows * columns * size / 128 / clock * tile.shared_chunks / tile.chunks
    chain += _stream_us(profile, tile, (blocks, slices), turns, columns)
    chain += turns * _rounds(problem.cell, tile) * profile.exchange_us
    chain += _words_us(problem, profile, sequences, (blocks, slices, layers))
    sums = tile.warps * tile.rows_per_unit * tile.pairs * tile.warps  # loads from shared memory, a clock each
    chain += turns * (TURN_CLOCKS + sums) / clock
    exchange = max(profile.exchange_us - (turns - 1) / turns * chain, 0.0) if problem.cell.num_recurrent else 0.0
    return TILING_LAUNCH_US + steps_in_all(problem.steps, layers, problem.directions) * (exchange + chain)
