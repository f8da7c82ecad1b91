"""A cell's tuples in memory: value k of unit j stands at index k * H + j of a row.

Tuples need a length that is known when compiling, so the function for n values is built on the one for n - 1. Indices
carry no literals: an unsigned j and H stay unsigned, which lets LLVM see that they are not negative, and vectorise.
Where numbers are stored otherwise than they are computed (float16), a device function `widen` is applied to each that
is loaded, and `narrow` to each that is stored; None leaves them as they are.
"""

from functools import cache

import numpy as np

from numbarnn.common.philox import philox
from numbarnn.compile.specialise import jit, specialise


@cache
def unchanged(backend):
    """The device function value -> value."""
    return jit(lambda value: value, backend)


@cache
def joiner(backend):
    """The device function (first, rest) -> (first, *rest): Numba cannot compile several such tuples in one function."""
    return jit(lambda first, rest: (first, *rest), backend)


@cache
def loader(count, backend, widen=None):
    """A device function load(row, j, H) -> (row[j], row[H + j], ...), `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H: (), backend)
    load_rest, convert = loader(count - 1, backend, widen), widen or unchanged(backend)

    def load(row, j, H):
        return (convert(row[j]), *load_rest(row, j + H, H))

    return jit(load, backend)


@cache
def biased_loader(count, backend, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `loader`, each value with its bias added."""
    if count == 0:
        return jit(lambda row, bias, j, H: (), backend)
    load_rest = biased_loader(count - 1, backend, widen, widen_bias)
    convert, convert_bias = widen or unchanged(backend), widen_bias or unchanged(backend)

    def load(row, bias, j, H):
        return (convert(row[j]) + convert_bias(bias[j]), *load_rest(row, bias, j + H, H))

    return jit(load, backend)


@cache
def reset_loader(recurrent, count, backend, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `biased_loader`, but of the first `recurrent` values the bias
    alone."""
    if count == 0:
        return jit(lambda row, bias, j, H: (), backend)
    load_rest = reset_loader(max(0, recurrent - 1), count - 1, backend, widen, widen_bias)
    convert, convert_bias = widen or unchanged(backend), widen_bias or unchanged(backend)
    if recurrent:
        return jit(lambda row, bias, j, H: (convert_bias(bias[j]), *load_rest(row, bias, j + H, H)), backend)

    def load(row, bias, j, H):
        return (convert(row[j]) + convert_bias(bias[j]), *load_rest(row, bias, j + H, H))

    return jit(load, backend)


@cache
def storer(count, backend, narrow=None):
    """A device function store(row, j, H, values): row[k H + j] = values[k] for `count` values of unit j."""
    if count == 0:
        return jit(lambda row, j, H, values: None, backend)
    store_rest, convert = storer(count - 1, backend, narrow), narrow or unchanged(backend)

    def store(row, j, H, values):
        row[j] = convert(values[0])
        store_rest(row, j + H, H, values[1:])

    return jit(store, backend)


@cache
def adder(count, backend):
    """A device function add(a, b): the sums of two tuples' values."""
    if count == 0:
        return jit(lambda a, b: (), backend)
    add_rest = adder(count - 1, backend)
    return jit(lambda a, b: (a[0] + b[0], *add_rest(a[1:], b[1:])), backend)


@cache
def zeros(count, backend, dtype):
    """A device function () -> a tuple of `count` zeros of a dtype (a name)."""
    zero = np.dtype(dtype).type(0)
    if count == 0:
        return jit(lambda: (), backend)
    rest = zeros(count - 1, backend, dtype)
    return jit(lambda: (zero, *rest()), backend)


# ------------------------------------------------------------------------------------------------------------- noise
NO_TIME = np.uint64(0xFFFFFFFF)  # in place of a time for numbers that are one for all steps


@cache
def noise_loader(noise, backend, dtype):
    """A device function draw(words, position, t) -> the random numbers of a unit at time t, a `Noise` each, in
    training.

    Args of draw:
        words: a row of what `numbarnn.common.philox.noise_words` returns.
        position: b H + j of unit j of sequence b. t: the time, 0 to T - 1; both uint64.
    """
    return _noise_from(0, 0, noise, backend, dtype)


def _noise_from(each_step, others, noise, backend, dtype):
    """As `noise_loader`, where so many numbers of either kind come before."""
    if not noise:
        return jit(lambda words, position, t: (), backend)
    first, number = noise[0], each_step if noise[0].each_step else others
    rest = _noise_from(each_step + first.each_step, others + (not first.each_step), noise[1:], backend, dtype)
    random_words = specialise(philox, dtype, backend)
    threshold, group, lane = np.uint64(round(first.rate * 2**32)), np.uint64(number // 4), number % 4
    kept, zero = np.dtype(dtype).type(first.kept), np.dtype(dtype).type(0)
    always = not first.each_step

    def draw(words, position, t):
        when = NO_TIME if always else t
        drawn = random_words(position, when, words[2] + group, words[3], words[0], words[1])
        return (kept if drawn[lane] >= threshold else zero, *rest(words, position, t))

    return jit(draw, backend)


@cache
def mean_noise(noise, backend, dtype):
    """A device function () -> the numbers in inference."""
    if not noise:
        return jit(lambda: (), backend)
    mean, rest = np.dtype(dtype).type(noise[0].mean), mean_noise(noise[1:], backend, dtype)
    return jit(lambda: (mean, *rest()), backend)
