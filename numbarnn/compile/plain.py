"""Compile plain functions to LLVM: the CPU engine's functions, and cells' equations for the CPU.

Numba would take about a tenth of a second per function, mostly to infer types, and a cell and the engine's loops are
some hundred functions. Importing Numba alone takes as long as all other work before the first result of a process
with cached code. Here types follow from the arguments' types, statement by statement, so that a function takes a few
milliseconds; the rest of a first call is LLVM's work. `translate` writes the instructions, and `native` caches the
machine code on disk.

A plain function may consist of:
- assignments, also to several names at once; `if`, `while`, `for` over a `range` (a step that is no constant must be
    positive), `break`, `continue`, `return`; `for` over a tuple or `enumerate` of a tuple, whose body is written once
    per item;
- integers (int64 that wrap, as in C), bools, numbers of one dtype, which do not mix with integers; tuples and
    NamedTuples; fields of records; numbers at pointers; tuple(... for ... in a range or tuple known at compile time);
- arithmetic, comparisons, `a if b else c`, `and`, `or`, `not`, min, max, abs, int, x.view(np.int32), functions of
    `math`;
- calls, by position, of plain functions, of intrinsics, which write instructions themselves, and of external
    functions. Names from outside the function are constants, and so are objects passed as arguments.

A name keeps the type of its first assignment inside branches and loops, and may change it outside. Anything else
raises `NotPlain` with its file and line.
"""

import ctypes
from functools import partial
from typing import NamedTuple

from llvmlite import ir

from numbarnn.common.code_cache import fingerprint
from numbarnn.compile import native, types
from numbarnn.compile.translate import FAST_MATH, Plain, call_plain
from numbarnn.compile.types import RuntimeValue

plain = Plain  # marks a function as plain: other plain functions may call it, and `Entry` compiles it
inlined = partial(Plain, inlined=True)  # also inlines it into its callers, so that loops around it are vectorized


class Interleaved(NamedTuple):
    """How many vectors LLVM interleaves in loops, if it is not to decide that itself.

    Attributes:
        known: in loops whose number of iterations is known at compile time.
        others: in other loops.
        masked: whether to compute the rest of such a loop with masks instead of one number at a time.
    """

    known: int
    others: int
    masked: bool


class Entry:
    """A plain function that others call by its address, with integers and with numbers of types that the caller states.

    Args:
        function: the Python function.
        label: name for the notice of compiling, or a function from the constant of `address` to the name.
        interleaved: a function from that constant to an `Interleaved`; None lets LLVM decide.
    """

    def __init__(self, function, label, interleaved=None):
        self.py_func, self.label, self.interleaved = function, label, interleaved
        self.__name__, self.__qualname__, self.__doc__ = function.__name__, function.__qualname__, function.__doc__

    def address(self, *first):
        """Return the address of its machine code, from disk or compiled now.

        Args:
            first: types of its first arguments, or an object that is a constant of the code, identified by its repr.
                All other arguments are int64.
        """
        function = self.py_func
        made_of = fingerprint(function) if not function.__module__.startswith("numbarnn.") else function.__module__
        what = self.label if isinstance(self.label, str) else self.label(*first)
        return native.address_of(
            function.__name__, what, (made_of, repr(first)), lambda symbol: self.module(symbol, first)
        )

    def module(self, symbol, first):
        """Return LLVM's module with the function, named by the symbol, for these first arguments."""
        given = (*first, *[types.int64] * (self.py_func.__code__.co_argcount - len(first)))
        kinds = [one for one in given if isinstance(one, types.Type)]

        def write(builder, values):
            values = iter(values)
            arguments = [next(values) if isinstance(one, types.Type) else one for one in given]
            return call_plain(Plain(self.py_func), arguments, builder)

        return module_of(symbol, kinds, write, self.interleaved and self.interleaved(*first))


class FromPython(Entry):
    """An entry that Python calls with integers by ctypes, which lets other Python threads run meanwhile."""

    _compiled = None

    @property
    def compiled(self):
        """The machine code as a function."""
        if self._compiled is None:
            kinds = [ctypes.c_int64] * self.py_func.__code__.co_argcount
            self._compiled = ctypes.CFUNCTYPE(None, *kinds)(self.address())
        return self._compiled

    def __call__(self, *numbers):
        self.compiled(*numbers)


def module_of(symbol, kinds, write, interleaved=None):
    """Return LLVM's module with a function named by the symbol, whose arithmetic follows FAST_MATH.

    Args:
        kinds: types of its arguments.
        write: function (builder, values) that writes its instructions.
        interleaved: an `Interleaved` for its loops, or None.
    """
    module = ir.Module(symbol)
    module.interleaved = interleaved
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [one.llvm for one in kinds]), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    write(builder, list(map(RuntimeValue, kinds, entry.args)))
    builder.ret_void()
    return finished(module)


def finished(module):
    """Set FAST_MATH on a module's arithmetic and return the module."""
    blocks = [block for function in module.functions for block in function.blocks]
    for one in (instruction for block in blocks for instruction in block.instructions):
        if one.opname in ("fadd", "fsub", "fmul", "fdiv", "fcmp"):
            one.flags += FAST_MATH
        elif isinstance(one, ir.CallInstr) and isinstance(one.type, ir.FloatType | ir.DoubleType):
            one.fastmath.update(FAST_MATH)
    return module
