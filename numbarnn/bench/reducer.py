"""Reduce a kernel's syntax tree to what the constants around it leave: for `numbarnn kernels --source`.

In the tree a comment is a statement, a call of `_above` or `_beside`; `_above('')` is a blank line.
"""

import ast
import inspect
from collections import Counter

PLAIN = (ast.Name, ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp)
PURE = (*PLAIN, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.keyword)
PARTS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
PURE_CALLS = ("cuda.local.array", "cuda.shared.array", "range", "len", "min", "max")  # besides types
UNKNOWN = object()


def outside(function):
    """Return the values that a function finds outside itself, by name."""
    found = inspect.getclosurevars(function)
    values = {**found.builtins, **found.globals, **found.nonlocals}
    return {name: value for name, value in values.items() if name not in function.__code__.co_varnames}


def pairs(node):
    """Return an assignment's targets with their values: (a, x), (b, y) of a, b = x, y."""
    if not isinstance(node, ast.Assign) or len(node.targets) > 1:
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return zip(target.elts, value.elts, strict=True)
    return [(target, value)]


class Reducer(ast.NodeTransformer):
    """Decide conditions by known values; drop dead branches, and assignments to names that nothing reads."""

    def __init__(self, function, tree):
        nodes, (body, arguments) = list(ast.walk(tree)), (tree.body[0].body, inspect.signature(function).parameters)
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self.read = Counter(name.id for name in names if isinstance(name.ctx, ast.Load))
        self.read.update(ast.unparse(node.target) for node in nodes if isinstance(node, ast.AugAssign))
        stored = [*arguments, *(name.id for name in names if isinstance(name.ctx, ast.Store))]
        self.outside, self.same = {name: v for name, v in outside(function).items() if name not in stored}, {}
        constant = (bool, int, float, str, type(None))
        self.known = {
            name: v for name, v in self.outside.items() if isinstance(v, constant) or (isinstance(v, tuple) and not v)
        }
        for target, value in (pair for node in body for pair in pairs(node)):  # names for one value all along
            if isinstance(target, ast.Name) and stored.count(target.id) == 1:
                alias = isinstance(value, ast.Name) and stored.count(value.id) <= 1
                if alias or ast.unparse(value) in ("()", "True", "False"):
                    self.same[target.id] = value

    def generic_visit(self, node):
        for field, value in ast.iter_fields(node):
            if field in ("body", "orelse") and isinstance(value, list):
                setattr(node, field, self.block(value) or [ast.Pass()] * (field == "body"))
            elif isinstance(value, list):
                value[:] = [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    def block(self, statements):
        """Reduce a block. A comment stays if a statement of its paragraph does; one above a dropped branch goes."""
        kept, marks, dropped, previous = [], [], False, None
        for node in statements:
            if kind := mark_kind(node):
                if kind == "_above":
                    marks, dropped = _blanks(marks) if dropped else marks, False
                marks.append(node)
                continue
            found = self.visit(node)
            found = found if isinstance(found, list) else [found] * (found is not None)
            marks = _blanks(marks) if getattr(node, "is_false", False) else marks
            if found and not marks and self.replaces(found[0], previous):
                del kept[-2 if len(kept) > 1 and mark_kind(kept[-2]) == "_beside" else -1 :]
            if found:
                kept, marks, previous, dropped = [*kept, *marks, *found], [], found[-1], False
                if isinstance(previous, (ast.Return, ast.Continue, ast.Break)):
                    break
            else:
                above = [each for each in marks if mark_kind(each) == "_above"]
                marks, dropped = above if isinstance(node, ast.Assign) else _blanks(marks), True
        return kept

    def replaces(self, node, previous):
        """Return whether a statement makes the assignment before it needless: it assigns to the same name again, or it
        alone reads the name, which stood for a decided choice, and reads what was chosen instead."""
        both = isinstance(previous, ast.Assign) and isinstance(node, ast.Assign) and self.is_pure(previous.value)
        if not both or len(previous.targets) > 1 or not isinstance(previous.targets[0], ast.Name):
            return False
        name = previous.targets[0].id
        reads = sum(getattr(each, "id", "") == name for each in ast.walk(node.value))
        if previous.chosen and reads == self.read[name] == 1 and self.is_pure(node.value):
            self.same = {**self.same, name: previous.value}
            node.value = self.visit(node.value)
            return True
        return not reads and ast.unparse(node.targets) == name

    def visit_If(self, node):
        node.test = self.visit(node.test)
        if (truth := self.value(node.test)) is not UNKNOWN:
            node.is_false = not truth
            return self.block(node.body if truth else node.orelse)
        self.generic_visit(node)
        if isinstance(node.body[0], ast.Pass) and node.orelse:
            node.test, node.body, node.orelse = ast.UnaryOp(ast.Not(), node.test), node.orelse, []
        return None if isinstance(node.body[0], ast.Pass) and self.is_pure(node.test) else node

    def visit_For(self, node):
        self.generic_visit(node)
        needless = isinstance(node.body[0], ast.Pass) and not node.orelse and self.is_unused(node.target)
        return None if needless and self.is_pure(node.iter) else node

    def visit_Assign(self, node):
        chooses = isinstance(node.value, ast.IfExp)
        self.generic_visit(node)
        node.chosen = getattr(node, "chosen", False) or (chooses and not isinstance(node.value, ast.IfExp))
        found = list(pairs(node))
        kept = [(target, value) for target, value in found if not self.is_unused(target) or not self.is_pure(value)]
        if 0 < len(kept) < len(found):
            (target, value), more = map(list, zip(*kept, strict=True)), len(kept) > 1
            node.targets = [ast.Tuple(target, ast.Store()) if more else target[0]]
            node.value = ast.Tuple(value, ast.Load()) if more else value[0]
        return node if kept or not found else None

    def visit_Name(self, node):
        return self.same.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def visit_IfExp(self, node):
        self.generic_visit(node)
        truth = self.value(node.test)
        return node if truth is UNKNOWN else node.body if truth else node.orelse

    def visit_Compare(self, node):
        self.generic_visit(node)
        value = self.value(node)
        return ast.Constant(value) if isinstance(value, bool) else node

    visit_UnaryOp = visit_Compare

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        ends, values = isinstance(node.op, ast.Or), [self.value(operand) for operand in node.values]
        if any(value is ends for value in values) and self.is_pure(node):  # True or ..., False and ...
            return ast.Constant(ends)
        node.values = [each for each, value in zip(node.values, values, strict=True) if value is not (not ends)]
        return node if len(node.values) > 1 else node.values[0] if node.values else ast.Constant(not ends)

    def value(self, node):
        """Return the value of an expression of constants, UNKNOWN if it has anything else."""
        for part in ast.walk(node):
            known = part.id in self.known if isinstance(part, ast.Name) else isinstance(part, (*PLAIN, *PARTS))
            if not known:
                return UNKNOWN
        return eval(ast.unparse(node), {"__builtins__": {}}, self.known)

    def is_unused(self, target):
        names = [each for each in ast.walk(target) if not isinstance(each, (ast.Tuple, ast.expr_context))]
        return all(isinstance(each, ast.Name) and each.id not in self.read for each in names)

    def is_pure(self, node):
        """Return whether evaluating an expression has no effect but its value."""
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.split(".")[0] not in self.outside:
                return False
            if called not in PURE_CALLS and not isinstance(eval(called, {}, self.outside), type):
                return False
            return all(map(self.is_pure, [*node.args, *node.keywords]))
        return isinstance(node, (*PURE, *PARTS)) and all(map(self.is_pure, ast.iter_child_nodes(node)))


def mark_kind(node):
    """Return "_above" or "_beside" if a statement stands for a comment or blank line, else None."""
    name = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return name.id if isinstance(name, ast.Name) and name.id in ("_above", "_beside") else None


def _blanks(marks):
    """Return the first blank line among marks, as a list."""
    return [mark for mark in marks if ast.unparse(mark) == "_above('')"][:1]
