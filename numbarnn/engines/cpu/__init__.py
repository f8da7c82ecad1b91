"""The CPU engine: cells compiled for this CPU around products of its own and OpenBLAS's, on all cores."""
