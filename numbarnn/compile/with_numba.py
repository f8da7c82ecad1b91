"""Scalar functions that `plain` refuses, compiled by Numba: a cell of one's own may use anything that Numba knows.

Numba's code becomes part of the module of the function that calls it, where it is inlined as plain functions are.
"""

import types as python_types
from functools import cache

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core.registry import cpu_target

from numbarnn.compile import cgutils, types
from numbarnn.compile.calls import Plain
from numbarnn.compile.values import Value, flat, kind


def offer_symbols():
    """Let LLVM know the functions of Numba's own that its code may call: Numba does so when it makes its context."""
    return cpu_target.target_context


def call(function, arguments, builder, fast_math):
    """Call a function as Numba compiles it for the types of its arguments; returns its value.

    Args:
        function: a Python function. arguments: `Value`s, and tuples of them.
        fast_math: names of LLVM's flags.
    """
    dispatcher = _of_so_many(_for_numba(function, frozenset(fast_math)), len(arguments), frozenset(fast_math))
    signature = tuple(map(_type_of, kind(arguments)))
    dispatcher.compile(signature)
    compiled, context = dispatcher.overloads[signature], cpu_target.target_context
    name, result = compiled.fndesc.llvm_func_name, compiled.signature.return_type
    linked = builder.module.__dict__.setdefault("linked", {})
    if name not in linked:
        linked[name] = _inlined(compiled.library.get_llvm_str(), name)
    # As Numba calls functions: results and errors by address, then the arguments; bools are bytes.
    pointer = cgutils.voidptr_t
    place = cgutils.alloca_once(builder, context.get_return_type(result))
    given = [_as_byte(builder, one) for one in flat(arguments)]
    of_llvm = ir.FunctionType(ir.IntType(32), [place.type, pointer.as_pointer(), *(one.type for one in given)])
    compiled_function = cgutils.get_or_insert_function(builder.module, of_llvm, name)
    builder.call(compiled_function, [place, cgutils.alloca_once(builder, pointer), *given])
    return _value_at(builder, place, result)


@cache
def _for_numba(function, fast_math):
    """A copy for Numba, in which plain functions are such copies too."""
    names = dict(function.__globals__)
    for name in _names_of(function.__code__):
        if isinstance(names.get(name), Plain):
            names[name] = _for_numba(names[name].py_func, fast_math)
    copy = python_types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    return _jit(copy, fast_math)


def _jit(function, fast_math):
    options = dict(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", fastmath=set(fast_math))
    return numba.njit(**options)(function)


@cache
def _of_so_many(function, count, fast_math):
    """A function of so many arguments by position, whatever the signature of the one it calls."""
    names = ", ".join(f"a{k}" for k in range(count))
    return _jit(eval(f"lambda {names}: function({names})", {"function": function}), fast_math)


def _names_of(code):
    """Names that code refers to, also that of functions inside."""
    inside = [one for one in code.co_consts if isinstance(one, python_types.CodeType)]
    return {*code.co_names, *(name for one in inside for name in _names_of(one))}


def _type_of(one):
    """Numba's type for one of `types`, or for a tuple of them."""
    if isinstance(one, tuple):
        return numba.types.BaseTuple.from_types(tuple(map(_type_of, one)))
    return numba.types.boolean if one == types.boolean else getattr(numba.types, one.name)


def _inlined(text, name):
    """LLVM's module of a text; the function of that name is inlined where it is called."""
    module = llvm.parse_assembly(text)
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "linkonce_odr"  # each module may have it
    module.get_function(name).add_function_attribute("alwaysinline")
    return module


def _as_byte(builder, one):
    return builder.zext(one.llvm, ir.IntType(8)) if one.type == types.boolean else one.llvm


def _value_at(builder, place, result):
    """The value of one of Numba's types at an address."""
    if isinstance(result, numba.types.BaseTuple):
        path = [[ir.IntType(32)(0), ir.IntType(32)(number)] for number in range(len(result))]
        return tuple(
            _value_at(builder, builder.gep(place, one), type_) for one, type_ in zip(path, result, strict=True)
        )
    value = builder.load(place)
    if result == numba.types.boolean:
        return Value(types.boolean, builder.trunc(value, ir.IntType(1)))
    return Value(getattr(types, result.name), value)
