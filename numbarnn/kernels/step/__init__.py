"""A step without its matrix product: the cell, its stages and sums over units, and their arguments."""
