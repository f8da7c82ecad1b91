"""Write LLVM's instructions for plain functions, statement by statement (see `plain` for what these may contain)."""

import ast
import builtins
import inspect
import linecache
import math
import operator
from collections import ChainMap
from functools import cache
from types import SimpleNamespace

import numpy as np
from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.types import BYTES, RuntimeValue, flat, from_dtype, given, kind, map_values

# Rewrites that keep NaN, infinity and the order of sums: contraction to FMA, reciprocals, no signed zeros.
FAST_MATH = ("contract", "nsz", "arcp", "afn")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ON_INTEGERS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor",
}  # fmt: skip
_ON_FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
# functions of `math` that are LLVM intrinsics; others call the C library
_OF_LLVM = {"exp", "log", "log2", "log10", "sin", "cos", "sqrt", "pow", "fabs", "floor", "ceil"}
_OF_C = {
    "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "expm1", "log1p", "erf", "erfc",
    "atan2", "hypot",
}  # fmt: skip


class NotPlain(TypeError):
    """A function uses something outside the language of plain functions."""


class Plain:
    """A function for compiled code (see `numbarnn.compile.plain`).

    Attributes:
        py_func: the Python function.
        inlined: whether it is inlined into its callers.
    """

    def __init__(self, function, inlined=False):
        self.py_func, self.inlined = function, inlined
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments, **named):
        raise TypeError(f"{self.__name__} is for compiled code: call it in a plain function (numbarnn.compile.plain)")


class intrinsic:
    """Decorate a function that writes LLVM's instructions, for use in plain functions, like Numba's decorator of this
    name.

    The function gets None and the argument types. It returns its signature and generate(context, builder, signature,
    values), which writes the instructions and returns the value; `context` knows LLVM's types.
    """

    def __init__(self, define):
        self.py_func, self.__doc__ = define, define.__doc__


class of_types:
    """A function of its arguments' types, which is called at compile time: its value is a constant."""

    def __init__(self, function):
        self.function = function


# The context that `generate` gets.
_CONTEXT = SimpleNamespace(get_value_type=lambda type_: type_.llvm, get_dummy_value=lambda: ir.Constant(BYTES, None))


def call_plain(function, arguments, builder):
    """Call a plain function and return its value. It is compiled once per module and argument types."""
    arguments, module = tuple(map(given, arguments)), builder.module
    known, key = module.__dict__.setdefault("plain_functions", {}), (function, kind(arguments))
    if key not in known:
        known[key] = _Function(function, arguments, module)
    called = known[key]
    place = cgutils.alloca_once(builder, called.results) if called.results else ir.Constant(BYTES, None)
    builder.call(called.llvm, [builder.bitcast(place, BYTES), *(one.llvm for one in flat(arguments))])
    numbers = iter(range(len(flat(called.returned))))
    return map_values(
        called.returned, lambda one: RuntimeValue(one.type, builder.load(builder.gep(place, _path(next(numbers)))))
    )


def _path(number):
    """Return the indices of a structure's member."""
    return [ir.IntType(32)(0), ir.IntType(32)(number)]


@cache
def _definitions(file):
    """Return the syntax trees of the functions in a file of `linecache`, by their first lines."""
    nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {min(one.lineno for one in (node, *node.decorator_list)): node for node in functions}


def _body(function):
    """Return the statements of a function."""
    code = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)  # the file may be within a zip
    node = _definitions(code.co_filename).get(code.co_firstlineno)
    if node is None or node.name != code.co_name:
        raise NotPlain(f"{code.co_filename}:{code.co_firstlineno}: there is no source of {function.__qualname__}")
    return node.body


@cache
def _names_outside(function):
    """Return the meaning of names that a function uses but does not define."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in closure}
    return ChainMap(inside, function.__globals__, vars(builtins))


class _Function:
    """A plain function, compiled for argument types.

    Attributes:
        llvm: LLVM's function of the address of its results and of its arguments.
        returned: a value of the types it returns.
        results: the structure at the address, None if it returns nothing.
        builder: writes the next instruction.
        names: the addresses of its variables.
        outside: the meaning of other names.
    """

    def __init__(self, plain_function, arguments, module):
        self.function = function = plain_function.py_func
        self.returned = self.results = None
        kinds = [one.llvm.type for one in flat(arguments)]
        of_llvm = ir.FunctionType(ir.VoidType(), [BYTES, *kinds])
        self.llvm = ir.Function(module, of_llvm, module.get_unique_name(f"{module.name}.{function.__name__}"))
        self.llvm.linkage = "internal"
        self.builder = ir.IRBuilder(self.llvm.append_basic_block("entry"))
        self.outside, self.names, self.loops, self.depth = _names_outside(function), {}, [], 0
        self.end = self.llvm.append_basic_block("end")
        begin = self.builder.append_basic_block("begin")
        self.builder.branch(begin)  # stack memory is allocated before this block
        self.builder.position_at_end(begin)
        values = iter(self.llvm.args[1:])
        code = function.__code__
        if len(arguments) != code.co_argcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            raise NotPlain(f"{function.__qualname__} does not take {len(arguments)} arguments, all by position")
        for name, value in zip(code.co_varnames, arguments, strict=False):
            self.set_name(name, map_values(value, lambda one: RuntimeValue(one.type, next(values))))
        self.run(_body(function))
        if not self.builder.block.is_terminated:
            if self.results:
                raise NotPlain(f"{function.__qualname__} must return a value at its end, as it does elsewhere")
            self.builder.branch(self.end)
        ir.IRBuilder(self.end).ret_void()
        if plain_function.inlined:
            self.llvm.attributes.add("alwaysinline")
        elif len(self.llvm.blocks) > 3:  # inlining it would cost more compile time than it saves
            self.llvm.attributes.add("noinline")

    # -------------------------------------------------------------------------------------- statements
    def run(self, statements):
        """Write statements as far as they are reachable."""
        for statement in statements:
            if self.builder.block.is_terminated:
                return  # unreachable
            method = getattr(self, "run_" + type(statement).__name__, None) or self.refuse(statement)
            try:
                method(statement)
            except NotPlain:
                raise
            except Exception as error:
                self.refuse(statement, f"({type(error).__name__}: {error}) is not of the language of plain functions")

    def refuse(self, node, why="is not of the language of plain functions"):
        file = self.function.__code__.co_filename
        raise NotPlain(f"{file}:{getattr(node, 'lineno', '')}: {ast.unparse(node)!r} {why}, see numbarnn.compile.plain")

    def run_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.value(node.value)

    def run_Pass(self, node):
        """Write nothing."""

    def run_Assign(self, node):
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def run_AugAssign(self, node):
        self.assign(node.target, self.binary(node, self.value(node.target), self.value(node.value)))

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            self.set_name(target.id, value, target)
        elif isinstance(target, ast.Tuple):
            if isinstance(value, RuntimeValue) or len(target.elts) != len(value):
                self.refuse(target, f"has not as many names as there are values in {kind(value)}")
            for one, part in zip(target.elts, value, strict=True):
                self.assign(one, part)
        else:
            place = self.place(target)
            self.builder.store(self.cast(value, place.type, target).llvm, place.llvm)

    def set_name(self, name, value, node=None):
        value = given(value)
        if name not in self.names or kind(self.names[name]) != kind(value):
            if self.depth and name in self.names:
                self.refuse(node, f"has another type here, in a branch or loop: {kind(value)}")
            self.names[name] = map_values(
                value, lambda one: RuntimeValue(one.type, cgutils.alloca_once(self.builder, one.llvm.type, name=name))
            )
        for place, one in zip(flat(self.names[name]), flat(value), strict=True):
            self.builder.store(one.llvm, place.llvm)

    def run_Return(self, node):
        value = given(self.value(node.value)) if node.value else None
        if self.returned is None:
            self.returned, kinds = value, [one.llvm.type for one in flat(value)]
            self.results = ir.LiteralStructType(kinds) if kinds else None
        elif kind(value) != kind(self.returned):
            self.refuse(node, f"returns {kind(value)}, another return {kind(self.returned)}")
        if self.results:
            out = self.builder.bitcast(self.llvm.args[0], self.results.as_pointer())
            for number, one in enumerate(flat(value)):
                self.builder.store(one.llvm, self.builder.gep(out, _path(number)))
        self.builder.branch(self.end)

    def run_If(self, node):
        test = self.test(node.test)
        if isinstance(test, bool):
            return self.run(node.body if test else node.orelse)
        then, other, after = map(self.builder.append_basic_block, ("then", "else", "after"))
        self.builder.cbranch(test.llvm, then, other)
        self.depth += 1
        reached = False
        for block, statements in ((then, node.body), (other, node.orelse)):
            self.builder.position_at_end(block)
            self.run(statements)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
                reached = True
        self.depth -= 1
        self.builder.position_at_end(after)
        if not reached:
            self.builder.unreachable()

    def run_While(self, node):
        if node.orelse:
            self.refuse(node)
        self.loop(lambda: self.test(node.test), node.body, lambda: None)

    def run_For(self, node):
        loops_over = node.iter
        if node.orelse:
            self.refuse(node)
        if not isinstance(loops_over, ast.Call) or getattr(loops_over.func, "id", None) != "range":
            return self.unrolled(node)
        bounds = [self.value(one) for one in loops_over.args]
        start, stop, step = {1: lambda b: (0, *b, 1), 2: lambda b: (*b, 1), 3: tuple}[len(bounds)](bounds)
        down = isinstance(step, int) and step < 0
        at, end, step = (self.cast(one, types.intp, node.iter) for one in (start, stop, step))
        counter = cgutils.alloca_once(self.builder, at.llvm.type)
        self.builder.store(at.llvm, counter)

        def more():
            number = self.builder.load(counter)
            going = self.builder.icmp_signed(">" if down else "<", number, end.llvm)
            return RuntimeValue(types.boolean, going)

        def move_on():
            number = self.builder.add(self.builder.load(counter), step.llvm, flags=["nsw"])
            self.builder.store(number, counter)

        def begin():
            self.assign(node.target, RuntimeValue(types.intp, self.builder.load(counter)))

        self.loop(more, node.body, move_on, begin, known=isinstance(start, int) and isinstance(stop, int))

    def unrolled(self, node):
        """Write a loop over items known at compile time, with its body once per item."""
        after = self.builder.append_basic_block("after")
        for item in self.items(node.iter):
            following = self.builder.append_basic_block("next")
            self.loops.append((following, after))
            self.assign(node.target, item)
            self.run(node.body)
            if not self.builder.block.is_terminated:
                self.builder.branch(following)
            self.loops.pop()
            self.builder.position_at_end(following)
        self.builder.branch(after)
        self.builder.position_at_end(after)

    def loop(self, more, body, move_on, begin=lambda: None, known=False):
        """Write a loop. known: whether its number of iterations is known at compile time."""
        head, inside, following, after = map(self.builder.append_basic_block, ("head", "body", "next", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        test = more()
        if isinstance(test, bool):
            self.builder.branch(inside if test else after)
        else:
            self.builder.cbranch(test.llvm, inside, after)
        self.builder.position_at_end(inside)
        self.depth += 1
        self.loops.append((following, after))
        begin()
        self.run(body)
        if not self.builder.block.is_terminated:
            self.builder.branch(following)
        self.loops.pop()
        self.depth -= 1
        self.builder.position_at_end(following)
        move_on()
        again = self.builder.branch(head)
        if interleaved := getattr(self.builder.module, "interleaved", None):
            count, masked = (interleaved.known, False) if known else interleaved[1:]
            wishes = {"interleave.count": ir.IntType(32)(count), "vectorize.predicate.enable": ir.IntType(1)(masked)}
            again.set_metadata("llvm.loop", cgutils.loop_wishes(self.builder.module, wishes))
        self.builder.position_at_end(after)

    def run_Continue(self, node):
        self.builder.branch(self.loops[-1][0])

    def run_Break(self, node):
        self.builder.branch(self.loops[-1][1])

    # -------------------------------------------------------------------------------------- expressions
    def value(self, node):
        """Return the value of an expression: a `RuntimeValue`, a tuple, or an object known at compile time."""
        method = getattr(self, "value_of_" + type(node).__name__, None) or self.refuse(node)
        return method(node)

    def test(self, node):
        """Return an expression as a bool if it is known at compile time, else as a `RuntimeValue`."""
        value = self.value(node)
        return self.cast(value, types.boolean, node) if isinstance(value, RuntimeValue) else bool(value)

    def value_of_Constant(self, node):
        return node.value

    def value_of_Name(self, node):
        if node.id in self.names:
            return map_values(self.names[node.id], lambda one: RuntimeValue(one.type, self.builder.load(one.llvm)))
        if node.id not in self.outside:
            self.refuse(node, "has no value here")
        value = self.outside[node.id]
        return given(value) if isinstance(value, np.generic) else value

    def value_of_Tuple(self, node):
        return tuple(self.values(node.elts))

    def values(self, nodes):
        """Return the values of expressions. A starred expression contributes its parts."""
        values = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values += self.items(node.value)
            else:
                values.append(self.value(node))
        return values

    def items(self, node):
        """Return a loop's items known at compile time: a range of constants, a tuple, or `enumerate` of a tuple."""
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("range", "enumerate"):
            values = self.values(node.args)
            if any(isinstance(one, RuntimeValue) for one in values):
                self.refuse(node, "is not known at compile time")
            return list(range(*values) if node.func.id == "range" else enumerate(*values))
        value = self.value(node)
        if not isinstance(value, tuple) or isinstance(value, RuntimeValue):
            self.refuse(node)
        return list(value)

    def value_of_Attribute(self, node):
        value = self.value(node.value)
        if not isinstance(value, RuntimeValue):
            return getattr(value, node.attr)
        place = self.field(value, node.attr, node)
        return RuntimeValue(place.type, self.builder.load(place.llvm))

    def value_of_Subscript(self, node):
        value = self.value(node.value)
        if not isinstance(value, RuntimeValue):
            index = self.value(node.slice)
            if hasattr(value, "number_at"):
                return call_plain(type(value).number_at, [value, *index], self.builder)
            if not isinstance(index, int):
                self.refuse(node, "has an index that is not known at compile time")
            return value[index]
        place = self.place(node)
        return RuntimeValue(place.type, self.builder.load(place.llvm))

    def place(self, node):
        """Return the address of a field or of a number at a pointer."""
        value = self.value(node.value)
        if isinstance(node, ast.Attribute):
            return self.field(value, node.attr, node)
        if not isinstance(value, RuntimeValue) or not isinstance(value.type, types.CPointer):
            self.refuse(node)
        index = self.cast(self.value(node.slice), types.intp, node)
        return RuntimeValue(value.type.dtype, self.builder.gep(value.llvm, [index.llvm], inbounds=True))

    def field(self, value, name, node):
        if not isinstance(value.type, types.Record) or name not in value.type.fields:
            self.refuse(node, f"is no field of {value.type}")
        place = self.builder.gep(value.llvm, [ir.IntType(64)(value.type.fields[name])], inbounds=True)
        return RuntimeValue(types.int64, self.builder.bitcast(place, types.int64.llvm.as_pointer()))

    def value_of_BinOp(self, node):
        return self.binary(node, self.value(node.left), self.value(node.right))

    def binary(self, node, a, b):
        kind, builder = type(node.op), self.builder
        if not isinstance(a, RuntimeValue) and not isinstance(b, RuntimeValue):
            return _OPERATORS[kind](a, b)
        a, b = self.alike(a, b, node)
        if isinstance(a.type, types.Float):
            instruction = _ON_FLOATS.get(kind) or self.refuse(node)
        elif kind in _ON_INTEGERS:
            instruction = _ON_INTEGERS[kind]
        elif kind is ast.RShift:
            instruction = "ashr" if a.type.signed else "lshr"
        elif kind in (ast.FloorDiv, ast.Mod):
            return RuntimeValue(a.type, self.divided(a, b, kind is ast.Mod))
        else:
            self.refuse(node)
        return RuntimeValue(a.type, getattr(builder, instruction)(a.llvm, b.llvm))

    def divided(self, a, b, remainder):
        """Return a // b or a % b of integers, rounded down as in Python."""
        builder, signed = self.builder, a.type.signed
        quotient = (builder.sdiv if signed else builder.udiv)(a.llvm, b.llvm)
        rest = (builder.srem if signed else builder.urem)(a.llvm, b.llvm)
        if not signed:
            return rest if remainder else quotient
        zero = rest.type(0)
        other_sign = builder.icmp_signed("<", builder.xor(rest, b.llvm), zero)
        down = builder.and_(builder.icmp_signed("!=", rest, zero), other_sign)
        if remainder:
            return builder.select(down, builder.add(rest, b.llvm), rest)
        return builder.sub(quotient, builder.zext(down, quotient.type))

    def value_of_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            test = self.test(node.operand)
            return not test if isinstance(test, bool) else RuntimeValue(types.boolean, self.builder.not_(test.llvm))
        value = self.value(node.operand)
        if not isinstance(node.op, ast.USub):
            self.refuse(node)
        return self.negative(value) if isinstance(value, RuntimeValue) else -value

    def negative(self, value):
        negative = self.builder.fneg if isinstance(value.type, types.Float) else self.builder.neg
        return RuntimeValue(value.type, negative(value.llvm))

    def value_of_Compare(self, node):
        values, result = [self.value(one) for one in (node.left, *node.comparators)], True
        for compares, a, b in zip(node.ops, values[:-1], values[1:], strict=True):
            one = self.compared(node, _COMPARISONS.get(type(compares)) or self.refuse(node), a, b)
            result = one if result is True else RuntimeValue(types.boolean, self.builder.and_(result.llvm, one.llvm))
        return result

    def compared(self, node, comparison, a, b):
        a, b = self.alike(given(a), given(b), node)
        if isinstance(a.type, types.Float):
            compare = self.builder.fcmp_unordered if comparison == "!=" else self.builder.fcmp_ordered
        else:
            signed = a.type is not types.boolean and a.type.signed
            compare = self.builder.icmp_signed if signed else self.builder.icmp_unsigned
        return RuntimeValue(types.boolean, compare(comparison, a.llvm, b.llvm))

    def value_of_BoolOp(self, node):
        """Return `and` or `or` of bools, which computes later operands only if they matter."""
        first, *others = node.values
        for other in others:
            rest, ends = ast.Constant(isinstance(node.op, ast.Or)), isinstance(node.op, ast.Or)
            first = ast.IfExp(first, rest, other) if ends else ast.IfExp(first, other, rest)
        return self.value_of_IfExp(first, self.test)

    def value_of_IfExp(self, node, value=None):
        value, test = value or self.value, self.test(node.test)
        if isinstance(test, bool):
            return value(node.body if test else node.orelse)
        if isinstance(node.body, ast.Name) and isinstance(node.orelse, ast.Name):
            a, b = given(value(node.body)), given(value(node.orelse))
            if isinstance(a, RuntimeValue) and isinstance(b, RuntimeValue):  # two variables need no branches
                common = self.common(a, b, node)
                a, b = (self.cast(one, common, node).llvm for one in (a, b))
                return RuntimeValue(common, self.builder.select(test.llvm, a, b))
        then, other, after = map(self.builder.append_basic_block, ("then", "else", "after"))
        self.builder.cbranch(test.llvm, then, other)
        branches = []
        for block, one in ((then, node.body), (other, node.orelse)):
            self.builder.position_at_end(block)
            branches.append((given(value(one)), self.builder.block))
        (a, after_a), (b, after_b) = branches
        joined = []
        for one, other in zip(flat(a), flat(b), strict=True):
            common, pair = self.common(one, other, node), []
            for part, block in ((one, after_a), (other, after_b)):
                self.builder.position_at_end(block)
                pair.append((self.cast(part, common, node).llvm, block))
            joined.append((common, pair))
        for block in (after_a, after_b):
            self.builder.position_at_end(block)
            self.builder.branch(after)
        self.builder.position_at_end(after)
        values = iter([self.either(*one) for one in joined])
        return map_values(a, lambda one: next(values))

    def either(self, type_, pairs):
        """Return the value that belongs to the block before, from pairs (value, block)."""
        value = self.builder.phi(pairs[0][0].type)
        for one in pairs:
            value.add_incoming(*one)
        return RuntimeValue(type_, value)

    # -------------------------------------------------------------------------------------- calls
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
            return call_plain(function, arguments, self.builder)
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
            if not isinstance(arguments[0], RuntimeValue):
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
        return isinstance(value, RuntimeValue) and isinstance(value.type, types.Float)

    def tuple_of(self, node):
        """Return tuple(expression for name in items known at compile time)."""
        (generator,) = node.args
        if not isinstance(generator, ast.GeneratorExp) or len(generator.generators) > 1 or generator.generators[0].ifs:
            self.refuse(node)
        items, (part,) = [], generator.generators
        for item in self.items(part.iter):
            self.assign(part.target, item)
            items.append(self.value(generator.elt))
        return tuple(items)

    def view(self, node):
        """Return x.view(type), the same bits as another type."""
        value, (wanted,) = self.value(node.func.value), self.values(node.args)
        if not isinstance(value, RuntimeValue) or not isinstance(wanted, type) or not issubclass(wanted, np.generic):
            self.refuse(node)
        wanted = from_dtype(np.dtype(wanted))
        if value.type.bitwidth != wanted.bitwidth:
            self.refuse(node, f"looks at {value.type} as {wanted}, of another size,")
        return RuntimeValue(wanted, self.builder.bitcast(value.llvm, wanted.llvm))

    def of_math(self, name, arguments, node):
        """Return a function of `math` for numbers of one dtype."""
        if not all(map(self.is_float, arguments)) or len({one.type for one in arguments}) > 1:
            self.refuse(node, "is not of numbers of one dtype, which")
        (first, *_), kinds = arguments, [one.llvm.type for one in arguments]
        if name == "fmod":  # loops around an instruction are vectorized, loops around a call are not
            return RuntimeValue(first.type, self.builder.frem(*(one.llvm for one in arguments)))
        of_llvm, module = ir.FunctionType(kinds[0], kinds), self.builder.module
        if name in _OF_LLVM:
            function = module.declare_intrinsic(f"llvm.{name}", kinds[:1], of_llvm)
        elif name in _OF_C:
            function = cgutils.get_or_insert_function(module, of_llvm, name + "f" * (first.type == types.float32))
        else:
            self.refuse(node)
        return RuntimeValue(first.type, self.builder.call(function, [one.llvm for one in arguments]))

    def smaller(self, a, b, comparison, node):
        if not isinstance(a, RuntimeValue) and not isinstance(b, RuntimeValue):
            return (min if comparison == "<" else max)(a, b)
        a, b = self.alike(a, b, node)
        return RuntimeValue(a.type, self.builder.select(self.compared(node, comparison, a, b).llvm, a.llvm, b.llvm))

    def external(self, function, arguments, node):
        """Call a function of another library."""
        kinds, result = function.sig.args, function.sig.return_type
        of_llvm = ir.FunctionType(result.llvm, [one.llvm for one in kinds])
        symbol = cgutils.get_or_insert_function(self.builder.module, of_llvm, function.symbol)
        operands = [self.cast(one, kind, node).llvm for one, kind in zip(arguments, kinds, strict=True)]
        value = self.builder.call(symbol, operands)
        return None if result == types.void else RuntimeValue(result, value)

    def intrinsic(self, function, arguments, node):
        """Return the value whose instructions an intrinsic writes."""
        values = [
            RuntimeValue(types.none, ir.Constant(BYTES, None)) if one is None else given(one) for one in arguments
        ]
        kinds = [types.IntegerLiteral(a) if type(a) is int else kind(b) for a, b in zip(arguments, values, strict=True)]
        signature, generate = function.py_func(None, *kinds)
        values = [self.cast(one, kind, node) for one, kind in zip(values, signature.args, strict=True)]
        value = generate(_CONTEXT, self.builder, signature, [one.llvm for one in values])
        return None if signature.return_type == types.void else RuntimeValue(signature.return_type, value)

    # -------------------------------------------------------------------------------------- types
    def common(self, a, b, node):
        """Return the type that two values can both have."""
        if not isinstance(a, RuntimeValue) or not isinstance(b, RuntimeValue):
            self.refuse(node, "has values that are no numbers")
        if a.type == b.type:
            return a.type
        small = [one.type is types.boolean or one.type == types.intp or one.type.bitwidth < 64 for one in (a, b)]
        integers = all(isinstance(one.type, types.Integer | types.Boolean) for one in (a, b))
        if not integers or not all(small):
            self.refuse(node, f"mixes {a.type} and {b.type}")
        return types.intp

    def alike(self, a, b, node):
        """Return two numbers as one type. Constant integers take the other's type, and bools count as integers."""
        if isinstance(a, RuntimeValue) and isinstance(a.type, types.Integer) and type(b) is int:
            return a, RuntimeValue(a.type, a.llvm.type(b))
        if isinstance(b, RuntimeValue) and isinstance(b.type, types.Integer) and type(a) is int:
            return RuntimeValue(b.type, b.llvm.type(a)), b
        a, b = given(a), given(b)
        common = self.common(a, b, node)
        if common is types.boolean and not isinstance(node, ast.Compare):
            common = types.intp
        return self.cast(a, common, node), self.cast(b, common, node)

    def cast(self, value, type_, node):
        """Return a number as another type."""
        value, builder = given(value), self.builder
        if not isinstance(value, RuntimeValue):
            self.refuse(node, "is no number")
        if value.type == type_:
            return value
        source, wanted = value.type, type_.llvm
        numbers = types.Integer | types.Boolean | types.Float
        if not isinstance(source, numbers) or not isinstance(type_, numbers):
            self.refuse(node, f"is of {source}, where {type_} is needed")
        signed = source is not types.boolean and getattr(source, "signed", True)
        if type_ is types.boolean:
            zero = ir.Constant(value.llvm.type, 0)
            change = builder.fcmp_unordered if isinstance(source, types.Float) else builder.icmp_unsigned
            return RuntimeValue(type_, change("!=", value.llvm, zero))
        if isinstance(source, types.Float):
            change = builder.fptosi if not isinstance(type_, types.Float) else None
            change = change or (builder.fpext if source.bitwidth < type_.bitwidth else builder.fptrunc)
        elif isinstance(type_, types.Float):
            change = builder.sitofp if signed else builder.uitofp
        elif value.llvm.type.width < wanted.width:
            change = builder.sext if signed else builder.zext
        else:
            change = builder.trunc if value.llvm.type.width > wanted.width else builder.bitcast
        return RuntimeValue(type_, change(value.llvm, wanted))
