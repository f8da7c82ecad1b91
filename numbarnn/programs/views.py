"""Describe arrays before they have memory: a `Buffer` has a name, shape and dtype; a `View` is a part of a buffer.

Views can be sliced, reshaped and transposed like NumPy arrays. Once a buffer has memory, `Engine.array_at` turns its
views into arrays.
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np

_NUMBERS = (int, float, slice)
LINE = 64  # bytes at whose multiples parts of the reserve begin: a line of a cache


class Buffer(NamedTuple):
    """Memory that a call needs.

    Attributes:
        name: a str; or (str, layer) or (str, (layer, direction)) if there is one for each.
        shape, dtype: as of NumPy arrays.
    """

    name: Any
    shape: tuple[int, ...]
    dtype: np.dtype


class View:
    """A part of a buffer.

    Attributes:
        buffer, name: the `Buffer` and its name.
        shape, dtype, strides: as of NumPy arrays. offset: bytes from the start of the buffer.
        is_contiguous: whether its elements follow each other without gaps.
        is_whole: whether it is the buffer itself, with its shape and dtype.
    """

    __slots__ = ("buffer", "dtype", "is_contiguous", "is_whole", "name", "offset", "shape", "strides")

    def __init__(self, buffer, dtype, shape, offset=0, strides=None):
        self.buffer, self.dtype, self.shape, self.offset, self.name = buffer, dtype, shape, offset, buffer.name
        self.is_contiguous, apart, wanted = True, dtype.itemsize, []
        for length in reversed(shape):
            wanted.append(apart)
            apart *= length
        wanted.reverse()
        if strides is not None:
            for length, stride, apart in zip(shape, strides, wanted, strict=True):
                if stride != apart and length != 1:
                    self.is_contiguous = False
                    break
        self.strides = tuple(wanted) if strides is None else strides
        self.is_whole = self.is_contiguous and shape == buffer.shape and dtype == buffer.dtype

    @classmethod
    def of(cls, name, shape, dtype):
        """Make a new buffer and return a view of all of it."""
        return cls(Buffer(name, shape, dtype), dtype, shape)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: prod(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    itemsize = property(lambda self: self.dtype.itemsize)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, key):
        offset, shape, strides = self.offset, [], []
        axes = iter(zip(self.shape, self.strides, strict=True))
        for part in key if isinstance(key, tuple) else (key,):
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            length, stride = next(axes)
            if isinstance(part, slice):
                numbers = range(length)[part]
                offset += numbers.start * stride if numbers else 0
                shape.append(len(numbers))
                strides.append(numbers.step * stride)
            else:
                offset += range(length)[part] * stride
        for length, stride in axes:
            shape.append(length)
            strides.append(stride)
        return View(self.buffer, self.dtype, tuple(shape), offset, tuple(strides))

    def reshape(self, *shape):
        """Return the same elements with other axes; only for a contiguous view."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if not self.is_contiguous or prod(shape) != self.size:
            raise ValueError(f"a view {self.shape} with strides {self.strides} is no view {shape}")
        return View(self.buffer, self.dtype, shape, self.offset)

    def transpose(self, *axes):
        """Return the same elements with the axes in this order."""
        shape, strides = (tuple(kind[axis] for axis in axes) for kind in (self.shape, self.strides))
        return View(self.buffer, self.dtype, shape, self.offset, strides)

    def __repr__(self):
        name, part = self.name, "" if self.is_whole else f" from byte {self.offset}"
        at = name if isinstance(name, str) else "{}[{}]".format(name[0], str(name[1]).strip("()"))
        return f"{at}{part} {self.shape}"


def stacked(first, last, count):
    """Return operands whose views have one more axis, along which they go from those of `first` to those of `last`."""
    ends = iter(views_of(last))

    def join(view):
        step = (next(ends).offset - view.offset) // max(1, count - 1)
        return View(view.buffer, view.dtype, (count, *view.shape), view.offset, (step, *view.strides))

    return with_views(first, join)


def views_of(operands):
    """Return all views in operands, in the order in which `with_views` visits them."""
    views, waiting = [], [operands]
    while waiting:
        value = waiting.pop()
        if type(value) is View:
            views.append(value)
        elif isinstance(value, (tuple, list)):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += reversed(value.values())
        elif getattr(value, "has_views", False):
            waiting += reversed(vars(value).values())
    return views


def with_views(value, function):
    """Return operands (views in tuples, lists, dicts and groups) with a function applied to each view."""
    kind = type(value)
    if kind is View:
        return function(value)
    if isinstance(value, (tuple, list)):
        parts = []
        for part in value:  # most are views, None or numbers: no call for each
            if type(part) is View:
                part = function(part)
            elif part is not None and not isinstance(part, _NUMBERS):
                part = with_views(part, function)
            parts.append(part)
        return parts if kind is list else kind(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return dict(zip(value, with_views([*value.values()], function), strict=True))
    if getattr(value, "has_views", False):
        values = vars(value)
        return kind(**dict(zip(values, with_views([*values.values()], function), strict=True)))
    return value
