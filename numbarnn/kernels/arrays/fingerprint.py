"""Whether arrays are what they were: fingerprints noted on the device and compared there; the host does not wait."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.compile import storage
from numbarnn.compile.backend import BACKEND, TINY_LAUNCHES
from numbarnn.compile.specialise import jit
from numbarnn.cuda.launch import Kernel, LaunchConfig
from numbarnn.kernels.arrays.samples import BLOCKS, LINE, term
from numbarnn.kernels.error_flag import CHANGED, code_of, make_report

THREADS = 4 if TINY_LAUNCHES else 256  # of a block; a power of two


@cache
def make_fingerprint(compares):
    """The kernel that notes fingerprints, or the one that compares them with those noted."""
    own_term, report = jit(term, BACKEND), make_report()
    changed = code_of(CHANGED)

    @cuda.jit
    def fingerprint_kernel(seen, arrays, places, error_flag):
        """seen[a, b] = the fingerprint of the words of array a that block b reads; or compares it with what is there.

        Writes   seen (A, >= blocks) uint64; comparing, error_flag (1,) instead: CHANGED, with the a of one that has
        Reads    arrays, a tuple of A of words (n,), uint32 or uint16; places, a tuple of A of (m,) int64, the first
                 words of lines; comparing seen
        Launch   (blocks, A) of THREADS, x: grid-stride over the words of all lines; the same grid for both kernels
        """
        partial = cuda.shared.array(THREADS, np.uint64)
        words, lines = arrays[cuda.blockIdx.y], places[cuda.blockIdx.y]
        total = np.uint64(0)
        for i in range(cuda.grid(1), lines.size * LINE, cuda.gridsize(1)):
            position = lines[i // LINE] + i % LINE
            if position < words.size:
                total ^= own_term(words[position], position)
        thread = cuda.threadIdx.x
        partial[thread] = total
        cuda.syncthreads()
        width = THREADS // 2
        while width > 0:
            if thread < width:
                partial[thread] ^= partial[thread + width]
            cuda.syncthreads()
            width //= 2
        if thread == 0:
            if not compares:
                seen[cuda.blockIdx.y, cuda.blockIdx.x] = partial[0]
            elif seen[cuda.blockIdx.y, cuda.blockIdx.x] != partial[0]:
                report(error_flag, changed + cuda.blockIdx.y)

    return Kernel(fingerprint_kernel, "compare_fingerprints" if compares else "note_fingerprints")


def note(seen, arrays, places, error_flag):
    """Note the fingerprints of one or two contiguous arrays in `seen` (MOST_ARRAYS, BLOCKS) uint64.

    Args:
        places: of each of them, what `samples.places` returned, on the device.
        error_flag: (1,) int64, not written.
    """
    _launch(make_fingerprint(False), seen, arrays, places, error_flag)


def compare(seen, arrays, places, error_flag):
    """Report CHANGED in `error_flag` if an array is not what it was when `note` had the same arguments."""
    _launch(make_fingerprint(True), seen, arrays, places, error_flag)


def _launch(kernel, seen, arrays, places, error_flag):
    words = max(lines.size for lines in places) * LINE
    config = LaunchConfig(grid=(min(BLOCKS, -(-words // THREADS)), len(arrays)), block=THREADS)
    kernel.bind(config, seen, tuple(map(_words, arrays)), tuple(places), error_flag)()


def _words(array):
    """The array's bits, flat: a view."""
    flat = storage.stored(array.reshape(-1))
    return flat if flat.dtype.itemsize == 2 else flat.view(np.uint32)
