"""A cell's functions, as compiled code and one by one: called from Python, over arrays, and what types are in them."""

import ctypes
from functools import cache
from itertools import count

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.compile import native, types
from numbarnn.compile.plain import module_of
from numbarnn.compile.specialise import specialise
from numbarnn.compile.translate import call_plain
from numbarnn.compile.types import RuntimeValue, flat, map_values
from numbarnn.engines.cpu.records import from_python
from numbarnn.engines.cpu.vectors import numbers_at

_numbers = count()


def type_of(value):
    """The type of a NumPy number, or of a tuple of them."""
    return each(value, lambda one: types.from_dtype(np.asarray(one).dtype))


def each(value, change):
    """The same tuple, which may be nested, with each number changed; or a changed number."""
    if not isinstance(value, tuple):
        return change(value)
    parts = [each(part, change) for part in value]
    return value._make(parts) if hasattr(value, "_fields") else tuple(parts)


@cache
def compiled(function, kinds):
    """(machine code of a function that is for compiled code only, what types it returns, LLVM's module of it): of two
    addresses, of its arguments, numbers of one type, and of its results."""
    (number, *others), returned = {one for one in flat_types(kinds)} or {types.float32}, []
    assert not others, "numbers of one type"

    def write(builder, addresses):
        given, out = (builder.inttoptr(one.llvm, number.llvm.as_pointer()) for one in addresses)
        places = count()

        def at(pointer):
            return builder.gep(pointer, [types.int64.llvm(next(places))])

        def load(one):
            return each(one, lambda kind: RuntimeValue(kind, builder.load(at(given))))

        value = call_plain(function, [load(one) for one in kinds], builder)
        places = count()
        for one in flat(value):
            assert one.type == number
            builder.store(one.llvm, at(out))
        returned.append(value)

    symbol = f"test.{next(_numbers)}"
    module = module_of(symbol, [types.int64] * 2, write)
    code = native.compiled(module)
    called = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(native.loaded(code, symbol))
    return called, map_values(returned[0], lambda one: one.type), module


def flat_types(kinds):
    """The types in a tuple of them, which may be nested."""
    return [one for part in kinds for one in flat_types(part)] if isinstance(kinds, tuple) else [kinds]


def types_inside(function, dtype, counts):
    """Names of the types of numbers that compiled code of a function has, of tuples of so many numbers, some perhaps in
    a group of tuples."""
    number = types.from_dtype(np.dtype(dtype))
    _, returned, module = compiled(function, each(tuple(counts), lambda count: (number,) * count))
    assert set(flat_types(returned)) == {number}
    return {name for name, llvm in (("float32", "float "), ("float64", "double ")) if llvm in str(module)}


def functions_of(cell):
    """(each of the cell's functions, how many numbers each of its arguments has)."""
    G, A, S, K = cell.num_gates, cell.num_ah, cell.num_states, cell.num_saved
    forward, backward = (G, A, S), (K, S, S, S)
    if cell.general:
        seen, noise = cell.num_sums + (cell.num_sums > 0), len(cell.noise)
        given = Given(cell.num_per_unit, seen, noise)
        forward, backward = (*forward, given), (*backward, cell.num_products, cell.num_sums, given)
    yield from ((cell.forward, forward), (cell.backward, backward))
    for stage in cell.stages:
        yield from ((stage.forward, forward), (stage.backward, backward))


def flat_numbers(result):
    """The scalars of a (nested) tuple."""
    return [value for part in result for value in flat_numbers(part)] if isinstance(result, tuple) else [result]


def callable_from_python(function):
    """A function that is for compiled code only (`numbarnn.compile.specialise.jit`), with a way in: of numbers of one
    dtype, and tuples of them."""

    def called(*arguments):
        machine_code, returned, _ = compiled(function, type_of(arguments))
        numbers = flat_numbers(arguments)
        given = np.array(numbers or [0], np.asarray(numbers[0]).dtype)
        out = np.zeros(100, given.dtype)
        machine_code(given.ctypes.data, out.ctypes.data)
        results = iter(out)

        def take(one):
            return tuple(map(take, one)) if isinstance(one, tuple) else next(results)

        return take(returned)

    return called


@cache
def mapped(function, dtype="float32"):
    """A function of one number over an array, as the CPU engine's loops have it."""
    device_function, zero = specialise(function, dtype, "cpu"), np.dtype(dtype).type(0)

    @from_python
    def over(x, out, size):
        given, found = numbers_at(zero, x), numbers_at(zero, out)
        for i in range(size):
            found[i] = device_function(given[i])

    def apply(x):
        out, x = np.full_like(x, np.nan), np.ascontiguousarray(x)
        over(x.ctypes.data, out.ctypes.data, x.size)
        return out

    return apply
