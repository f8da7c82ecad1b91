"""Plain functions and their statements: what LLVM's instructions are for them; see `plain`."""

import ast
import builtins
import inspect
import linecache
from collections import ChainMap
from functools import cache

from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.expressions import Expressions
from numbarnn.compile.values import BYTES, Refused, Value, flat, given, kind, with_each

# Rewrites that keep NaN and infinity and the order of sums: contraction to FMA, reciprocals, no signed zeros.
FAST_MATH = ("contract", "nsz", "arcp", "afn")


def call(function, arguments, builder):
    """Call a plain function, which is compiled first, once per module and types of its arguments; returns its value."""
    arguments, module = tuple(map(given, arguments)), builder.module
    known = module.__dict__.setdefault("plain_functions", {})
    key = function, kind(arguments)
    if key not in known:
        functions, others = dict(module.globals), dict(known)
        try:
            known[key] = _Function(function, arguments, module)
        except Refused:
            if not function.scalar:
                raise
            module.globals = functions  # without what was written of it, and of those that it calls
            known.clear()  # who called it writes into the same dict
            known.update(others)
            known[key] = None
    called = known[key]
    if called is None:
        from numbarnn.compile import with_numba  # half a second, which others do without

        return with_numba.call(function.py_func, arguments, builder, FAST_MATH)
    place = cgutils.alloca_once(builder, called.results) if called.results else ir.Constant(BYTES, None)
    builder.call(called.llvm, [builder.bitcast(place, BYTES), *(one.llvm for one in flat(arguments))])
    numbers = iter(range(len(flat(called.returned))))
    return with_each(
        called.returned, lambda one: Value(one.type, builder.load(builder.gep(place, _path(next(numbers)))))
    )


def _path(number):
    """To a member of a structure."""
    return [ir.IntType(32)(0), ir.IntType(32)(number)]


@cache
def _definitions(file):
    """The functions that a file in `linecache` defines: their syntax trees, by the lines where they begin."""
    nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {min(one.lineno for one in (node, *node.decorator_list)): node for node in functions}


def _body(function):
    """The statements of a function."""
    code = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)  # the file may be within a zip
    node = _definitions(code.co_filename).get(code.co_firstlineno)
    if node is None or node.name != code.co_name:
        raise Refused(f"{code.co_filename}:{code.co_firstlineno}: there is no source of {function.__qualname__}")
    return node.body


@cache
def _names_outside(function):
    """What names mean that a function does not define."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in closure}
    return ChainMap(inside, function.__globals__, vars(builtins))


class _Function(Expressions):
    """A plain function, compiled for types of arguments.

    Attributes:
        llvm: the function: of the address of its results, and of its arguments.
        returned: a value of the types it returns. results: the structure at the address, None if it returns nothing.
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
        self.builder.branch(begin)  # what comes before are places in memory
        self.builder.position_at_end(begin)
        values = iter(self.llvm.args[1:])
        code = function.__code__
        if len(arguments) != code.co_argcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
            raise Refused(f"{function.__qualname__} does not take {len(arguments)} arguments, all by position")
        for name, value in zip(code.co_varnames, arguments, strict=False):
            self.set_name(name, with_each(value, lambda one: Value(one.type, next(values))))
        self.run(_body(function))
        if not self.builder.block.is_terminated:
            if self.results:
                raise Refused(f"{function.__qualname__} must return a value at its end, as it does elsewhere")
            self.builder.branch(self.end)
        ir.IRBuilder(self.end).ret_void()
        if plain_function.inlined:
            self.llvm.attributes.add("alwaysinline")
        elif len(self.llvm.blocks) > 3:  # copies of it in those that call it take LLVM longer than they save
            self.llvm.attributes.add("noinline")

    def call(self, function, arguments):
        return call(function, arguments, self.builder)

    # -------------------------------------------------------------------------------------- statements
    def run(self, statements):
        """Write statements, as far as they are reached."""
        for statement in statements:
            if self.builder.block.is_terminated:
                return  # nothing comes here
            method = getattr(self, "run_" + type(statement).__name__, None) or self.refuse(statement)
            try:
                method(statement)
            except Refused:
                raise
            except Exception as error:  # of what was not foreseen
                self.refuse(statement, f"({type(error).__name__}: {error}) is not of the language of plain functions")

    def refuse(self, node, why="is not of the language of plain functions"):
        file = self.function.__code__.co_filename
        raise Refused(f"{file}:{getattr(node, 'lineno', '')}: {ast.unparse(node)!r} {why}, see numbarnn.compile.plain")

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
            if isinstance(value, Value) or len(target.elts) != len(value):
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
        if node.orelse:
            self.refuse(node)
        if not isinstance(call, ast.Call) or getattr(call.func, "id", None) != "range":
            return self.unrolled(node)
        bounds = [self.value(one) for one in call.args]
        start, stop, step = {1: lambda b: (0, *b, 1), 2: lambda b: (*b, 1), 3: tuple}[len(bounds)](bounds)
        down = isinstance(step, int) and step < 0
        at, end, step = (self.cast(one, types.intp, node.iter) for one in (start, stop, step))
        counter = cgutils.alloca_once(self.builder, at.llvm.type)
        self.builder.store(at.llvm, counter)

        def more():
            number = self.builder.load(counter)
            going = self.builder.icmp_signed(">" if down else "<", number, end.llvm)
            return Value(types.boolean, going)

        def move_on():
            number = self.builder.add(self.builder.load(counter), step.llvm, flags=["nsw"])
            self.builder.store(number, counter)

        def begin():
            self.assign(node.target, Value(types.intp, self.builder.load(counter)))

        self.loop(more, node.body, move_on, begin, known=isinstance(start, int) and isinstance(stop, int))

    def unrolled(self, node):
        """A loop through what is known when compiling: its body once for each item."""
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
        """A loop; `known`: whether its number of turns is known when compiling."""
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
            how = (interleaved.known,) if known else (interleaved.others, interleaved.masked)
            again.set_metadata("llvm.loop", cgutils.interleaved_loop(self.builder.module, *how))
        self.builder.position_at_end(after)

    def run_Continue(self, node):
        self.builder.branch(self.loops[-1][0])

    def run_Break(self, node):
        self.builder.branch(self.loops[-1][1])
