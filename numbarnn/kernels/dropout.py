"""Dropout between layers. The mask is a function of (seed, layer, call, position), so backward computes it again."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.cells import specialise
from numbarnn.cells.philox import dropout_words, philox
from numbarnn.kernels.launch import Kernel, LaunchConfig
from numbarnn.kernels.target import TARGET, TINY_LAUNCHES

THREADS_PER_BLOCK = 256
MAX_BLOCKS = 4096


@cache
def make_dropout(dtype):
    """The kernel for one dtype."""
    random_words = specialise(philox, dtype, TARGET)
    zero = np.dtype(dtype).type(0)

    @cuda.jit
    def dropout_kernel(out, x, scale, threshold, key_0, key_1, stream_0, stream_1):
        """out = x * mask; an element is kept, times `scale`, where its random word is at least `threshold`.

        Writes   out (n,)
        Reads    x (n,); scale = 1 / (1 - p), of x's dtype; threshold = p 2^32, key and stream words: uint64.
                 Words 4 k to 4 k + 3 are Philox of counter (k mod 2^32, k div 2^32, stream_0, stream_1)
        Launch   1-D, grid-stride over groups of four elements; any grid is correct
        Aliases  out may be x
        """
        n = x.shape[0]
        for group in range(cuda.grid(1), (n + 3) // 4, cuda.gridsize(1)):
            low, high = np.uint64(group) & np.uint64(0xFFFFFFFF), np.uint64(group) >> np.uint64(32)
            words = random_words(low, high, stream_0, stream_1, key_0, key_1)
            for k in range(4):
                i = group * 4 + k
                if i < n:
                    out[i] = x[i] * scale if words[k] >= threshold else zero

    return Kernel(dropout_kernel, "dropout")


def dropout(out, x, p, seed, layer, call):
    """out = dropout of x, contiguous arrays of one shape; see `numbarnn.cells.philox.dropout_words`."""
    n = x.size
    blocks = 2 if TINY_LAUNCHES else max(1, min(MAX_BLOCKS, -(-n // (4 * THREADS_PER_BLOCK))))
    config = LaunchConfig(grid=blocks, block=4 if TINY_LAUNCHES else THREADS_PER_BLOCK)
    scale, *words = dropout_words(p, seed, layer, call)
    make_dropout(x.dtype.name).bind(config, out.reshape(n), x.reshape(n), x.dtype.type(scale), *words)()
