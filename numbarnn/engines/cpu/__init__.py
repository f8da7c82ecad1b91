"""The CPU engine: cells compiled by Numba around OpenBLAS products, on all cores."""
