"""Calls in plain functions: what can be called there, and what LLVM's instructions are for it; see `plain`."""

import ast
import math

import numpy as np
from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.types import from_dtype
from numbarnn.compile.values import BYTES, Value, given, kind

# Functions of `math` that LLVM has itself; of others the C library's is called.
_OF_LLVM = {"exp", "log", "log2", "log10", "sin", "cos", "sqrt", "pow", "fabs", "floor", "ceil"}
_OF_C = {
    "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "expm1", "log1p", "erf", "erfc",
    "atan2", "hypot",
}  # fmt: skip


class intrinsic:
    """A function that writes LLVM's instructions, for plain functions; as Numba's decorator of this name.

    It gets a None and the types of its arguments, and returns its signature and generate(context, builder, signature,
    values), which writes them and returns the value; `context` knows LLVM's types.
    """

    def __init__(self, define):
        self.py_func, self.__doc__ = define, define.__doc__


class _Context:
    """What `generate` asks for."""

    @staticmethod
    def get_value_type(type_):
        return type_.llvm

    @staticmethod
    def get_dummy_value():
        return ir.Constant(BYTES, None)


class Plain:
    """A function for compiled code, see `plain`.

    Attributes:
        py_func: the Python function.
        inlined: it becomes a part of those that call it. scalar: Numba may compile it, see `plain.scalar`.
    """

    def __init__(self, function, inlined=False, scalar=False):
        self.py_func, self.inlined, self.scalar = function, inlined, scalar
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments, **named):
        raise TypeError(f"{self.__name__} is for compiled code: call it in a plain function (numbarnn.compile.plain)")


class of_types:
    """A function of the types of its arguments, which is called when compiling: its value is a constant."""

    def __init__(self, function):
        self.function = function


class Calls:
    """The part of `Expressions` that writes calls; arguments are expressions, and their values come from there."""

    def value_of_Call(self, node):
        if node.keywords:
            self.refuse(node, "has arguments by name, which")
        if isinstance(node.func, ast.Name) and node.func.id == "tuple":
            return self.tuple_of(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "view":
            return self.view(node)
        function, arguments = self.value(node.func), self.values(node.args)
        function = math.floor if function is np.floor else function  # Numba's math.floor would be an integer
        if isinstance(function, Plain):
            return self.call(function, arguments)
        if function in (min, max):
            result = arguments[0]
            for other in arguments[1:]:
                result = self.smaller(result, other, "<" if function is min else ">", node)
            return result
        if function is int:
            return self.cast(arguments[0], types.intp, node)
        if function is abs and not self.is_float(arguments[0]):
            return self.smaller(arguments[0], self.negative(arguments[0]), ">", node)
        if function is abs or getattr(math, getattr(function, "__name__", ""), None) is function:
            return self.of_math("fabs" if function is abs else function.__name__, arguments, node)
        if isinstance(function, type) and issubclass(function, np.generic):
            if not isinstance(arguments[0], Value):
                return given(function(arguments[0]))
            return self.cast(arguments[0], from_dtype(np.dtype(function)), node)
        if isinstance(function, type) and issubclass(function, tuple):
            return function(*map(given, arguments))
        if isinstance(function, of_types):
            return function.function(*(kind(given(one)) for one in arguments))
        if isinstance(function, types.ExternalFunction):
            return self.external(function, arguments, node)
        if isinstance(function, intrinsic):
            return self.intrinsic(function, arguments, node)
        self.refuse(node)

    def is_float(self, value):
        return isinstance(value, Value) and isinstance(value.type, types.Float)

    def tuple_of(self, node):
        """tuple(an expression for a name in what is known when compiling)."""
        (made,) = node.args
        if not isinstance(made, ast.GeneratorExp) or len(made.generators) > 1 or made.generators[0].ifs:
            self.refuse(node)
        found, (part,) = [], made.generators
        for item in self.items(part.iter):
            self.assign(part.target, item)
            found.append(self.value(made.elt))
        return tuple(found)

    def view(self, node):
        """x.view(type): the same bits."""
        value, (wanted,) = self.value(node.func.value), self.values(node.args)
        if not isinstance(value, Value) or not isinstance(wanted, type) or not issubclass(wanted, np.generic):
            self.refuse(node)
        wanted = from_dtype(np.dtype(wanted))
        if value.type.bitwidth != wanted.bitwidth:
            self.refuse(node, f"looks at {value.type} as {wanted}, of another size,")
        return Value(wanted, self.builder.bitcast(value.llvm, wanted.llvm))

    def of_math(self, name, arguments, node):
        """A function of `math`, of numbers of one dtype."""
        if not all(map(self.is_float, arguments)) or len({one.type for one in arguments}) > 1:
            self.refuse(node, "is not of numbers of one dtype, which")
        (first, *_), kinds = arguments, [one.llvm.type for one in arguments]
        if name == "fmod":  # loops around an instruction become vectors, those around a call do not
            return Value(first.type, self.builder.frem(*(one.llvm for one in arguments)))
        of_llvm, module = ir.FunctionType(kinds[0], kinds), self.builder.module
        if name in _OF_LLVM:
            function = module.declare_intrinsic(f"llvm.{name}", kinds[:1], of_llvm)
        elif name in _OF_C:
            function = cgutils.get_or_insert_function(module, of_llvm, name + "f" * (first.type == types.float32))
        else:
            self.refuse(node)
        return Value(first.type, self.builder.call(function, [one.llvm for one in arguments]))

    def smaller(self, a, b, comparison, node):
        if not isinstance(a, Value) and not isinstance(b, Value):
            return (min if comparison == "<" else max)(a, b)
        a, b = self.alike(a, b, node)
        return Value(a.type, self.builder.select(self.compared(node, comparison, a, b).llvm, a.llvm, b.llvm))

    def external(self, function, arguments, node):
        """A call of a function of another library, in C's way."""
        kinds, result = function.sig.args, function.sig.return_type
        of_llvm = ir.FunctionType(result.llvm, [one.llvm for one in kinds])
        symbol = cgutils.get_or_insert_function(self.builder.module, of_llvm, function.symbol)
        given = [self.cast(one, kind, node).llvm for one, kind in zip(arguments, kinds, strict=True)]
        value = self.builder.call(symbol, given)
        return None if result == types.void else Value(result, value)

    def intrinsic(self, function, arguments, node):
        """What an intrinsic writes."""
        values = [Value(types.none, ir.Constant(BYTES, None)) if one is None else given(one) for one in arguments]
        kinds = [types.IntegerLiteral(a) if type(a) is int else kind(b) for a, b in zip(arguments, values, strict=True)]
        signature, generate = function.py_func(None, *kinds)
        values = [self.cast(one, kind, node) for one, kind in zip(values, signature.args, strict=True)]
        value = generate(_Context, self.builder, signature, [one.llvm for one in values])
        return None if signature.return_type == types.void else Value(signature.return_type, value)
