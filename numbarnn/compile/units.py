"""A cell's tuples in memory: value k of unit j stands at index k * H + j of a row.

Tuples need a length that is known when compiling, so the functions here are written, as text, for so many values:

    def load(row, j, H):
        v0 = row[j]
        j += H
        v1 = row[j]
        return (v0, v1)

A function that called itself for the rest would be compiled once for each value. Indices carry no literals: an unsigned
j and H stay unsigned, which lets LLVM see that they are not negative, and vectorise. Where numbers are stored otherwise
than they are computed (float16), a device function `widen` is applied to each that is loaded, and `narrow` to each that
is stored; None leaves them as they are.
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


def _write(head, lines, backend, **names):
    """The device function of this head and these lines, which refer to `names`."""
    namespace = {"__name__": __name__, **names}
    exec("\n    ".join([f"def {head}:", *lines]), namespace)
    return jit(namespace[head.partition("(")[0]], backend)


def _write_load(head, values, backend, **names):
    """The device function of this head that returns values, each the text of an expression that reads at j."""
    lines = [f"v{k} = {value}" for k, value in enumerate(values)]
    names_of_all = _tuple([f"v{k}" for k in range(len(values))])
    return _write(head, [*_moving_on(lines), f"return {names_of_all}"], backend, **names)


def _moving_on(lines):
    """The lines, with j moved on to the unit's next value between two of them."""
    return [line for one in lines for line in ("j += H", one)][1:]


def _apply(function, name, value):
    """The text of a function's value; the function may be None."""
    return f"{name}({value})" if function else value


def _tuple(values):
    return f"({', '.join(values)}{',' if len(values) == 1 else ''})"


@cache
def loader(count, backend, widen=None):
    """A device function load(row, j, H) -> (row[j], row[H + j], ...), `count` values of unit j."""
    return _write_load("load(row, j, H)", [_apply(widen, "widen", "row[j]")] * count, backend, widen=widen)


@cache
def biased_loader(count, backend, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `loader`, each value with its bias added."""
    return reset_loader(0, count, backend, widen, widen_bias)


@cache
def reset_loader(recurrent, count, backend, widen=None, widen_bias=None):
    """A device function load(row, bias, j, H): as `biased_loader`, but of the first `recurrent` values the bias
    alone."""
    bias = _apply(widen_bias, "widen_bias", "bias[j]")
    values = [bias] * recurrent + [f"{_apply(widen, 'widen', 'row[j]')} + {bias}"] * (count - recurrent)
    return _write_load("load(row, bias, j, H)", values, backend, widen=widen, widen_bias=widen_bias)


@cache
def storer(count, backend, narrow=None):
    """A device function store(row, j, H, values): row[k H + j] = values[k] for `count` values of unit j."""
    lines = [f"row[j] = {_apply(narrow, 'narrow', f'values[{k}]')}" for k in range(count)]
    return _write("store(row, j, H, values)", _moving_on(lines) or ["pass"], backend, narrow=narrow)


@cache
def adder(count, backend):
    """A device function add(a, b): the sums of two tuples' values."""
    return _write("add(a, b)", [f"return {_tuple([f'a[{k}] + b[{k}]' for k in range(count)])}"], backend)


@cache
def larger(count, backend):
    """A device function larger(a, b): of two tuples' values the larger ones; NaN if either is."""
    values = [f"a[{k}] if a[{k}] > b[{k}] or a[{k}] != a[{k}] else b[{k}]" for k in range(count)]
    return _write("larger(a, b)", [f"return {_tuple(values)}"], backend)


@cache
def zeros(count, backend, dtype, value=0):
    """A device function () -> a tuple of `count` zeros, or another value, of a dtype (a name)."""
    return _write("zeros()", [f"return {_tuple(['zero'] * count)}"], backend, zero=np.dtype(dtype).type(value))


# ------------------------------------------------------------------------------------------------------------- noise
NO_TIME = np.uint64(0xFFFFFFFF)  # in place of a time for numbers that are one for all steps


@cache
def noise_loader(noise, backend, dtype):
    """A device function draw(words, position, t) -> the random numbers of a unit at time t, a `Noise` each, in
    training.

    Args of draw:
        words: a row of what `numbarnn.common.philox.noise_words` returns.
        position: b H + j of unit j of sequence b. t: number of the pass's time; both uint64.
    """
    return _noise_from(0, 0, noise, backend, dtype)


def _noise_from(each_step, others, noise, backend, dtype):
    """As `noise_loader`, where so many numbers of either kind come before."""
    if not noise:

        def nothing(words, position, t):
            return ()

        return jit(nothing, backend)
    first, number = noise[0], each_step if noise[0].each_step else others
    rest = _noise_from(each_step + first.each_step, others + (not first.each_step), noise[1:], backend, dtype)
    random_words = specialise(philox, dtype, backend)
    threshold, group, lane = np.uint64(round(first.rate * 2**32)), np.uint64(number // 4), number % 4
    kept, zero = np.dtype(dtype).type(first.kept), np.dtype(dtype).type(0)
    always = not first.each_step

    def draw(words, position, t):
        when = NO_TIME if always else (words[4] - t if words[5] else words[4] + t)
        drawn = random_words(position, when, words[2] + group, words[3], words[0], words[1])
        return (kept if drawn[lane] >= threshold else zero, *rest(words, position, t))

    return jit(draw, backend)


@cache
def mean_noise(noise, backend, dtype):
    """A device function () -> the numbers in inference."""
    if not noise:

        def nothing():
            return ()

        return jit(nothing, backend)
    mean, rest = np.dtype(dtype).type(noise[0].mean), mean_noise(noise[1:], backend, dtype)

    def numbers():
        return (mean, *rest())

    return jit(numbers, backend)
