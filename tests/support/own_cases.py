"""Problems with cells of one's own that persistent kernels run: of general_cells.py, sum_cells.py and the library.

Arrays, calls and what is expected are general_problem.py's.
"""

from dataclasses import dataclass, replace
from functools import cache

from general_cells import GENERAL, UNEVEN
from general_problem import GeneralCase
from numbarnn.cells import library
from sum_cells import NOISE_CELLS

WRITTEN = GENERAL | UNEVEN | NOISE_CELLS


@dataclass(frozen=True)
class OwnCase(GeneralCase):
    """One problem; the cell is one of `WRITTEN`, or of the library."""

    @property
    def definition(self):
        return WRITTEN[self.cell] if self.cell in WRITTEN else _with_any_bias(getattr(library, self.cell))


@cache
def _with_any_bias(cell):
    """A cell of the library with the biases that the layer's user wants."""
    return replace(cell, bias=None)
