"""A step besides its matrix product: the cell, its stages and sums over units, and what its functions get."""
