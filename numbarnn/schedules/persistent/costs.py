"""Estimate the cost of a launch of a persistent kernel, and compare tilings.

An estimate is of one step: bytes over bandwidth, multiply-adds over rate, sums and the exchange. The fitted numbers,
and the records behind them, are in `numbarnn.schedules.calibration`.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from numbarnn.common.precision import itemsize
from numbarnn.kernels.persistent.tile import Tile
from numbarnn.schedules import calibration

# Clocks by which tilings are compared (`StepChain`), as profiled on an H200: of a trip to the L2 cache, and of a turn's
# instructions besides loads and products. Shares of the peak rate, by where weights come from.
L2_CLOCKS, TURN_CLOCKS = 600, 1300
FMA_EFFICIENCY = {"registers": 0.7, "shared": 0.25}
TILING_LAUNCH_US = 8.0
# From a product by `mma` to the next that adds to its sums. `estimate_of` leaves it out: its fitted numbers contain
# this wait, as the recorded kernels had it. With it as a separate part the fit misses 2 of the 144 records.
MMA_CLOCKS = 33
# Instructions of the rate `mma_per_clock` per product on tensor cores: TF32 has half that rate, 3xTF32 a sixth. No
# record has either ("tf32x3" not even the choice of its tiling): float16's shares of the rate are assumed, and that
# splitting numbers hides behind the products.
MMA_TIMES = {"mma": 1, "tf32": 2, "tf32x3": 6}


@dataclass(frozen=True)
class Estimate:
    """Estimated microseconds of one step, and their parts.

    Attributes:
        exchange: time to store a block's part of the state and to receive all other parts.
        read_bytes: bytes of the exchanged state that one block reads. read: time to read them from the L2 cache.
        multiply: time of one block's products. add: time to add the warps' partial sums and compute the cell.
        rounds: number of exchanges within the step, for the cell's stages and a projection. within: time of all of
            them.
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
        return self.exchange + self.within + self.read + self.multiply + self.add

    @property
    def bound(self):
        """The part that takes the most time."""
        return max(("exchange", "within", "read", "multiply", "add"), key=lambda part: getattr(self, part))


def steps_in_all(steps, layers, directions):
    """Return how many steps of a launch run one after another. With one direction, layers overlap. With two, each layer
    waits for the whole layer below."""
    return steps + layers - 1 if directions == 1 else steps * layers


def estimate_of(problem, profile, launch, columns):
    """Return the Estimate of a step of a `persistent.launch.Launch`.
    The step has `turns` through a block's sequences, each a chain of loads, products and sums. Padded rows are
    multiplied too."""
    tile, blocks, sequences = launch.tile, launch.blocks, launch.sequences
    clock = profile.clock_ghz * 1e3  # per microsecond
    turns = ceil(sequences / tile.sequences)
    read_bytes = sequences * columns * itemsize(problem.dtype)
    read = calibration.L2_SHARE * blocks * read_bytes / (profile.l2_gb_s * 1e3)
    if tile.math == "fma":
        rate = calibration.FMA_SHARE[_fma_place(tile)] * profile.fma_per_clock
    else:
        rate = calibration.MMA_SHARE * profile.mma_per_clock / MMA_TIMES[tile.math]
    multiply = tile.rows * columns * turns * tile.sequences / rate / clock
    if tile.shared_chunks and tile.math != "fma":
        loads = turns * tile.rows * columns * itemsize(problem.dtype) / 128 / clock
        multiply += loads * tile.shared_chunks / tile.chunks / calibration.SHARED_SHARE
    add = turns * _sums(tile) * calibration.SUM_CLOCKS / clock
    add += turns * tile.pairs * calibration.CELL_BACKWARD_US * launch.backward
    # Numbers from another layer arrive before they are needed.
    exchange = profile.exchange_us if problem.cell.num_recurrent else 0.0
    rounds, places = _rounds(problem.cell, tile), (launch.last - launch.first) * launch.directions
    within = calibration.WITHIN_SHARE * turns * rounds * profile.exchange_us
    words = sequences * blocks * blocks / launch.slices * _words_us(problem.cell, profile, places)
    within += calibration.L2_SHARE * words
    return Estimate(exchange, read_bytes, read, multiply, add, rounds, within)


def _mma_clocks(tile, columns):
    """Return the clocks of a warp's products by tensor cores in a turn, as each waits for the previous one in its sums.
    By "tf32x3" products of different chunks do not wait for each other."""
    return MMA_CLOCKS * tile.dependent_products if columns and tile.math in ("mma", "tf32") else 0


def _sums(tile):
    """Return the loads from shared memory, of all warps of a block, in which a turn adds its partial sums."""
    return tile.warps * tile.rows_per_unit * tile.pairs * tile.warps


def _rounds(cell, tile):
    """Return how often blocks exchange something within a step.
    That is once for each of the cell's stages, and once for a projection. Backward, stages with the largest term need
    none: no gradient flows through a maximum."""
    return sum(1 for stage in cell.stages if not (tile.backward and stage.largest)) + tile.projects


def _words_us(cell, profile, places):
    """Return the microseconds in which a sequence's words (`kernels.persistent.across`) come at the L2 cache's full
    rate.

    They are per blocks² / slices: each block reads the words of all blocks of its layer, direction and slice.

    Args:
        places: how many layers and directions share the launch's blocks.
    """
    return cell.num_sums * 8 / (profile.l2_gb_s * 1e3) / places


def _fma_share(tile, rounds):
    """Return the share of the peak multiply-add rate that products reach, for comparing tilings.

    With exchanges within a step it is the fitted number, which rates weights in shared memory as fast as in registers.
    They may be faster then: only few, large blocks hold all weights in registers, and each of these reads the whole
    batch.

    Args:
        rounds: of exchanges within a step.
    """
    place = _fma_place(tile)
    return calibration.FMA_SHARE[place] if rounds else FMA_EFFICIENCY[place]


def _fma_place(tile):
    """Return the name of the number by which products by FMA are estimated."""
    return "registers" if tile.register_chunks else "shared"


class StepChain(NamedTuple):
    """A step's chain of dependent work, independent of the batch, by which a problem's tilings are compared.

    The records have one tiling per problem, so the fitted numbers (`calibration`) cannot compare tilings. The
    comparison uses the model from the time of the records: a trip to the L2 cache for each group of chunks, the
    products, a turn's instructions, and an exchange that overlaps further turns. No record has exchanges within steps;
    for those, products by FMA use the fitted rates.

    Attributes:
        tile: the tile of every block.
        turn: microseconds of a turn: trips, products, sums, instructions, and exchanges within it.
        own, together: least microseconds to read a sequence's columns, at one block's rate, and per block at the L2's
            rate.
        exchange: microseconds of the exchange. words: see `_words_us`.
    """

    tile: Tile
    turn: float
    own: float
    together: float
    exchange: float
    words: float

    @classmethod
    def of(cls, problem, profile, tile, columns, places):
        """Return the chain of a tile whose blocks multiply `columns` columns.

        Args:
            problem: the problem, or its `tilings.TilingSizes`. places: number of layers and directions.
        """
        clock, size = profile.clock_ghz * 1e3, itemsize(problem.dtype)
        groups = tile.chunks // tile.gathered * (1 + problem.cell.num_products + tile.projects) if columns else 0
        rounds = _rounds(problem.cell, tile)
        if tile.math == "fma":
            rate = _fma_share(tile, rounds) * profile.fma_per_clock
        else:
            rate = profile.mma_per_clock / MMA_TIMES[tile.math]
        multiply = max(tile.rows * columns * tile.sequences / rate, _mma_clocks(tile, columns))
        turn = (groups * L2_CLOCKS + multiply) / clock
        if tile.shared_chunks and tile.math != "fma":
            turn += tile.rows * columns * size / 128 / clock * tile.shared_chunks / tile.chunks
        turn += (TURN_CLOCKS + _sums(tile)) / clock  # a clock each
        turn += rounds * profile.exchange_us
        read, words = columns * size, _words_us(problem.cell, profile, places)
        exchange = profile.exchange_us if problem.cell.num_recurrent else 0.0
        return cls(tile, turn, read / (64 * clock), read / (profile.l2_gb_s * 1e3), exchange, words)

    def step_us(self, profile, blocks, slices, sequences):
        """Return the microseconds of a step in `blocks` blocks, which cut the batch into slices of `sequences`
        sequences."""
        turns = -(-sequences // self.tile.sequences)
        chain = turns * self.turn + sequences * max(self.own, blocks * self.together)
        if self.words:
            chain += sequences * blocks * blocks / slices * self.words
        return chain + max(self.exchange - (turns - 1) / turns * chain, 0.0)


def tiling_us(step_us, steps, layers, directions):
    """Return the microseconds by which a launch is compared with others, from its `StepChain.step_us`."""
    return TILING_LAUNCH_US + steps_in_all(steps, layers, directions) * step_us
