"""What equations consist of: gates of W x, gates of R h, further products, vectors."""

from dataclasses import dataclass, field

from numbarnn.cells.tracing.biases import split_biases
from numbarnn.cells.tracing.graph import Node, reachable


@dataclass
class Structure:
    """The equations, split.

    Attributes:
        graph, outputs: their nodes, and those that are the new states.
        gates: name -> node, of W x.
        recurrent: name -> node, of R times the first state.
        stages: (the vector, name -> node of its products), in the order in which they can be computed.
        vectors: name -> node, of the parameters per unit.
        biases: "input" and "recurrent" -> gate -> the name of the bias taken out; empty: there are none.
        unused: names of parameters that what is returned does not depend on: they are none of the cell's.
        bias: the two in a word, one of `numbarnn.weights.BIAS_MODES`.
    """

    graph: object
    outputs: list[Node]
    gates: dict[str, Node] = field(default_factory=dict)
    recurrent: dict[str, Node] = field(default_factory=dict)
    stages: list[tuple[Node, dict[str, Node]]] = field(default_factory=list)
    vectors: dict[str, Node] = field(default_factory=dict)
    biases: dict[str, dict[str, str]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    bias: str = "none"

    @property
    def all_recurrent(self):
        """Name -> node, of all gates of ah."""
        return {
            name: node for part in (self.recurrent, *(own for _, own in self.stages)) for name, node in part.items()
        }


def split(outputs):
    """The `Structure` of equations with these nodes as new states."""
    graph, outputs, biases, others = split_biases(outputs)
    nodes = reachable(outputs)
    found = Structure(graph, outputs)
    inputs = [node for node in nodes if node.op == "input"]
    found.gates = dict(zip(_short_names(inputs), inputs, strict=True))
    products = {}
    for node in nodes:
        if node.op == "product":
            products.setdefault(node.args[0], []).append(node)
    vectors = sorted(products, key=lambda node: node.number)
    first = [vector for vector in vectors if _is_first_state(vector)]
    order = [node for vector in first + [v for v in vectors if v not in first] for node in products[vector]]
    short = dict(zip(order, _short_names(order), strict=True))
    for vector in vectors:
        own = {short[node]: node for node in products[vector]}
        if _is_first_state(vector):
            found.recurrent = own
        else:
            found.stages.append((vector, own))
    found.vectors = {node.data.replace(".", "_"): node for node in nodes if node.op == "vector"}
    found.biases = {
        "input": {name: biases[node.data] for name, node in found.gates.items() if biases},
        "recurrent": {name: others[node.data] for name, node in found.all_recurrent.items() if others},
    }
    present = [kind for kind, names in found.biases.items() if names]
    found.bias = {0: "none", 1: present[0] if present else "", 2: "double"}[len(present)]
    return found


def _is_first_state(node):
    return node.op == "state" and node.data == 0


def _short_names(products):
    """A name for each: the last part of its matrix's name, or all of it where several end alike."""
    last = [node.data.rpartition(".")[2] for node in products]
    whole = [node.data.replace(".", "_") for node in products]
    return [whole[k] if last.count(name) > 1 else name for k, name in enumerate(last)]
