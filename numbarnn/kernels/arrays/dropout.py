"""Dropout between layers. Backward computes the mask again from a few words and the position."""

import numpy as np

from numbarnn.common.philox import philox
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.backend import backend, is_tiny, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel, LaunchConfig

THREADS_PER_BLOCK = 256
MAX_BLOCKS = 4096


@per_backend
def make_dropout(dtype):
    """Make the kernel for one dtype."""
    random_words = specialise(philox, compute_dtype(dtype), backend())
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    zero = np.dtype(compute_dtype(dtype)).type(0)

    @cuda.jit
    def dropout_kernel(out, x, mask, scale, position):
        """Apply dropout: out = x * mask. An element whose random word is at least `threshold` is kept, times `scale`.

        Writes   out (n,): elements from number `first` + position of the whole array
        Reads    x (n,); mask (6,) uint64: threshold = p 2^32, two key and two stream words, first; scale = 1 / (1 - p);
                 position: uint64. Random words 4 k to 4 k + 3 of the whole are Philox of (k mod 2^32, k div 2^32,
                 stream words)
        Launch   1-D, grid-stride over groups of four elements of the whole; any grid is correct
        Aliases  out may be x
        """
        n = x.shape[0]
        threshold, key_0, key_1, stream_0, stream_1 = mask[0], mask[1], mask[2], mask[3], mask[4]
        position += mask[5]
        first_group, skipped = np.int64(position >> np.uint64(2)), np.int64(position & np.uint64(3))
        for group in range(cuda.grid(1), (skipped + n + 3) // 4, cuda.gridsize(1)):
            counter = np.uint64(first_group + group)
            low, high = counter & np.uint64(0xFFFFFFFF), counter >> np.uint64(32)
            words = random_words(low, high, stream_0, stream_1, key_0, key_1)
            for k in range(4):
                i = group * 4 + k - skipped
                if 0 <= i and i < n:
                    out[i] = narrow(widen(x[i]) * scale if words[k] >= threshold else zero)

    return Kernel(dropout_kernel, "dropout")


def dropout(out, x, mask, scale, position=0):
    """Apply dropout to x, contiguous arrays of one shape.

    Args:
        mask, scale: a row of the array that `numbarnn.common.philox.dropout_masks` returns, and its scale.
        position: index of x's first element in the flat output of the layer, if x is a part of it.
    """
    n, dtype = x.size, x.dtype.name
    blocks = 2 if is_tiny() else max(1, min(MAX_BLOCKS, -(-n // (4 * THREADS_PER_BLOCK))))
    config = LaunchConfig(grid=blocks, block=4 if is_tiny() else THREADS_PER_BLOCK)
    flat_out, flat_x = (storage.stored(array.reshape(n)) for array in (out, x))
    factor = np.dtype(compute_dtype(dtype)).type(scale)
    make_dropout(dtype).bind(config, flat_out, flat_x, mask, factor, np.uint64(position))()
