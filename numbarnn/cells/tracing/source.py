"""Generate the readable Python source of a cell's functions from the nodes of its graph."""

import builtins
import keyword
from collections import Counter
from hashlib import sha256
from math import isfinite

from numbarnn.cells import scalar
from numbarnn.cells.definition import Stage
from numbarnn.cells.layout import as_text
from numbarnn.cells.tracing.derive import Gradients
from numbarnn.cells.tracing.graph import COMPARISONS, LEAVES, OPERATORS, OVER_UNITS, SAME_VALUE, parts_of, reachable
from numbarnn.cells.tracing.saving import values_to_save
from numbarnn.cells.tracing.structure import Product
from numbarnn.common.code_cache import run_source

WIDTH = 60  # longer expressions are assigned to a variable
_SIGNATURES = {"forward": "ax, ah, state, given", "backward": "saved, state, new_state, d_state, d_v, d_sums, given"}
_TUPLES = {*", ".join(_SIGNATURES.values()).split(", "), "d_ax", "d_ah", "d_before"}
_LEVELS = {"add": 2, "sub": 2, "mul": 3, "neg": 4} | dict.fromkeys(COMPARISONS, 1)  # precedence of operators
_WORDS = {"add": "total", "sub": "difference", "mul": "product", "divide": "ratio", "neg": "negative"}
_KNOWN_CONSTANTS = {0.0: "ZERO", 0.5: "HALF", 1.0: "ONE", 2.0: "TWO"}


class Names:
    """The names of variables (by node) and constants (by value) in all functions of a cell."""

    def __init__(self, states, hyperparameters):
        self._states, self._variables, self.constants, self._last = set(states), {}, {}, {}
        reserved = {name for name in vars(scalar) if not name.startswith("__")} | {*dir(builtins), *keyword.kwlist}
        self._taken, self._named_values = reserved | _TUPLES, {}
        for name, value in hyperparameters.items():
            if isinstance(value, (int, float)) and float(value) not in _KNOWN_CONSTANTS:
                self._named_values.setdefault(float(value), name.upper())

    def give(self, node, name):
        """Return the node's name; a node without one gets `name`, with a number if it is taken."""
        if node not in self._variables:
            self._variables[node] = self._free(name)
        return self._variables[node]

    def of(self, node):
        """Return the node's name, by default that of its operation."""
        if node not in self._variables:
            self.give(node, node.name or _WORDS.get(node.op, node.op) + "_1")
        return self._variables[node]

    def has(self, node):
        return node in self._variables

    def is_free(self, name):
        return name not in self._taken

    def constant(self, value):
        """Return the name of a number."""
        if isinstance(value, bool):
            return repr(value)
        if value in _KNOWN_CONSTANTS:
            return _KNOWN_CONSTANTS[value]
        if value not in self.constants:
            self.constants[value] = self._free(self._named_values.get(value, "K1"))
        return self.constants[value]

    def definitions(self):
        """Return [text that defines all constants], or [] without constants."""
        lines = [f"{constant} = {value!r}" if isfinite(value) else f'{constant} = float("{value}")'
                 for value, constant in self.constants.items()]  # fmt: skip
        return ["\n".join(lines) + "\n"] if lines else []

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
    """Write one function of a cell.

    Args:
        kind: "forward" or "backward", for the signature. title: the docstring. names: the cell's `Names`.
        arguments: name of an argument, a tuple -> the nodes of its elements.
        statements: (file, line) -> the equation there, for comments.
    """

    def __init__(self, name, kind, title, names, arguments, statements):
        self.names, self.statements, self.shown, self.arguments = names, statements, None, arguments
        self.given = {node for nodes in arguments.values() for node in nodes}
        self.head = [f"def {name}({_SIGNATURES[kind]}):", f'    """{title}"""']

    def text(self, *results):
        """Return the function's text. results: what it returns, each a node or a tuple of nodes."""
        roots = [node for result in results for node in (result if isinstance(result, tuple) else (result,))]
        nodes = reachable(roots, stop=self.given, values=True)
        uses = Counter(part for node in nodes if node not in self.given for part in parts_of(node))
        self.texts, body = {}, []  # node -> (text, precedence)
        for node in nodes:
            if node.op == "const":
                text = self.names.constant(node.data), 9
            elif node in self.given:
                text = self.names.of(node), 9
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
        """Yield lines that unpack the arguments; entries that are not read are `_`."""
        bound = set()
        for argument, nodes in self.arguments.items():
            names = []
            for node in nodes:
                names.append(self.names.of(node) if node in read and node not in bound else "_")
                bound.add(node)
            if set(names) - {"_"}:
                yield f"    {f'({names[0]},)' if len(names) == 1 else ', '.join(names)} = {argument}"

    def _comment(self, node):
        """Return [comment with the equation that made the node], or [] if the last comment showed the equation."""
        statement = self.statements.get(node.place)
        if statement is None or statement == self.shown:
            return []
        self.shown = statement
        return [f"    # {statement}"]

    def _expression(self, node):
        """Return (text, precedence) of an operation whose arguments have texts."""
        if node.op in SAME_VALUE:
            return self.texts[node.args[0]]
        level = _LEVELS.get(node.op)
        if level is None:
            return f"{node.op}({', '.join(self.texts[part][0] for part in node.args)})", 9
        # parenthesize sums on the right, so that terms are added in the order of the equations
        texts = [self._inside(part, level + place) for place, part in enumerate(node.args)]
        return f" {OPERATORS[node.op]} ".join(texts) if len(texts) > 1 else "-" + texts[0], level

    def _inside(self, node, level):
        text, own = self.texts[node]
        return text if own >= level else f"({text})"


# -------------------------------------------------------------------------------------------------- all functions
def assemble(name, states, structure, save, hyperparameters, statements):
    """Return the generated fields of a `Cell`, field -> value; may reorder `structure.recurrent`.

    Args:
        name, states: the cell's. structure: its `Structure`. save: "gates" or "minimal".
        hyperparameters: name -> value, after which constants are named.
        statements: (file, line) -> the equation there, for comments.
    """
    graph, outputs, stages = structure.graph, structure.outputs, structure.stages
    boundary = len(graph.nodes)  # nodes from here on belong to the backward
    gradients = Gradients(graph, outputs, [product.vector for product in structure.products], structure.sums)
    same_gradient = _align(structure, gradients)
    state_nodes = [graph.leaf("state", number) for number in range(len(states))]
    zero = graph.const(0)
    d_ax, d_ah, d_before = (
        tuple(gradients[node] for node in nodes)
        for nodes in (structure.gates.values(), structure.recurrent.values(), state_nodes)
    )
    d_per_unit = tuple(
        zero if node.data in structure.terms else gradients[node] for node in structure.per_unit.values()
    )
    d_stages = [
        tuple(gradients[node] for node in stage.gates.values()) if isinstance(stage, Product)
        else tuple(zero if stage.largest else gradients[node] for node in stage.nodes)
        for stage in stages
    ]  # fmt: skip
    roots = [node for part in (d_ax, d_ah, d_before, d_per_unit, *d_stages) for node in part]
    forward_nodes = set(reachable(outputs))
    known = {node for node in forward_nodes if node.number < boundary}
    kept = values_to_save(outputs, known.intersection(reachable(roots, stop=known)), save)
    names = _named(states, structure, hyperparameters, kept, gradients, state_nodes, forward_nodes)
    saved = tuple(names.of(node) for node in kept)
    stem = name if name.isidentifier() else "cell"
    arguments, texts = _arguments(structure, state_nodes, kept), []

    def function(called, kind, title, *results):
        called = f"{stem}_{called}{kind}"
        texts.append(Function(called, kind, title, names, arguments[kind], statements).text(*results))
        return called

    of_stages = []  # for each stage the fields of its `Stage`, with names of functions
    for number, stage in enumerate(stages):
        if isinstance(stage, Product):
            fields, result = {"gates": tuple(stage.gates)}, stage.vector
            title = f"What the rows of R of {' '.join(stage.gates)} multiply."
        else:
            fields = {"gates": (), "sums": tuple(map(names.of, stage.nodes)), "largest": stage.largest}
            title = f"What {', '.join(fields['sums'])} is the largest of." if stage.largest else (
                f"What adds up to {', '.join(fields['sums'])}.")  # fmt: skip
            result = tuple(node.args[0] for node in stage.nodes)
        of_stages.append(fields | {"forward": function(f"stage{number}_", "forward", title, result)})
    title = "One step of one unit: new states; what backward needs."
    forward = function("", "forward", title, tuple(outputs), tuple(kept))
    for number, parts in reversed([*enumerate(d_stages)]):
        fields = of_stages[number]
        title = f"The gradients of the gates {' '.join(fields['gates'])} of ah." if fields["gates"] else (
            f"What adds up to the gradients of {', '.join(fields['sums'])}.")  # fmt: skip
        fields["backward"] = function(f"stage{number}_", "backward", title, parts)
    title = "One step of one unit backward, but for what goes through W and R."
    backward = function("", "backward", title, d_ax, d_ah, d_before, d_per_unit)
    source = "\n\n".join([*names.definitions(), *texts])
    functions = _compiled(name, source)
    of_stages = [fields | {kind: functions[fields[kind]] for kind in ("forward", "backward")} for fields in of_stages]
    return {
        "saved": saved, "forward": functions[forward], "backward": functions[backward], "same_gradient": same_gradient,
        "stages": tuple(Stage(**fields) for fields in of_stages), "source": source,
    }  # fmt: skip


def _compiled(name, source):
    """Run a generated source and return its functions by name; inspect.getsource finds the source."""
    file = f"<numbarnn cell {name} {sha256(source.encode()).hexdigest()[:12]}>"
    namespace = {key: value for key, value in vars(scalar).items() if not key.startswith("_")}
    namespace["__name__"] = f"{__package__}.generated"
    run_source(source, file, namespace)
    return namespace


def _arguments(structure, state_nodes, kept):
    """Return "forward" and "backward" -> name of an argument -> the nodes of its elements."""

    def leaves(op, nodes):
        return [structure.graph.leaf(op, number) for number in range(len(nodes))]

    sums = structure.sums
    seen = [structure.graph.leaf("units", None), *sums] if sums else []
    both = {"given.per_unit": [*structure.per_unit.values()], "given.sums": seen, "given.noise": structure.noise}
    gates, recurrent = [*structure.gates.values()], [*structure.all_recurrent.values()]
    return {
        "forward": {"ax": gates, "ah": recurrent, "state": state_nodes, **both},
        "backward": {
            "saved": kept, "state": state_nodes, "new_state": structure.outputs,
            "d_state": leaves("d_state", state_nodes), "d_v": leaves("d_v", structure.products),
            "d_sums": leaves("d_sum", sums), **both,
        },
    }  # fmt: skip


def _align(structure, gradients):
    """Return whether the gradients of ax and ah are the same; if so, order ah's gates like ax'."""
    if structure.products or len(structure.recurrent) != len(structure.gates):
        return False
    left, order = dict(structure.recurrent), {}
    for node in structure.gates.values():
        partner = next((name for name, other in left.items() if gradients[other] is gradients[node]), None)
        if partner is None:
            return False
        order[partner] = left.pop(partner)
    structure.recurrent = order
    return True


def _named(states, structure, hyperparameters, kept, gradients, state_nodes, forward_nodes):
    """Return the `Names` of all variables, with the equations' names where they have some."""
    names, graph = Names(states, hyperparameters), structure.graph
    for prefix, nodes in (("", dict(zip(states, state_nodes, strict=True))), ("", structure.per_unit),
                          ("ax_", structure.gates), ("ah_", structure.all_recurrent)):  # fmt: skip
        for name, node in nodes.items():
            names.give(node, prefix + name)
    for node in sorted(forward_nodes, key=lambda node: node.number):
        if node.name and node.op not in LEAVES:
            names.give(node, node.name)
    for state, node in zip(states, structure.outputs, strict=True):
        names.give(node, f"{state}_new")
    own = {node.name for node in forward_nodes}
    for node in kept:
        names.give(
            node, node.name or _name_by_gate(node, structure, lambda name: names.is_free(name) and name not in own)
        )
    for number, state in enumerate(states):
        names.give(graph.leaf("d_state", number), f"d_{state}_after")
    for number in range(len(structure.products)):
        names.give(graph.leaf("d_v", number), f"d_v{number}")
    for number, node in enumerate(structure.sums):
        name = names.give(node, node.name or {"row_sum": "sum_1", "row_max": "largest_1"}[node.op])
        names.give(graph.leaf("d_sum", number), f"d_{name}")
    names.give(graph.leaf("units", None), "units")
    for node in structure.noise:
        names.give(node, node.name or "noise_1")
    for node, gradient in [*((node, gradients[node]) for node in structure.gates.values()), *gradients.items()]:
        if gradient.op not in ("const", "d_state", "d_v", "d_sum") and names.has(node):
            names.give(gradient, f"d_{names.of(node)}" + ("_term" if node.op in OVER_UNITS else ""))
    return names


def _name_by_gate(node, structure, is_free):
    """Return a name for an unnamed node: that of its gate, if it is a function of a single gate of W x (or else of R).

    is_free: function of a name."""
    inside = [part for part in reachable(node.args, stop=structure.outputs) if part.op not in LEAVES - {"input"}]
    if all(part.op in ("add", "sub", "neg", "input", "product") for part in inside):
        for gates in (structure.gates, structure.all_recurrent):
            found = [name for name, gate in gates.items() if gate in inside]
            if len(found) == 1 and node.op in ("add", "sub"):
                return f"a_{found[0]}"
            if len(found) == 1:
                return found[0] if is_free(found[0]) else f"{node.op}_{found[0]}"
    return f"{node.op}_1"
