"""The source of a cell's functions: Python that one can read, made of the graph's nodes."""

import builtins
import keyword

from numbarnn.cells import scalar
from numbarnn.cells.layout import as_text
from numbarnn.cells.tracing.graph import COMPARISONS, OPERATORS, SAME_VALUE, parts_of, reachable

WIDTH = 60  # longer expressions get a variable of their own
_SIGNATURES = {
    "forward": "ax, ah, state, given",
    "backward": "saved, state, new_state, d_state, d_v, d_sums, given",
}
_TUPLES = {
    "ax", "ah", "state", "given", "saved", "new_state", "d_state", "d_v", "d_sums", "d_ax", "d_ah", "d_before",
}  # fmt: skip
_LEVELS = {"add": 2, "sub": 2, "mul": 3, "neg": 4} | dict.fromkeys(COMPARISONS, 1)  # how tightly operators bind
_WORDS = {"add": "total", "sub": "difference", "mul": "product", "divide": "ratio", "neg": "negative"}
_KNOWN_CONSTANTS = {0.0: "ZERO", 0.5: "HALF", 1.0: "ONE", 2.0: "TWO"}


class Names:
    """Node -> the name of its variable, the same in all functions of a cell; value -> the name of a constant."""

    def __init__(self, states, hyperparameters):
        self._states, self._variables, self.constants, self._last = set(states), {}, {}, {}
        reserved = {name for name in vars(scalar) if not name.startswith("__")} | {*dir(builtins), *keyword.kwlist}
        self._taken = reserved | _TUPLES
        self._named_values = {}
        for name, value in hyperparameters.items():
            if isinstance(value, (int, float)) and float(value) not in _KNOWN_CONSTANTS:
                self._named_values.setdefault(float(value), name.upper())

    def give(self, node, name):
        """The node's name; if it has none yet, this one, or one like it that is free."""
        if node not in self._variables:
            self._variables[node] = self._free(name)
        return self._variables[node]

    def of(self, node):
        """The node's name, by default that of its operation."""
        if node not in self._variables:
            self.give(node, node.name or _WORDS.get(node.op, node.op) + "_1")
        return self._variables[node]

    def has(self, node):
        """Whether it was given one."""
        return node in self._variables

    def is_free(self, name):
        """Whether no variable has the name."""
        return name not in self._taken

    def constant(self, value):
        """The name of a number."""
        if value in _KNOWN_CONSTANTS:
            return _KNOWN_CONSTANTS[value]
        if value not in self.constants:
            self.constants[value] = self._free(self._named_values.get(value, "K1"))
        return self.constants[value]

    def _free(self, name):
        if name in self._states and name in self._taken:
            name += "_new"
        stem = name.rstrip("0123456789")
        while name in self._taken:
            self._last[stem] = number = self._last.get(stem, 1) + 1
            name = f"{stem}{number}" if stem.endswith("_") or stem == "K" else f"{stem}_{number}"
        self._taken.add(name)
        return name


class Function:
    """The text of one function.

    Args:
        name, kind: its name, and "forward" or "backward", which says its arguments.
        title: its docstring.
        names: the cell's `Names`.
        arguments: name of an argument -> its nodes, all that it is a tuple of.
        statements: (file, line) -> text of the equation there.
    """

    def __init__(self, name, kind, title, names, arguments, statements):
        self.names, self.statements, self.shown = names, statements, None
        self.arguments = arguments
        self.given = {node for nodes in arguments.values() for node in nodes}
        self.head = [f"def {name}({_SIGNATURES[kind]}):", f'    """{title}"""']

    def text(self, *results):
        """The whole function; it returns these: each a node, or a tuple of nodes."""
        roots = [node for result in results for node in (result if isinstance(result, tuple) else (result,))]
        nodes = reachable(roots, stop=self.given, values=True)
        uses = {node: 0 for node in nodes}
        for node in nodes:
            for part in () if node in self.given else parts_of(node):
                uses[part] += 1
        self.texts, body = {}, []
        for node in nodes:
            if node.op == "const":
                self.texts[node] = self._constant(node), 9
            elif node in self.given:
                self.texts[node] = self.names.of(node), 9
            else:
                text = self._expression(node)
                if uses[node] > 1 or self.names.has(node) or node.name or node in roots or len(text[0]) > WIDTH:
                    if node.op in COMPARISONS and not node.name:
                        self.names.give(node, "mask_1")
                    body += [*self._comment(node), f"    {self.names.of(node)} = {text[0]}"]
                    text = self.names.of(node), 9
                self.texts[node] = text
        texts = [
            as_text([self.texts[node][0] for node in one]) if isinstance(one, tuple) else self.texts[one][0]
            for one in results
        ]
        read = {node for node in nodes if node in self.given and node.op != "const"}
        return "\n".join([*self.head, *self._unpacking(read), *body, f"    return {', '.join(texts)}"]) + "\n"

    def _unpacking(self, read):
        """Lines that give the arguments' entries names; `_` are those that are not read."""
        bound = set()
        for argument, nodes in self.arguments.items():
            names = []
            for node in nodes:
                names.append(self.names.of(node) if node in read and node not in bound else "_")
                bound.add(node)
            if set(names) - {"_"}:
                yield f"    {f'({names[0]},)' if len(names) == 1 else ', '.join(names)} = {argument}"

    def _comment(self, node):
        """The equation that made the node, where it was not shown just before."""
        statement = self.statements.get(node.place)
        if statement is None or statement == self.shown:
            return []
        self.shown = statement
        return [f"    # {statement}"]

    def _constant(self, node):
        return repr(node.data) if isinstance(node.data, bool) else self.names.constant(node.data)

    def _expression(self, node):
        """(text, how tightly it binds) of an operation on nodes that have texts."""
        if node.op in SAME_VALUE:
            return self.texts[node.args[0]]
        level = _LEVELS.get(node.op)
        if level is None:
            return f"{node.op}({', '.join(self.texts[part][0] for part in node.args)})", 9
        if node.op == "neg":
            return "-" + self._inside(node.args[0], level), level
        left, right = node.args
        # what stands on the right binds more tightly, so that sums are added up in the order of the equations
        return f"{self._inside(left, level)} {OPERATORS[node.op]} {self._inside(right, level + 1)}", level

    def _inside(self, node, level):
        text, own = self.texts[node]
        return text if own >= level else f"({text})"
