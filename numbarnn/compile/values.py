"""Values in functions that are being compiled: a `Value` at run time, or a Python object that is known already."""

from typing import NamedTuple

import numpy as np
from llvmlite import ir

from numbarnn.compile import types
from numbarnn.compile.types import from_dtype

BYTES = ir.IntType(8).as_pointer()


class Value(NamedTuple):
    """A number, pointer or record of the running program; what is known when compiling is a Python object.

    Attributes:
        type: one of `types`. llvm: the value; of a variable its place in memory.
    """

    type: types.Type
    llvm: ir.Value


class Refused(TypeError):
    """What a function says is not of the language of plain functions."""


def flat(value):
    """The `Value`s of a value: itself, or those of a tuple's parts."""
    if isinstance(value, tuple) and not isinstance(value, Value):
        return [one for part in value for one in flat(part)]
    return [value] if isinstance(value, Value) else []


def with_each(value, change):
    """The same value with each `Value` changed."""
    if isinstance(value, Value):
        return change(value)
    if isinstance(value, tuple):
        parts = [with_each(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def kind(value):
    """What is known of a value when compiling: its type, or itself."""
    return with_each(value, lambda one: one.type)


def given(value):
    """Constants as `Value`s, also as parts of a tuple; other things as they are."""
    if isinstance(value, Value):
        return value
    if isinstance(value, tuple):
        parts = list(map(given, value))
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, bool | int):
        value = np.bool_(value) if isinstance(value, bool) else np.int64(value)
    if isinstance(value, np.bool_ | np.integer):
        bits = 1 if isinstance(value, np.bool_) else 8 * value.itemsize
        return Value(from_dtype(value.dtype), ir.IntType(bits)(int(value)))
    if isinstance(value, np.floating):
        return Value(from_dtype(value.dtype), {4: ir.FloatType, 8: ir.DoubleType}[value.itemsize]()(float(value)))
    return value
