"""`numbarnn.compile.plain`: compiled, plain functions compute what they do in Python."""

import ctypes
import math
from typing import NamedTuple

import numpy as np
import pytest

from numbarnn.compile import types
from numbarnn.compile.plain import plain
from numbarnn.compile.translate import Plain, of_types
from numbarnn.engines.cpu.records import by_address, from_python
from numbarnn.engines.cpu.vectors import bytes_of, numbers_at, own_numbers

_INT = np.int64(0)
_LIMIT = 7
_TWICE = of_types(lambda zero: np.float64(2) if zero == types.float64 else np.float32(2))


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    last: int


@plain
def _divided(a, b):
    return a // b, a % b


@plain
def _bounds(a, b):
    first, last = (a, b) if a < b else _swapped(a, b)
    return Pair(first, last)


@plain
def _swapped(a, b):
    return b, a


@plain
def _first_multiple(a, b):
    for k in range(100):
        if k == 0:
            continue
        if k * abs(b) >= abs(a):
            return k
    return -1


def arithmetic(out, a, b):
    numbers = numbers_at(_INT, out)
    numbers[0], numbers[1] = _divided(a, b)
    numbers[2] = min(a, b, _LIMIT) - max(a, 3) * -2
    numbers[3] = int(a < b <= _LIMIT) + (a == b or (b > 0 and not a > 1))
    pair = _bounds(a, b)
    numbers[4] = pair.first - 2 * pair.last + _LIMIT**2
    numbers[5] = _first_multiple(a, b)
    numbers[6] = (a & 0xFF) | (b << 3) ^ 5
    total, k = 0, a
    while True:
        k -= 3
        if k < -20:
            break
        total += k if k % 2 else -k
    numbers[7] = total
    for i in range(5, -1, -2):
        numbers[8] += i * a
    for i in range(2, 11, abs(b)):
        numbers[9] += i
    other = own_numbers(_INT, 2)
    other[0] = other[1] = a
    other[1] += b
    numbers[10] = other[0] - other[1] + (np.uint64(a) >> np.uint64(60) > np.uint64(0))


class _Memory(dict):
    """What `numbers_at` and `own_numbers` give in Python."""

    def __missing__(self, key):
        return 0


def in_python(function, *arguments):
    """The function's numbers, computed by Python."""
    memory, before = _Memory(), dict(function.__globals__)
    with np.errstate(over="ignore"):
        try:
            function.__globals__.update(
                numbers_at=lambda zero, address: memory,
                own_numbers=lambda zero, count: _Memory(),
                **{name: value.py_func for name, value in before.items() if isinstance(value, Plain)},
            )
            function.__globals__["np"] = _Numpy
            function(0, *arguments)
        finally:
            function.__globals__.update(before)
    return [memory[k] for k in range(11)]


class _Numpy:
    """Of NumPy what `arithmetic` uses, of Python's numbers."""

    uint64 = staticmethod(lambda value: int(value) % 2**64)


@pytest.mark.parametrize("a", [-13, -4, 0, 1, 6, 12])
@pytest.mark.parametrize("b", [-5, -1, 2, 7])
def test_integers_are_those_of_python(a, b):
    out = np.zeros(11, np.int64)
    from_python(arithmetic)(out.ctypes.data, a, b)
    assert out.tolist() == in_python(arithmetic, a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_have_the_dtype_of_zero(dtype):
    def scale(zero, numbers):
        to, of = numbers_at(zero, numbers + 4 * bytes_of(zero)), numbers_at(zero, numbers)
        for i in range(4):
            to[i] = _TWICE(zero) * of[i] - zero if of[i] > zero else -of[i] / of[0]
        to[4] = zero if bytes_of(zero) == 4 else of[0]

    numbers = np.array([3, -2, 0, 1.5, *[np.nan] * 5], dtype)
    number = ctypes.c_float if dtype is np.float32 else ctypes.c_double
    address = by_address(scale).address(types.from_dtype(np.dtype(dtype)))
    ctypes.CFUNCTYPE(None, number, ctypes.c_int64)(address)(0, numbers.ctypes.data)
    assert numbers[4:].tolist() == [6, dtype(2) / dtype(3), 0, 3, 0 if dtype is np.float32 else 3]


def of_two_types(a, b):
    c = a
    if a > b:
        c = (a, b)
    return c


def mixes(a, b):
    return np.float32(a) + b


def ends_without(a, b):
    if a > b:
        return a


def of_another(a, b):
    return nowhere  # noqa: F821


def of_gamma(a, b):
    return math.gamma(np.float32(a))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (of_two_types, "test_plain.py:[0-9]+: 'c' has another type here, in a branch or loop"),
        (mixes, "'np.float32.a. . b' mixes float32 and int64"),
        (ends_without, "ends_without must return a value at its end"),
        (of_another, "'nowhere' has no value here"),
        (of_gamma, "'math.gamma.np.float32.a..' is not of the language"),
    ],
)
def test_what_is_refused(function, what):
    with pytest.raises(TypeError, match=what):
        from_python(function)(3, 2)
