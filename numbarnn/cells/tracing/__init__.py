"""Cells made of equations: traced, split into products and pointwise stages, and differentiated.

values           what equations are run on
trace            one run of them: nodes, and what is noted about parameters
errors, hints    what is said when they cannot be traced, and what to write instead; mistakes: what would run unnoticed
matrices         p: parameters, and expressions of them, which are vectors or matrices; constants
graph            expressions as a graph, simplified
structure        gates of W x, gates of R h, further products, sums over units, per-unit parameters, biases, noise
parameters       their names, places and sizes
derive, saving   the backward: one sweep over the graph; what forward saves for it
source           the source of a cell's functions
decorator        `cell`, which does all that
tangent          a cell's tangent as another cell, for derivatives of higher order
show             `show`, which prints what became of a cell
"""

from numbarnn.cells import functions  # noqa: F401 - whose names are what messages tell to write
from numbarnn.cells.tracing.decorator import TracedCell, cell
from numbarnn.cells.tracing.errors import CellError
from numbarnn.cells.tracing.show import show
from numbarnn.cells.tracing.values import side, step

__all__ = ["CellError", "TracedCell", "cell", "show", "side", "step"]
