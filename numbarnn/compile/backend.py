"""Whether kernels are compiled or run in Numba's simulator (`NUMBA_ENABLE_CUDASIM=1`)."""

from numbarnn.cuda.compiler import simulated

BACKEND = "python" if simulated() else "cuda"  # what device functions are made for, see `specialise`
TINY_LAUNCHES = simulated()  # there a thread is dear: few, but several blocks, so that their boundaries are crossed


def kernel(**options):
    """`numba.cuda.jit` with options that only its compiler knows, such as launch_bounds."""
    from numba import cuda  # half a second, which the CPU engine does without

    return cuda.jit if simulated() else cuda.jit(**options)
