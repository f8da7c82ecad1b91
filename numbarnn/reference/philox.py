"""The random numbers of layers in a training call, by Philox4x32-10 in NumPy.

The generator follows Random123's philox.h (Salmon, Moraes, Dror and Shaw 2011, doi:10.1145/2063384.2063405). A random
number is a function of (seed, stream, position, number of the training call), so that a mask can be computed again.
"""

import numpy as np

# Dropout between layers has the streams 0 to L - 2.
NOISE_STREAM, DROP_CONNECT_STREAM, STREAMS_PER_PLACE = 1 << 31, 1 << 30, 1 << 8


def mulhilo32(a, b):
    """Return the (high, low) words of the product of a constant and an array of words."""
    product = np.uint64(a) * b.astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def philox4x32(counter, key):
    """Return (..., 4) random uint32 words for a counter (..., 4) and a key (2,) of words."""
    counter = np.asarray(counter, np.uint32)
    key = [int(word) for word in key]
    for _ in range(10):
        hi0, lo0 = mulhilo32(0xD2511F53, counter[..., 0])
        hi1, lo1 = mulhilo32(0xCD9E8D57, counter[..., 2])
        k0, k1 = np.uint32(key[0]), np.uint32(key[1])
        counter = np.stack([hi1 ^ counter[..., 1] ^ k0, lo1, hi0 ^ counter[..., 3] ^ k1, lo0], axis=-1)
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def random_words(n, seed, layer, call):
    """Return the first n words of stream `layer` in training call number `call`."""
    index = np.arange(n, dtype=np.uint64)
    group = index // np.uint64(4)
    counter = np.empty((n, 4), np.uint32)
    counter[:, 0], counter[:, 1] = group.astype(np.uint32), (group >> np.uint64(32)).astype(np.uint32)
    counter[:, 2], counter[:, 3] = layer, call
    words = philox4x32(counter, (seed % 2**32, seed >> 32))
    return words[np.arange(n), (index % np.uint64(4)).astype(int)]


def dropout_masks(shapes, p, seed, call, dtype):
    """Return the dropout masks of these shapes, one per layer but the last, in training call number `call`."""
    return [dropout_mask(shape, p, seed, layer, call, dtype) for layer, shape in enumerate(shapes)]


def dropped_weights(gates, hidden, p, seed, place, call, dtype):
    """Return drop_connect's masks (gates * H, H) for the recurrent weights of place = layer D + direction."""
    stream = DROP_CONNECT_STREAM + STREAMS_PER_PLACE * place
    return np.concatenate([dropout_mask((hidden, hidden), p, seed, stream + g, call, dtype) for g in range(gates)])


def zoneout_kept(steps, batch, hidden, p, seed, place, call):
    """Return (T, B, H), 1.0 where zoneout takes the new state, 0.0 where it keeps the old; the cell has no other noise.

    Unit j of sequence b at time t gets word 0 of the counter (b H + j, t, stream, call)."""
    counter = np.empty((steps, batch * hidden, 4), np.uint32)
    counter[..., 0], counter[..., 1] = np.arange(batch * hidden), np.arange(steps)[:, None]
    counter[..., 2], counter[..., 3] = NOISE_STREAM + STREAMS_PER_PLACE * place, call
    words = philox4x32(counter, (seed % 2**32, seed >> 32))[..., 0].astype(np.float64)
    return (words >= round(p * 2**32)).astype(np.float64).reshape(steps, batch, hidden)


def dropout_mask(shape, p, seed, layer, call, dtype):
    """Return a mask, 1 / (1 - p) where the element's word is at least p 2^32, else 0."""
    words = random_words(int(np.prod(shape)), seed, layer, call).astype(np.float64)
    scale = np.dtype(dtype).type(1 / (1 - p) if p < 1 else 0)
    return np.where(words >= round(p * 2**32), scale, 0).astype(dtype).reshape(shape)
