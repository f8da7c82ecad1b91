"""Callers' arrays, read where NumPy has their parts: those that are like the ones before, and no others."""

import numpy as np
import pytest

from numbarnn.engines.cpu import callers

SHAPE = (3, 2, 5)


def taker(one, dtype="float32"):
    """(f of the first of three arrays, which are like `one`; the two numbers that it writes to)."""
    places = np.zeros(2, np.int64)
    at = [(places.ctypes.data, 0), (places.ctypes.data + 8, 40)]
    take = callers.taker((one, None, np.zeros((), dtype)), (at, [], []))
    last = np.ones((), dtype)
    return lambda array: take(array, None, last), places


def test_arrays_are_laid_out_as_numpy_says():
    assert callers.LAID_OUT


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_an_array_like_the_first_is_taken(dtype):
    take, places = taker(np.zeros(SHAPE, dtype), dtype)
    fixed = np.ones(SHAPE, dtype)
    fixed.flags.writeable = False
    for array in (
        np.ones(SHAPE, dtype),
        np.zeros((7, *SHAPE), dtype)[3],
        np.ones((2, 3, 5), dtype).reshape(SHAPE),
        fixed,
    ):
        assert take(array) == 1
        assert places.tolist() == [array.ctypes.data, array.ctypes.data + 40]


class Other(np.ndarray):
    """Which may do anything."""


def unaligned():
    return np.zeros(4 * 30 + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 5, 2), "f4"), np.zeros((3, 2), "f4"), np.zeros((1, 3, 2, 5), "f4"), np.zeros((3, 2, 6), "f4"),
        np.zeros(SHAPE, "f8"), np.zeros(SHAPE, "i4"), np.zeros(SHAPE, ">f4"), np.zeros((5, 2, 3), "f4").T,
        np.zeros((3, 2, 9), "f4")[..., 4:], np.zeros(SHAPE, "f4").view(Other), np.ma.zeros(SHAPE, "f4"), unaligned(),
        None, 3, [[[0.0]]], "x",
    ],
    ids=lambda array: f"{type(array).__name__}-{getattr(array, 'shape', '')}-{getattr(array, 'dtype', '')}",
)  # fmt: skip
def test_others_are_not(array):
    take, places = taker(np.zeros(SHAPE, "float32"))
    assert take(array) == 0
    assert places.tolist() == [0, 0]


def test_none_where_there_was_none():
    take = callers.taker((np.zeros(3), None, None), ([], [], []))
    x = np.ones(3)
    assert take(x, None, None) == 1
    assert [take(x, x, None), take(x, None, x), take(None, None, None)] == [0, 0, 0]
    with pytest.raises(TypeError):
        take(x, None)


@pytest.mark.parametrize("name", ("_DATA", "_AXES", "_DTYPE", "_FLAGS"))
def test_another_layout_is_noticed(name, monkeypatch):
    """Then Python checks callers' arrays."""
    monkeypatch.setattr(callers, name, getattr(callers, name) - 1)
    assert not callers._is_laid_out()
