"""Compiles plain functions to LLVM: those of the CPU engine, and the equations of cells as it runs them.

Why not Numba: it takes about a tenth of a second for each function, most of it to find out the types of its values,
and a cell and the engine's loops are some hundred functions. Importing it alone takes as long as all that a process
with compiled code on disk does before its first result. Here the types follow from those of the arguments, statement by
statement, so that a function takes a few milliseconds; the rest of a first call is LLVM's own work. `translate` writes
the instructions, `native` keeps the machine code on disk.

What a plain function may consist of:
- assignments, also to several names at once; `if`, `while`, `for` over a `range` (a step that is no constant must be
  positive), `break`, `continue`, `return`; `for` over a tuple, or `enumerate` of it, whose body is written out for each
  item;
- integers (as in C: int64, whatever overflows), bools, numbers of one dtype, which do not mix with integers; tuples and
  NamedTuples; fields of records; numbers at pointers; tuple(... for ... in a range or tuple known when compiling);
- arithmetic, comparisons, `a if b else c`, `and`, `or`, `not`, min, max, abs, int, x.view(np.int32), functions of
  `math`;
- calls, by position, of plain functions, of intrinsics, which write instructions of their own, and of external
  functions. Names from outside the function are constants, and so are objects that are handed on as arguments.

A name has the type of what is first assigned to it; outside of branches and loops it may get another one. Anything else
is refused with its file and line.
"""

import ctypes
from typing import NamedTuple

from llvmlite import ir

from numbarnn.common.code_cache import fingerprint
from numbarnn.compile import native, types
from numbarnn.compile.translate import FAST_MATH, Plain, call
from numbarnn.compile.types import Value


def plain(function):
    """`function` for other plain functions, and to be compiled by `Entry`."""
    return Plain(function)


def inlined(function):
    """The same; it becomes a part of those that call it, so that loops around it become vectors."""
    return Plain(function, inlined=True)


class Interleaved(NamedTuple):
    """How many vectors at a time LLVM makes loops work on, where it is not to decide that itself.

    Attributes:
        known: of a loop whose number of turns is known when compiling.
        others: of other loops. masked: the rest of such a loop is done with masks, not one number at a time.
    """

    known: int
    others: int
    masked: bool


class Entry:
    """A plain function that others call by its address: of integers and of numbers whose type the caller says.

    Args:
        function: the Python function.
        what: what a person is told that is being compiled, or a function of the constant given to `address`.
        interleaved: an `Interleaved`; None: as LLVM decides.
    """

    result = types.void

    def __init__(self, function, what, interleaved=None):
        self.py_func, self.what, self.interleaved = function, what, interleaved
        self.__name__, self.__qualname__, self.__doc__ = function.__name__, function.__qualname__, function.__doc__

    def address(self, *first):
        """Where its machine code is, which is compiled if it is not on disk.

        Args:
            first: of its first arguments their types; or something that is a constant of the code, whose repr tells it
                from others. The others are int64.
        """
        function = self.py_func
        made_of = fingerprint(function) if not function.__module__.startswith("numbarnn.") else function.__module__
        what = self.what if isinstance(self.what, str) else self.what(*first)
        return native.address_of(
            function.__name__, what, (made_of, repr(first)), lambda symbol: self.module(symbol, first)
        )

    def module(self, symbol, first):
        """LLVM's module with the function, of that symbol, for these first arguments."""
        given = (*first, *[types.int64] * (self.py_func.__code__.co_argcount - len(first)))
        kinds = [one for one in given if isinstance(one, types.Type)]

        def write(builder, values):
            values = iter(values)
            arguments = [next(values) if isinstance(one, types.Type) else one for one in given]
            return call(Plain(self.py_func), arguments, builder)

        return module_of(symbol, kinds, write, self.interleaved, self.result)


class FromPython(Entry):
    """An entry that Python calls, with integers; it returns an integer, 0 if the function returns nothing. Python's
    other threads may run meanwhile."""

    result = types.int64

    def __call__(self, *numbers):
        return self.compiled(*numbers)

    def __getattr__(self, name):  # no cached_property, whose lock (up to Python 3.11) a forked process may find held
        if name != "compiled":
            raise AttributeError(name)
        integers = [ctypes.c_int64] * self.py_func.__code__.co_argcount
        self.compiled = ctypes.CFUNCTYPE(ctypes.c_int64, *integers)(self.address())
        return self.compiled


def module_of(symbol, kinds, write, interleaved=None, result=types.void):
    """LLVM's module with a function of that symbol, in which arithmetic may be rounded as FAST_MATH says.

    Args:
        kinds: types of its arguments. write: write(builder, values) writes what it does, and returns its value.
        interleaved: of its loops, see `Entry`. result: the type of its result: int64, or void.
    """
    module = ir.Module(symbol)
    module.interleaved = interleaved
    entry = ir.Function(module, ir.FunctionType(result.llvm, [one.llvm for one in kinds]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    value = write(builder, list(map(Value, kinds, entry.args)))
    if result == types.void:
        builder.ret_void()
    else:
        builder.ret(result.llvm(0) if value is None else value.llvm)
    blocks = [block for function in module.functions for block in function.blocks]
    for one in (instruction for block in blocks for instruction in block.instructions):
        if one.opname in ("fadd", "fsub", "fmul", "fdiv", "fcmp"):
            one.flags += FAST_MATH
        elif isinstance(one, ir.CallInstr) and isinstance(one.type, ir.FloatType | ir.DoubleType):
            one.fastmath.update(FAST_MATH)
    return module
