"""What a launch of a persistent kernel is estimated to cost, and by what its tilings are compared.

An estimate is of one step: bytes over bandwidth, multiply-adds over rate, sums and the exchange. The numbers that it is
made of, and the records that those are from, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from numbarnn.common.precision import itemsize
from numbarnn.kernels.persistent.tile import Tile
from numbarnn.schedules import calibration

# By which tilings are compared (`Chain`). Clocks, as profiled on an H200: of a trip to the L2 cache, and of a
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
        add: adding the warps' partial sums, and the cell.
        rounds: how often blocks exchange something within the step, for the cell's stages and a projection.
        within: doing that, all turns together.
    """

    exchange: float
    read_bytes: int
    read: float
    multiply: float
    add: float
    rounds: int = 0
    within: float = 0.0

    @property
    def step(self):
        """All together: they follow each other."""
        return self.exchange + self.within + self.read + self.multiply + self.add

    @property
    def bound(self):
        """What takes the most time."""
        return max(("exchange", "within", "read", "multiply", "add"), key=lambda part: getattr(self, part))


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
    multiply = tile.rows * columns * turns * tile.sequences / rate / clock
    if tile.shared_chunks and tile.math != "fma":
        loads = turns * tile.rows * columns * itemsize(problem.dtype) / 128 / clock
        multiply += loads * tile.shared_chunks / tile.chunks / calibration.SHARED_SHARE.value
    add = turns * _sums(tile) * calibration.SUM_CLOCKS.value / clock
    add += turns * tile.pairs * calibration.CELL_BACKWARD_US.value * launch.backward
    # What comes from another layer is there before it is needed.
    exchange = profile.exchange_us if problem.cell.num_recurrent else 0.0
    rounds, places = _rounds(problem.cell, tile), (launch.last - launch.first) * launch.directions
    within = calibration.WITHIN_SHARE.value * turns * rounds * profile.exchange_us
    words = sequences * blocks * blocks / launch.slices * _words_us(problem.cell, profile, places)
    within += calibration.L2_SHARE.value * words
    return Estimate(exchange, read_bytes, read, multiply, add, rounds, within)


def _sums(tile):
    """Loads from shared memory, of all warps of a block, in which a turn adds its partial sums."""
    return tile.warps * tile.rows_per_unit * tile.pairs * tile.warps


def _rounds(cell, tile):
    """How often blocks exchange something within a step: once for each of the cell's stages, but that nothing flows
    back through the largest of terms, and once for a projection."""
    return sum(1 for stage in cell.stages if not (tile.backward and stage.largest)) + tile.projects


def _words_us(cell, profile, places):
    """Microseconds in which the words of all sums over units (`kernels.persistent.across`) come at the full rate of the
    L2 cache, for one sequence of a block, and per blocks² / slices: each block reads those of all blocks of its layer,
    direction and slice.

    Args:
        places: how many layers and directions share the launch's blocks.
    """
    return cell.num_sums * 8 / (profile.l2_gb_s * 1e3) / places


def _fma_share(tile, rounds):
    """The share of the rate of multiply-adds that products reach, for comparing tilings.

    With exchanges within a step it is the fitted number, by which weights in shared memory are no slower than in
    registers. They may be faster then: only few, large blocks may hold all weights in registers, and each of these
    reads the whole batch.

    Args:
        rounds: of exchanges within a step.
    """
    place = _fma_place(tile)
    return calibration.FMA_SHARE[place].value if rounds else FMA_EFFICIENCY[place]


def _fma_place(tile):
    """By which number products by FMA are estimated."""
    return "registers" if tile.register_chunks else "shared"


class Chain(NamedTuple):
    """A step's chain by which the tilings of a problem are compared, as far as it is the same for all batches.

    The records have one tiling for each problem: what they were fitted to (`calibration`) says nothing about others. So
    the choice stays what it was when they were taken, by a model of a step's chain: a trip to the L2 cache for each
    group of chunks, the products, a turn's instructions, and an exchange that further turns hide. Of steps with
    exchanges within them there is no record, so that products by FMA are reckoned by the fitted rates.

    Attributes:
        tile: the tile of every block.
        turn: microseconds of a turn: trips, products, sums, instructions, and exchanges within it.
        own, together: microseconds that reading the columns of a sequence takes at least at a block's own rate, and
            adds for each block at the L2's.
        exchange: microseconds of the exchange.
        words: see `_words_us`.
    """

    tile: Tile
    turn: float
    own: float
    together: float
    exchange: float
    words: float

    @classmethod
    def of(cls, problem, profile, tile, columns, places):
        """That of a tile, and of `columns` which each of its blocks multiplies, those of so many `places` (layers and
        directions); `problem` or its `tilings.Sizes`."""
        clock, size = profile.clock_ghz * 1e3, itemsize(problem.dtype)
        groups = tile.chunks // tile.gathered * (1 + problem.cell.num_products + tile.projects) if columns else 0
        rounds = _rounds(problem.cell, tile)
        if tile.math == "fma":
            rate = _fma_share(tile, rounds) * profile.fma_per_clock
        else:
            rate = profile.mma_per_clock / MMA_TIMES[tile.math]
        turn = groups * L2_CLOCKS / clock + tile.rows * columns * tile.sequences / rate / clock
        if tile.shared_chunks and tile.math != "fma":
            turn += tile.rows * columns * size / 128 / clock * tile.shared_chunks / tile.chunks
        turn += (TURN_CLOCKS + _sums(tile)) / clock  # a clock each
        turn += rounds * profile.exchange_us
        read, words = columns * size, _words_us(problem.cell, profile, places)
        exchange = profile.exchange_us if problem.cell.num_recurrent else 0.0
        return cls(tile, turn, read / (64 * clock), read / (profile.l2_gb_s * 1e3), exchange, words)

    def step_us(self, profile, blocks, slices, sequences):
        """Microseconds of a step in so many blocks, which cut the batch in slices of so many sequences."""
        turns = -(-sequences // self.tile.sequences)
        chain = turns * self.turn + sequences * max(self.own, blocks * self.together)
        if self.words:
            chain += sequences * blocks * blocks / slices * self.words
        return chain + max(self.exchange - (turns - 1) / turns * chain, 0.0)


def tiling_us(step_us, steps, layers, directions):
    """Microseconds of a launch by which it is compared with others, of those of its `Chain.step_us`."""
    return TILING_LAUNCH_US + steps_in_all(steps, layers, directions) * step_us
