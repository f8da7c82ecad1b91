"""Expressions of plain functions: what LLVM's instructions are for them; see `plain`."""

import ast
import operator

import numpy as np
from llvmlite import ir

from numbarnn.compile import types
from numbarnn.compile.calls import Calls
from numbarnn.compile.values import Value, flat, given, with_each

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


class Expressions(Calls):
    """Writes the expressions of a function.

    Attributes:
        builder: writes instructions, where it stands.
        names: the places of its variables. outside: what other names mean.
        call: f(function, arguments), a call of another plain function. refuse: raises an error about a node.
    """

    def value(self, node):
        """The value of an expression: a `Value`, a tuple, or something that is known when compiling."""
        method = getattr(self, "value_of_" + type(node).__name__, None) or self.refuse(node)
        return method(node)

    def test(self, node):
        """An expression as a bool: one that is known, or a `Value`."""
        value = self.value(node)
        return self.cast(value, types.boolean, node) if isinstance(value, Value) else bool(value)

    def value_of_Constant(self, node):
        return node.value

    def value_of_Name(self, node):
        if node.id in self.names:
            return with_each(self.names[node.id], lambda one: Value(one.type, self.builder.load(one.llvm)))
        if node.id not in self.outside:
            self.refuse(node, "has no value here")
        value = self.outside[node.id]
        return given(value) if isinstance(value, np.generic) else value

    def value_of_Tuple(self, node):
        return tuple(self.values(node.elts))

    def values(self, nodes):
        """The values of expressions, of starred ones those of their parts."""
        found = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self.items(node.value)
            else:
                found.append(self.value(node))
        return found

    def items(self, node):
        """What a loop goes through, if that is known when compiling: a range of constants, a tuple, `enumerate` of
        it."""
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("range", "enumerate"):
            values = self.values(node.args)
            if any(isinstance(one, Value) for one in values):
                self.refuse(node, "is not known when compiling")
            return list(range(*values) if node.func.id == "range" else enumerate(*values))
        value = self.value(node)
        if not isinstance(value, tuple) or isinstance(value, Value):
            self.refuse(node)
        return list(value)

    def value_of_Attribute(self, node):
        value = self.value(node.value)
        if not isinstance(value, Value):
            return getattr(value, node.attr)
        place = self.field(value, node.attr, node)
        return Value(place.type, self.builder.load(place.llvm))

    def value_of_Subscript(self, node):
        value = self.value(node.value)
        if not isinstance(value, Value):
            index = self.value(node.slice)
            if hasattr(value, "number_at"):
                return self.call(type(value).number_at, [value, *index])
            if not isinstance(index, int):
                self.refuse(node, "has an index that is not known when compiling")
            return value[index]
        place = self.place(node)
        return Value(place.type, self.builder.load(place.llvm))

    def place(self, node):
        """Where a field or a number at a pointer stands."""
        value = self.value(node.value)
        if isinstance(node, ast.Attribute):
            return self.field(value, node.attr, node)
        if not isinstance(value, Value) or not isinstance(value.type, types.CPointer):
            self.refuse(node)
        index = self.cast(self.value(node.slice), types.intp, node)
        return Value(value.type.dtype, self.builder.gep(value.llvm, [index.llvm], inbounds=True))

    def field(self, value, name, node):
        if not isinstance(value.type, types.Record) or name not in value.type.fields:
            self.refuse(node, f"is no field of {value.type}")
        place = self.builder.gep(value.llvm, [ir.IntType(64)(value.type.fields[name])], inbounds=True)
        return Value(types.int64, self.builder.bitcast(place, types.int64.llvm.as_pointer()))

    def value_of_BinOp(self, node):
        return self.binary(node, self.value(node.left), self.value(node.right))

    def binary(self, node, a, b):
        kind, builder = type(node.op), self.builder
        if not isinstance(a, Value) and not isinstance(b, Value):
            return _OPERATORS[kind](a, b)
        a, b = self.alike(a, b, node)
        if isinstance(a.type, types.Float):
            instruction = _ON_FLOATS.get(kind) or self.refuse(node)
        elif kind in _ON_INTEGERS:
            instruction = _ON_INTEGERS[kind]
        elif kind is ast.RShift:
            instruction = "ashr" if a.type.signed else "lshr"
        elif kind in (ast.FloorDiv, ast.Mod):
            return Value(a.type, self.divided(a, b, kind is ast.Mod))
        else:
            self.refuse(node)
        return Value(a.type, getattr(builder, instruction)(a.llvm, b.llvm))

    def divided(self, a, b, remainder):
        """a // b or a % b of integers, rounded down as in Python."""
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
            return not test if isinstance(test, bool) else Value(types.boolean, self.builder.not_(test.llvm))
        value = self.value(node.operand)
        if not isinstance(node.op, ast.USub):
            self.refuse(node)
        return self.negative(value) if isinstance(value, Value) else -value

    def negative(self, value):
        negative = self.builder.fneg if isinstance(value.type, types.Float) else self.builder.neg
        return Value(value.type, negative(value.llvm))

    def value_of_Compare(self, node):
        values, result = [self.value(one) for one in (node.left, *node.comparators)], True
        for kind, a, b in zip(node.ops, values[:-1], values[1:], strict=True):
            one = self.compared(node, _COMPARISONS.get(type(kind)) or self.refuse(node), a, b)
            result = one if result is True else Value(types.boolean, self.builder.and_(result.llvm, one.llvm))
        return result

    def compared(self, node, comparison, a, b):
        a, b = self.alike(given(a), given(b), node)
        if isinstance(a.type, types.Float):
            compare = self.builder.fcmp_unordered if comparison == "!=" else self.builder.fcmp_ordered
        else:
            signed = a.type is not types.boolean and a.type.signed
            compare = self.builder.icmp_signed if signed else self.builder.icmp_unsigned
        return Value(types.boolean, compare(comparison, a.llvm, b.llvm))

    def value_of_BoolOp(self, node):
        """`and` and `or` of bools: what follows is computed only where it counts."""
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
            if isinstance(a, Value) and isinstance(b, Value):  # nothing to compute: no need of branches
                common = self.common(a, b, node)
                a, b = (self.cast(one, common, node).llvm for one in (a, b))
                return Value(common, self.builder.select(test.llvm, a, b))
        then, other, after = map(self.builder.append_basic_block, ("then", "else", "after"))
        self.builder.cbranch(test.llvm, then, other)
        found = []
        for block, one in ((then, node.body), (other, node.orelse)):
            self.builder.position_at_end(block)
            found.append((given(value(one)), self.builder.block))
        (a, after_a), (b, after_b) = found
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
        return with_each(a, lambda one: next(values))

    def either(self, type_, pairs):
        """The value of that block of (value, block) from which one comes."""
        value = self.builder.phi(pairs[0][0].type)
        for one in pairs:
            value.add_incoming(*one)
        return Value(type_, value)

    # -------------------------------------------------------------------------------------- types
    def common(self, a, b, node):
        """The type that two values can both have."""
        if not isinstance(a, Value) or not isinstance(b, Value):
            self.refuse(node, "has values that are no numbers")
        if a.type == b.type:
            return a.type
        small = [one.type is types.boolean or one.type == types.intp or one.type.bitwidth < 64 for one in (a, b)]
        integers = all(isinstance(one.type, types.Integer | types.Boolean) for one in (a, b))
        if not integers or not all(small):
            self.refuse(node, f"mixes {a.type} and {b.type}")
        return types.intp

    def alike(self, a, b, node):
        """Two numbers as the same type; integers that are constants take the other's; bools count as integers."""
        if isinstance(a, Value) and isinstance(a.type, types.Integer) and type(b) is int:
            return a, Value(a.type, a.llvm.type(b))
        if isinstance(b, Value) and isinstance(b.type, types.Integer) and type(a) is int:
            return Value(b.type, b.llvm.type(a)), b
        a, b = given(a), given(b)
        common = self.common(a, b, node)
        if common is types.boolean and not isinstance(node, ast.Compare):
            common = types.intp
        return self.cast(a, common, node), self.cast(b, common, node)

    def cast(self, value, type_, node):
        """A number as another type."""
        value, builder = given(value), self.builder
        if not isinstance(value, Value):
            self.refuse(node, "is no number")
        if value.type == type_:
            return value
        own, wanted = value.type, type_.llvm
        numbers = types.Integer | types.Boolean | types.Float
        if not isinstance(own, numbers) or not isinstance(type_, numbers):
            self.refuse(node, f"is of {own}, where {type_} is needed")
        signed = own is not types.boolean and getattr(own, "signed", True)
        if type_ is types.boolean:
            zero = ir.Constant(value.llvm.type, 0)
            change = builder.fcmp_unordered if isinstance(own, types.Float) else builder.icmp_unsigned
            return Value(type_, change("!=", value.llvm, zero))
        if isinstance(own, types.Float):
            change = builder.fptosi if not isinstance(type_, types.Float) else None
            change = change or (builder.fpext if own.bitwidth < type_.bitwidth else builder.fptrunc)
        elif isinstance(type_, types.Float):
            change = builder.sitofp if signed else builder.uitofp
        elif value.llvm.type.width < wanted.width:
            change = builder.sext if signed else builder.zext
        else:
            change = builder.trunc if value.llvm.type.width > wanted.width else builder.bitcast
        return Value(type_, change(value.llvm, wanted))
