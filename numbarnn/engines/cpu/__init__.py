"""The CPU engine: cells compiled for this CPU, with its own matrix products and OpenBLAS, on all cores."""
