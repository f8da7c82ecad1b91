"""List the products of a block at each step, and share them among its warps."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from numbarnn.common.precision import itemsize
from numbarnn.kernels.persistent.columns import GIVEN, INPUT, RECURRENT, STAGE
from numbarnn.kernels.persistent.tile import PIECE_BYTES


@dataclass(frozen=True)
class Source:
    """A matrix and its operand at each step.

    Attributes:
        kind: `RECURRENT`, `INPUT`, `GIVEN` or `STAGE` + p.
        direction: in backward, the direction of the layer above that read this layer's output; else 0.
        columns: number of columns that a block multiplies. width: all columns of the matrix.
        start: the first of those columns, for a block with the layer's first units.
        head: units of a head; for a block in head k, the columns begin k times `head` further on.
    """

    kind: int
    direction: int
    columns: int
    width: int
    start: int = 0
    head: int = 0

    def first_column(self, unit):
        """Return the first column that a block multiplies, from its first unit; for an array of units an array."""
        return self.start + (unit // self.head * self.head if self.head else 0)


class BlockSize(NamedTuple):
    """How many units and warps a block has, before its `Tile` is made; given: see `Tile.given`."""

    units: int
    warps: int
    given: bool = False


def sources(problem, first, layer, last, backward, tile):
    """Return what a block of `layer` multiplies at each step, in a launch of the layers [first, last).
    tile: a `Tile` or a `BlockSize`, of which only units, warps and given are read."""
    return sources_of(problem, first, layer, last, backward, BlockSize(tile.units, tile.warps, tile.given))


@lru_cache(maxsize=1024)  # each tiling of some layers asks for the same ones
def sources_of(problem, first, layer, last, backward, size):
    hidden, D, inputs, P = problem.hidden_sizes, problem.directions, [], problem.projection
    if not backward and (layer > first or size.given):
        columns = D * (P or hidden[layer - 1]) if layer else problem.input_size
        inputs = [Source(INPUT if layer > first else GIVEN, 0, columns, columns)]
    elif backward and layer + 1 < last:
        columns = problem.cell.num_gates * hidden[layer + 1]
        inputs = [Source(INPUT, direction, columns, columns) for direction in range(D)]
    of_head = [_sources_of_head(problem, hidden[layer], backward, size.units, *part) for part in _parts(problem.cell)]
    if not all(of_head) or sum(map(len, of_head)) + len(inputs) > size.warps:
        of_head = [_whole_source((hidden[layer], P or hidden[layer]), backward, *part) for part in _parts(problem.cell)]
    of_stages = [source for part in of_head for source in part if source.kind >= STAGE]
    if P:
        columns = P if backward else hidden[layer]
        of_stages.append(Source(projection_kind(problem.cell), 0, columns, columns))
    return [source for part in of_head for source in part if source.kind == RECURRENT] + inputs + of_stages


def projection_kind(cell):
    """Return the kind of the product with W_hr, which follows the cell's stages."""
    return STAGE + cell.num_products


def _parts(cell):
    """Return (kind, gates) of each product with rows of R: with h, then the stages' products."""
    stages = [len(cell.stages[stage].gates) for stage in cell.product_stages]
    return [(RECURRENT, cell.num_recurrent)] * (cell.num_recurrent > 0) + [*enumerate(stages, STAGE)]


def _whole_source(sizes, backward, kind, gates):
    """Return the single source of one of R's products: all columns, backward of each gate.

    Args:
        sizes: of the layer, (H, width of h).
    """
    hidden, width = sizes
    columns = gates * hidden if backward else width if kind == RECURRENT else hidden
    return [Source(kind, 0, columns, columns)]


def _sources_of_head(problem, hidden, backward, units, kind, gates):
    """Return the sources of one of R's products for a cell with heads (`Cell.heads`): one head's columns.
    Backward they are that head's columns of each gate. The list is empty unless all units of a block belong to one
    head. All other columns are zero. A dense product would multiply them and wait for them; it would also turn another
    head's infinity into NaN here, as 0 * inf is NaN."""
    head = hidden // problem.cell.heads
    if head == hidden or problem.projection or head % units or head * itemsize(problem.dtype) % PIECE_BYTES:
        return []
    width = gates * hidden if backward else hidden
    return [Source(kind, 0, head, width, start, head) for start in range(0, width, hidden)]


def share(sources, tile):
    """Share a block's warps among its sources: per warp (source, first column, number of columns), or None."""
    shares = []
    for source in sources:
        size = tile.chunks * tile.chunk_elements
        shares += [(source, first, min(size, source.columns - first)) for first in range(0, source.columns, size)]
    return shares + [None] * (tile.warps - len(shares))


def chunks_per_warp(all_sources, warps, chunk_elements):
    """Return the fewest chunks per warp with which a block's warps can share all of its products; None if too few."""
    if max(map(len, all_sources)) > warps:
        return None
    needed = [[ceil(source.columns / chunk_elements) for source in each] for each in all_sources]
    chunks = 1
    while any(sum(ceil(number / chunks) for number in each) > warps for each in needed):
        chunks += 1
    return chunks
