"""A step besides its matrix product: the cell, its stages and sums over units, and what it is given."""
