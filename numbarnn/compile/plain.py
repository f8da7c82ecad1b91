"""Compiles plain functions to LLVM: those of the CPU engine that know numbers, addresses and records alone.

Numba takes about a tenth of a second for each function, most of it to find out the types of its values, and the
engine's loops are some seventy functions. Here the types follow from those of the arguments, statement by statement, so
that a function takes a few milliseconds. Numba compiles the doors alone, by which others call a plain function
(`door`), and gets the functions behind them as parts.

What a plain function may consist of:
- assignments, also to several names at once; `if`, `while`, `for` over a `range` (a step that is no constant must be
  positive), `break`, `continue`, `return`;
- integers (as in C: int64, whatever overflows), bools, numbers of one dtype, which do not mix with integers; tuples and
  NamedTuples; fields of records; numbers at pointers;
- arithmetic, comparisons, `a if b else c`, `and`, `or`, `not`, min, max, abs, int;
- calls, by position, of plain functions, of Numba's intrinsics, which write instructions of their own, and of its
  external functions. Names from outside the function are constants.

A name has the type of what is first assigned to it; outside of branches and loops it may get another one.
"""

import ast
import builtins
import inspect
import textwrap
from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numbarnn.compile.expressions import BYTES, Expressions, Value, flat, given, kind, with_each


def plain(function):
    """`function` for other plain functions, and for those of `numba.njit`.

    To the latter it returns nothing, or a tuple of the Numba type that is its annotation.
    """
    returned = inspect.get_annotations(function).get("return", types.void)

    def define(typing_context, *arguments):
        def generate(context, builder, signature, values):
            arguments = [Value(*pair) for pair in zip(signature.args, values, strict=True)]
            value = _call(function, arguments, context, builder)
            if [one.type for one in flat(value)] != list(() if returned == types.void else returned):
                raise TypeError(f"{function.__qualname__} returns {kind(value)}, which its annotation does not say")
            if returned == types.void:
                return context.get_dummy_value()
            return context.make_tuple(builder, returned, [one.llvm for one in value])

        return returned(*map(types.unliteral, arguments)), generate

    parameters = inspect.signature(function).parameters.values()
    context = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    define.__signature__ = inspect.Signature([context, *parameters])
    define.__name__, define.__qualname__ = function.__name__, function.__qualname__
    define.__module__, define.__doc__ = function.__module__, function.__doc__
    made = intrinsic(define)
    made.py_func = function
    return made


def door(function):
    """A function for `numba.njit` that calls the plain `function`."""
    code = function.__code__
    names = ", ".join(code.co_varnames[: code.co_argcount])
    namespace = {"plain_function": plain(function), "__name__": function.__module__}
    exec(f"def {function.__name__}({names}): return plain_function({names})", namespace)
    made = namespace[function.__name__]
    # Numba names the files of its cache by these.
    made.__code__ = made.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    return made


@cache
def _tree(function):
    """The syntax tree of a function's definition."""
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


@cache
def _names_outside(function):
    """What names mean that a function does not define."""
    return {**vars(builtins), **function.__globals__, **inspect.getclosurevars(function).nonlocals}


# ------------------------------------------------------------------------------------------ functions
def _call(function, arguments, context, builder):
    """Call a plain function, which is compiled first, once per module and types of its arguments; returns its value."""
    arguments, module = tuple(map(given, arguments)), builder.module
    known = module.__dict__.setdefault("plain_functions", {})
    key = function, kind(arguments)
    if key not in known:
        known[key] = _Function(function, arguments, context, module, len(known))
    called = known[key]
    place = cgutils.alloca_once(builder, called.results) if called.results else ir.Constant(BYTES, None)
    builder.call(called.llvm, [builder.bitcast(place, BYTES), *(one.llvm for one in flat(arguments))])
    numbers = iter(range(len(flat(called.returned))))
    return with_each(
        called.returned, lambda one: Value(one.type, builder.load(builder.gep(place, _path(next(numbers)))))
    )


def _path(number):
    """To a member of a structure."""
    return [ir.IntType(32)(0), ir.IntType(32)(number)]


class _Function(Expressions):
    """A plain function, compiled for types of arguments.

    Attributes:
        llvm: the function: of the address of its results, and of its arguments.
        returned: a value of the types it returns. results: the structure at the address, None if it returns nothing.
    """

    def __init__(self, function, arguments, context, module, number):
        self.function, self.context, self.returned, self.results = function, context, None, None
        kinds = [one.llvm.type for one in flat(arguments)]
        of_llvm = ir.FunctionType(ir.VoidType(), [BYTES, *kinds])
        self.llvm = ir.Function(module, of_llvm, f"{module.name}.{function.__name__}.{number}")
        self.llvm.linkage = "internal"
        self.builder = ir.IRBuilder(self.llvm.append_basic_block("entry"))
        self.outside, self.names, self.loops, self.depth = _names_outside(function), {}, [], 0
        self.end = self.llvm.append_basic_block("end")
        begin = self.builder.append_basic_block("begin")
        self.builder.branch(begin)  # what comes before are places in memory
        self.builder.position_at_end(begin)
        values = iter(self.llvm.args[1:])
        for name, value in zip(inspect.signature(function).parameters, arguments, strict=True):
            self.set_name(name, with_each(value, lambda one: Value(one.type, next(values))))
        self.run(_tree(function).body)
        if not self.builder.block.is_terminated:
            if self.results:
                raise TypeError(f"{function.__qualname__} must return a value at its end, as it does elsewhere")
            self.builder.branch(self.end)
        ir.IRBuilder(self.end).ret_void()
        if len(self.llvm.blocks) > 3:  # copies of it in those that call it take LLVM longer than they save
            self.llvm.attributes.add("noinline")

    def call(self, function, arguments):
        return _call(function, arguments, self.context, self.builder)

    # -------------------------------------------------------------------------------------- statements
    def run(self, statements):
        """Write statements, as far as they are reached."""
        for statement in statements:
            if self.builder.block.is_terminated:
                return  # nothing comes here
            method = getattr(self, "run_" + type(statement).__name__, None) or self.refuse(statement)
            method(statement)

    def refuse(self, node, why="is not of the language of plain functions"):
        code = self.function.__code__
        line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
        raise TypeError(f"{code.co_filename}:{line}: {ast.unparse(node)!r} {why}, see numbarnn.compile.plain")

    def run_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.value(node.value)

    def run_Pass(self, node):
        """Nothing."""

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
            if len(target.elts) != len(value):
                self.refuse(target, f"has not as many names as there are values, {len(value)}")
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
            self.names[name] = with_each(
                value, lambda one: Value(one.type, cgutils.alloca_once(self.builder, one.llvm.type, name=name))
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
        call = node.iter
        if not isinstance(call, ast.Call) or getattr(call.func, "id", None) != "range" or node.orelse:
            self.refuse(node.iter)
        bounds = [self.value(one) for one in call.args]
        start, stop, step = {1: lambda b: (0, *b, 1), 2: lambda b: (*b, 1), 3: tuple}[len(bounds)](bounds)
        down = isinstance(step, int) and step < 0
        at, stop, step = (self.cast(one, types.intp, node.iter) for one in (start, stop, step))
        counter = cgutils.alloca_once(self.builder, at.llvm.type)
        self.builder.store(at.llvm, counter)

        def more():
            number = self.builder.load(counter)
            going = self.builder.icmp_signed(">" if down else "<", number, stop.llvm)
            return Value(types.boolean, going)

        def move_on():
            number = self.builder.add(self.builder.load(counter), step.llvm, flags=["nsw"])
            self.builder.store(number, counter)

        target = node.target
        self.loop(more, node.body, move_on, lambda: self.assign(target, Value(types.intp, self.builder.load(counter))))

    def loop(self, more, body, move_on, begin=lambda: None):
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
        self.builder.branch(head)
        self.builder.position_at_end(after)

    def run_Continue(self, node):
        self.builder.branch(self.loops[-1][0])

    def run_Break(self, node):
        self.builder.branch(self.loops[-1][1])
