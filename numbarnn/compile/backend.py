"""Whether kernels are compiled or run in Numba's simulator (`NUMBA_ENABLE_CUDASIM=1`)."""

from numbarnn.cuda.compiler import simulated

BACKEND = "python" if simulated() else "cuda"  # what device functions are made for, see `specialise`
TINY_LAUNCHES = simulated()  # the simulator's threads are slow; several small blocks still cross block boundaries


def kernel(**options):
    """Return `numba.cuda.jit` with options that only its compiler knows, such as launch_bounds."""
    from numba import cuda  # takes half a second, and the CPU engine does not need it

    return cuda.jit if simulated() else cuda.jit(**options)
