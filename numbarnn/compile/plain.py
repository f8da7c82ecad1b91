"""Compiles plain functions to LLVM: those of the CPU engine, and the equations of cells as it runs them.

Why not Numba: it takes about a tenth of a second for each function, most of it to find out the types of its values,
and a cell and the engine's loops are some hundred functions. Importing it alone takes as long as all that a process
with compiled code on disk does before its first result. Here the types follow from those of the arguments, statement by
statement, so that a function takes a few milliseconds; the rest of a first call is LLVM's own work. `native` keeps the
machine code on disk.

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
is refused with its file and line; where it is an equation of a cell, Numba compiles that function (`with_numba`).
"""

from typing import NamedTuple

from llvmlite import ir

from numbarnn.common.code_cache import fingerprint
from numbarnn.compile import native, types
from numbarnn.compile.calls import Plain
from numbarnn.compile.statements import FAST_MATH, call
from numbarnn.compile.values import Value


def plain(function):
    """`function` for other plain functions, and to be compiled by `Entry`."""
    return Plain(function)


def inlined(function):
    """The same; it becomes a part of those that call it, so that loops around it become vectors."""
    return Plain(function, inlined=True)


def scalar(function):
    """The same, of an equation of a cell: where it has what is not of the language, Numba compiles it."""
    return Plain(function, inlined=True, scalar=True)


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
        """LLVM's module with the function, of that symbol, for these first arguments; modules to link with it."""
        given = (*first, *[types.int64] * (self.py_func.__code__.co_argcount - len(first)))
        kinds = [one for one in given if isinstance(one, types.Type)]

        def write(builder, values):
            values = iter(values)
            arguments = [next(values) if isinstance(one, types.Type) else one for one in given]
            call(Plain(self.py_func), arguments, builder)

        return module_of(symbol, kinds, write, self.interleaved)


def module_of(symbol, kinds, write, interleaved=None):
    """LLVM's module with a function of that symbol, and modules to link with it.

    Args:
        kinds: types of its arguments; it returns nothing. write: write(builder, values) writes what it does.
        interleaved: of its loops, see `Entry`.
    """
    module = ir.Module(symbol)
    module.interleaved = interleaved
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.llvm for one in kinds]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    write(builder, list(map(Value, kinds, entry.args)))
    builder.ret_void()
    return finished(module)


def finished(module):
    """The module, in which arithmetic may be rounded as FAST_MATH says, and modules to link with it."""
    for function in module.functions:
        for block in function.blocks:
            for instruction in block.instructions:
                _let_round(instruction)
    return module, list(getattr(module, "linked", {}).values())


def _let_round(instruction):
    """Floating-point arithmetic may be contracted, and so on."""
    if instruction.opname in ("fadd", "fsub", "fmul", "fdiv", "fcmp"):
        instruction.flags += FAST_MATH
    elif isinstance(instruction, ir.CallInstr) and isinstance(instruction.type, ir.FloatType | ir.DoubleType):
        instruction.fastmath.update(FAST_MATH)
