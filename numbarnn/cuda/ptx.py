"""PTX instructions that Numba has no name for, as functions that kernels call; in the simulator their twins in Python.

    words = ptx.load_words(h, index)                # 16 bytes at h[index], seen as other blocks wrote them
    ptx.store(h, index, value)                      # visible to all blocks at once
    words = ptx.load_weight_words(weights, index)   # 16 bytes that nobody writes during the kernel
    sums = ptx.mma_float16(a, b, sums)              # the tensor cores, all lanes of a warp together

Arrays are one-dimensional and contiguous, in the form of `numbarnn.compile.storage.stored`. A word is a uint32.
"Relaxed" loads and stores go to the L2 cache, where all blocks meet, and are indivisible per element; they order
nothing else. Instructions are from NVIDIA's "PTX ISA", sections on ld, st, prefetch, mma and cvt.
"""

from importlib import import_module

from numbarnn.cuda.backend import backend


def __getattr__(name):
    twin = "simulated" if backend() == "python" else "compiled"
    return getattr(import_module(f"numbarnn.cuda.ptx_{twin}"), name)
