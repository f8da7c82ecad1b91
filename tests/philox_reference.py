"""Philox4x32-10 over NumPy arrays, written independently of numbarnn.cells.philox, from the paper's own C code.

Salmon, Moraes, Dror and Shaw 2011, doi:10.1145/2063384.2063405, Random123's philox.h.
"""

import numpy as np


def mulhilo32(a, b):
    """(high, low) words of the product of a constant and an array of words."""
    product = np.uint64(a) * b.astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def philox4x32(counter, key, rounds=10):
    """(..., 4) uint32 words of a counter (..., 4) and a key (2,) of words."""
    counter = np.asarray(counter, np.uint32)
    key = [int(word) for word in key]
    for _ in range(rounds):
        hi0, lo0 = mulhilo32(0xD2511F53, counter[..., 0])
        hi1, lo1 = mulhilo32(0xCD9E8D57, counter[..., 2])
        k0, k1 = np.uint32(key[0]), np.uint32(key[1])
        counter = np.stack([hi1 ^ counter[..., 1] ^ k0, lo1, hi0 ^ counter[..., 3] ^ k1, lo0], axis=-1)
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def random_words(n, seed, layer, call, first=0):
    """Words number first .. first + n - 1 (n a multiple of nothing) of a layer's stream in a training call."""
    index = first + np.arange(n, dtype=np.uint64)
    group = index // np.uint64(4)
    counter = np.empty((n, 4), np.uint32)
    counter[:, 0], counter[:, 1] = group.astype(np.uint32), (group >> np.uint64(32)).astype(np.uint32)
    counter[:, 2], counter[:, 3] = layer, call
    words = philox4x32(counter, (seed % 2**32, seed >> 32))
    return words[np.arange(n), (index % np.uint64(4)).astype(int)]


def dropout_mask(shape, p, seed, layer, call, dtype):
    """The mask: 1 / (1 - p) where the element's word is at least p 2^32, else 0."""
    words = random_words(int(np.prod(shape)), seed, layer, call).astype(np.float64)
    scale = np.dtype(dtype).type(1 / (1 - p) if p < 1 else 0)
    return np.where(words >= round(p * 2**32), scale, 0).astype(dtype).reshape(shape)
