"""Types of the numbers, pointers and records in code compiled for the CPU, by the names that Numba gives them.

Numba's own would do, but importing them and what they need takes half a second, most of what a process with compiled
code on disk would wait for.
"""

from collections import namedtuple
from functools import cache

import numpy as np
from llvmlite import ir

Signature = namedtuple("Signature", "return_type args")


class Type:
    """A type; called with types of arguments it is the signature of a function that returns it.

    Attributes:
        name: types of one name are one type. llvm: LLVM's.
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
    """Of so many bits, `signed` or not."""

    def __init__(self, name, bitwidth, signed):
        super().__init__(name, ir.IntType(bitwidth))
        self.bitwidth, self.signed = bitwidth, signed


class IntegerLiteral(Integer):
    """Of an int64 that is known when compiling, as intrinsics see it: `literal_value`."""

    def __init__(self, value):
        super().__init__(f"Literal[int]({value})", 64, True)
        self.literal_value = value


class Float(Type):
    """Of 32 or 64 bits."""

    def __init__(self, name, bitwidth, llvm):
        super().__init__(name, llvm)
        self.bitwidth = bitwidth


class Boolean(Type):
    """True or false."""


class CPointer(Type):
    """The address of numbers of a type, `dtype`."""

    def __init__(self, dtype):
        super().__init__(f"{dtype}*", dtype.llvm.as_pointer())
        self.dtype = dtype


class Record(Type):
    """A `ctypes.Structure` in memory, of fields that are int64: `fields` are their offsets."""

    def __init__(self, structure):
        self.fields = {name: getattr(structure, name).offset for name, _ in structure._fields_}
        super().__init__(f"Record({structure.__name__}, {self.fields})", ir.IntType(8).as_pointer())


class ExternalFunction:
    """A function of another library, known to LLVM by a symbol."""

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
    """The type of a NumPy dtype's numbers."""
    return globals()["boolean" if dtype == np.bool_ else dtype.name]
