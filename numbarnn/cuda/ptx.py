"""PTX instructions that Numba does not name, as functions for kernels. The simulator runs Python versions of them.

    words = ptx.load_words(h, index)                # 16 bytes at h[index]; sees stores of other blocks
    ptx.store(h, index, value)                      # becomes visible to all blocks
    words = ptx.load_weight_words(weights, index)   # 16 bytes that no block writes during the kernel
    sums = ptx.mma_float16(a, b, sums)              # tensor cores; all lanes of a warp call it together

Arrays are one-dimensional and contiguous; float16 and bfloat16 are stored as uint16 (`numbarnn.compile.storage`).
A word is a uint32. Relaxed loads and stores go to the L2 cache, which all blocks share. They are atomic per element
and order no other memory access. See NVIDIA's "PTX ISA", sections on ld, st, prefetch, mma and cvt.
"""

from importlib import import_module

from numbarnn.cuda.backend import backend


def __getattr__(name):
    version = "simulated" if backend() == "python" else "compiled"
    return getattr(import_module(f"numbarnn.cuda.ptx_{version}"), name)
