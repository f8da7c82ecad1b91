"""Types and values of functions that are compiled for the CPU.

Types have the names of Numba's types, but importing Numba would take half a second. A value is a `RuntimeValue`, or
a Python object if it is known at compile time.
"""

from collections import namedtuple
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir

Signature = namedtuple("Signature", "return_type args")


class Type:
    """A type. Called with argument types, it returns the signature of a function that returns this type.

    Attributes:
        name: equal for equal types.
        llvm: LLVM's type.
    """

    def __init__(self, name, llvm):
        self.name, self.llvm = name, llvm

    def __call__(self, *arguments):
        return Signature(self, arguments)

    def __eq__(self, other):
        return isinstance(other, Type) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return self.name


class Integer(Type):
    """An integer of `bitwidth` bits, `signed` or not."""

    def __init__(self, name, bitwidth, signed):
        super().__init__(name, ir.IntType(bitwidth))
        self.bitwidth, self.signed = bitwidth, signed


class IntegerLiteral(Integer):
    """The type of an int argument that is known at compile time: an intrinsic reads its `literal_value`."""

    def __init__(self, value):
        super().__init__(f"Literal[int]({value})", 64, True)
        self.literal_value = value


class Float(Type):
    """A float of 32 or 64 bits."""

    def __init__(self, name, bitwidth, llvm):
        super().__init__(name, llvm)
        self.bitwidth = bitwidth


class Boolean(Type):
    """True or false."""


class CPointer(Type):
    """The address of numbers of the type `dtype`."""

    def __init__(self, dtype):
        super().__init__(f"{dtype}*", dtype.llvm.as_pointer())
        self.dtype = dtype


class Record(Type):
    """A `ctypes.Structure` in memory with int64 fields. fields: name -> offset."""

    def __init__(self, structure):
        self.fields = {name: getattr(structure, name).offset for name, _ in structure._fields_}
        super().__init__(f"Record({structure.__name__}, {self.fields})", ir.IntType(8).as_pointer())


class ExternalFunction:
    """A function of another library, which LLVM knows by a symbol."""

    def __init__(self, symbol, sig):
        self.symbol, self.sig = symbol, sig


int8, int16, int32, int64 = (Integer(f"int{bits}", bits, True) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (Integer(f"uint{bits}", bits, False) for bits in (8, 16, 32, 64))
intp = int64
float32, float64 = Float("float32", 32, ir.FloatType()), Float("float64", 64, ir.DoubleType())
boolean = Boolean("bool", ir.IntType(1))
void, none = Type("void", ir.VoidType()), Type("none", ir.IntType(8).as_pointer())


@cache
def from_dtype(dtype):
    """Return the type of a NumPy dtype's numbers."""
    return globals()["boolean" if dtype == np.bool_ else dtype.name]


# -------------------------------------------------------------------------------------------------------------- values
BYTES = none.llvm


class RuntimeValue(NamedTuple):
    """A number, pointer or record of the running program.

    Attributes:
        type: a `Type`.
        llvm: LLVM's value, or the address of a variable.
    """

    type: Type
    llvm: ir.Value


def flat(value):
    """Return the `RuntimeValue`s in a value, also those in nested tuples."""
    if isinstance(value, tuple) and not isinstance(value, RuntimeValue):
        return [one for part in value for one in flat(part)]
    return [value] if isinstance(value, RuntimeValue) else []


def map_values(value, change):
    """Return a value with a function applied to each `RuntimeValue` in it."""
    if isinstance(value, RuntimeValue):
        return change(value)
    if isinstance(value, tuple):
        parts = [map_values(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def kind(value):
    """Return what is known of a value at compile time: its type, or itself."""
    return map_values(value, lambda one: one.type)


def given(value):
    """Return constants as `RuntimeValue`s, also in tuples; other values unchanged."""
    if isinstance(value, RuntimeValue):
        return value
    if isinstance(value, tuple):
        parts = list(map(given, value))
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, bool | int):
        value = np.bool_(value) if isinstance(value, bool) else np.int64(value)
    if isinstance(value, np.bool_ | np.integer):
        bits = 1 if isinstance(value, np.bool_) else 8 * value.itemsize
        return RuntimeValue(from_dtype(value.dtype), ir.IntType(bits)(int(value)))
    if isinstance(value, np.floating):
        return RuntimeValue(
            from_dtype(value.dtype), {4: ir.FloatType, 8: ir.DoubleType}[value.itemsize]()(float(value))
        )
    return value
