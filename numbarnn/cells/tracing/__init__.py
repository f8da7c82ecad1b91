"""Make cells from equations: trace them, split them into products and pointwise stages, and derive their backward.

decorator        `cell`, which runs all of the following steps
values           traced values, on which equations run
matrices         p: parameters, and expressions of parameters; constants: `constant` and `eye`
trace            one run of the equations, which collects nodes and facts about parameters
errors, hints    error messages with the line at fault and a replacement; mistakes: warnings
graph            the graph of expressions, simplified
structure        gates of W x, gates of R h, further products, sums over units, per-unit parameters, biases, noise
parameters       names, places and sizes of the parameters
derive, saving   the backward, and what forward saves for it
source           the Python source of a cell's functions
tangent          a cell's tangent as another cell, for derivatives of higher order
show             `show`, which prints a cell
"""

from numbarnn.cells import functions  # noqa: F401 - fills in the functions that messages suggest
from numbarnn.cells.tracing.decorator import TracedCell, cell
from numbarnn.cells.tracing.errors import CellError
from numbarnn.cells.tracing.show import show
from numbarnn.cells.tracing.values import side, step

__all__ = ["CellError", "TracedCell", "cell", "show", "side", "step"]
