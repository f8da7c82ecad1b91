"""Device functions for a cell's tuples in memory, where value k of unit j is at index k * H + j of a row.

The compiler needs to know the length of tuples, so these functions are generated as text for a number of values:

    def load(row, j, H):
        v0 = row[j]
        j += H
        v1 = row[j]
        return (v0, v1)

(A recursive function would be compiled once for each value.) Indices have no literals, so that an unsigned j and H
stay unsigned. LLVM then knows that they are not negative, and vectorizes. The device functions `widen` and `narrow`
convert loaded and stored float16 numbers; None leaves numbers unchanged.
"""

from functools import cache

import numpy as np

from numbarnn.cells.layout import as_text
from numbarnn.common.code_cache import run_source
from numbarnn.common.philox import UNIFORM_SHARE, philox
from numbarnn.compile.specialise import jit, specialise
from numbarnn.cuda.backend import backend, per_backend


@per_backend
def unchanged():
    """Make a device function value -> value."""
    return jit(lambda value: value, backend())


@per_backend
def joiner():
    """Make a device function (first, rest) -> (first, *rest), of which Numba cannot compile several in a function."""
    return jit(lambda first, rest: (first, *rest), backend())


def _write(head, lines, backend_name=None, **names):
    """Make a device function from a head and lines of text, which refer to `names`."""
    namespace = {"__name__": __name__, **names}
    source = "\n    ".join([f"def {head}:", *lines])
    run_source(source, f"<numbarnn {source}>", namespace)
    return jit(namespace[head.partition("(")[0]], backend_name or backend())


def _write_load(head, values, **names):
    """Make a device function with this head that returns values, texts of expressions that read at j."""
    lines = [f"v{k} = {value}" for k, value in enumerate(values)]
    names_of_all = as_text([f"v{k}" for k in range(len(values))])
    return _write(head, [*_moving_on(lines), f"return {names_of_all}"], **names)


def _moving_on(lines):
    """Return the lines with `j += H` between them, which moves j to the unit's next value."""
    return [line for one in lines for line in ("j += H", one)][1:]


def _apply(function, name, value):
    """Return the text of a call of a function that may be None."""
    return f"{name}({value})" if function else value


@per_backend
def loader(count, widen=None):
    """Make a device function load(row, j, H) -> (row[j], row[H + j], ...), `count` values of unit j."""
    return _write_load("load(row, j, H)", [_apply(widen, "widen", "row[j]")] * count, widen=widen)


@per_backend
def biased_loader(count, widen=None, widen_bias=None):
    """Make a device function load(row, bias, j, H) -> `count` values of unit j, each plus its bias."""
    return reset_loader(0, count, widen, widen_bias)


@per_backend
def reset_loader(recurrent, count, widen=None, widen_bias=None):
    """Make a device function load(row, bias, j, H), whose first `recurrent` values are the bias, the others value +
    bias."""
    bias = _apply(widen_bias, "widen_bias", "bias[j]")
    values = [bias] * recurrent + [f"{_apply(widen, 'widen', 'row[j]')} + {bias}"] * (count - recurrent)
    return _write_load("load(row, bias, j, H)", values, widen=widen, widen_bias=widen_bias)


@per_backend
def storer(count, narrow=None):
    """Make a device function store(row, j, H, values), which sets row[k H + j] = values[k] for `count` values."""
    lines = [f"row[j] = {_apply(narrow, 'narrow', f'values[{k}]')}" for k in range(count)]
    return _write("store(row, j, H, values)", _moving_on(lines) or ["pass"], narrow=narrow)


@per_backend
def adder(count):
    """Make a device function add(a, b) -> the sums of two tuples' values."""
    return _write("add(a, b)", [f"return {as_text([f'a[{k}] + b[{k}]' for k in range(count)])}"])


@per_backend
def larger(count):
    """Make a device function larger(a, b) -> the larger of two tuples' values, NaN if either is."""
    values = [f"a[{k}] if a[{k}] > b[{k}] or a[{k}] != a[{k}] else b[{k}]" for k in range(count)]
    return _write("larger(a, b)", [f"return {as_text(values)}"])


@per_backend
def zeros(count, dtype, value=0):
    """Make a device function () -> `count` zeros, or copies of another value, of a dtype (a name)."""
    return _write("zeros()", [f"return {as_text(['zero'] * count)}"], zero=np.dtype(dtype).type(value))


# ------------------------------------------------------------------------------------------------------------- noise
NO_TIME = np.uint64(0xFFFFFFFF)  # t of numbers that are drawn once for all steps


@cache
def noise_loader(forms, backend_name, dtype):
    """Make a device function draw(chances, words, position, t) -> the random numbers of a unit at time t, in training.

    Args:
        forms: the `numbarnn.cells.definition.NoiseForm` of each number.

    Args of draw:
        chances: the `numbarnn.cells.definition.Chances`, unused for a cell that draws nothing.
        words: a row of `numbarnn.common.philox.noise_words`.
        position: b H + j for unit j of sequence b. t: time in the pass. Both are uint64.
    """
    number_of = np.dtype(dtype).type
    names = {"zero": number_of(0), "one": number_of(1), "NO_TIME": NO_TIME, "EIGHT": np.uint64(8), "number": number_of}
    names |= {"random_words": specialise(philox, dtype, backend_name)}
    names |= {"SHARE": number_of(UNIFORM_SHARE), "HALF_SHARE": number_of(UNIFORM_SHARE / 2)}
    lines = []
    for k, form in enumerate(forms):
        number = sum(other.each_step == form.each_step for other in forms[:k])  # index among the numbers of its kind
        names[f"group{k}"] = np.uint64(number // 4)
        time = "words[4] - t if words[5] else words[4] + t" if form.each_step else "NO_TIME"
        word = f"drawn{k}[{number % 4}]"
        kept = "one" if form.kept_is_one else f"chances.values[{k}]"
        lines += [
            f"drawn{k} = random_words(position, {time}, words[2] + group{k}, words[3], words[0], words[1])",
            f"v{k} = number({word} >> EIGHT) * SHARE + HALF_SHARE"
            if form.uniform
            else f"v{k} = {kept} if {word} >= chances.thresholds[{k}] else zero",
        ]
    result = as_text([f"v{k}" for k in range(len(forms))])
    return _write("draw(chances, words, position, t)", [*lines, f"return {result}"], backend_name, **names)


@cache
def mean_loader(forms, backend_name, dtype):
    """Make a device function mean(chances) -> the values of a unit's random numbers in inference. forms: see
    `noise_loader`."""
    values = ["one" if form.mean_is_one else f"chances.values[{k}]" for k, form in enumerate(forms)]
    return _write("mean(chances)", [f"return {as_text(values)}"], backend_name, one=np.dtype(dtype).type(1))
