"""Split equations into gates of W x and R h, further products, sums over units, per-unit parameters, biases, noise."""

from dataclasses import dataclass, field

from numbarnn.cells.layout import BIAS_MODES, flat_name, parameters_in
from numbarnn.cells.tracing.graph import OVER_UNITS, Graph, Node, consumers, products_by_vector, reachable


@dataclass
class Product:
    """A further product of a step: the vector that matrices multiply, and gate -> node of each product."""

    vector: Node
    gates: dict[str, Node]


@dataclass
class Sums:
    """Sums (or, with `largest`, maxima) over units that can be computed at the same time."""

    nodes: list[Node]
    largest: bool = False


@dataclass
class Structure:
    """The parts of a cell's equations.

    Attributes:
        graph: all nodes. outputs: the nodes of the new states. terms, columns, sizes, initial: see `Trace`.
        projection: name of the matrix P if the first new state is P @ v (`outputs` has v in its place), or None.
        gates: name -> node of each product with x. recurrent: name -> node of each product with the first state.
        stages: `Product`s and `Sums` in the order of computation.
        per_unit: name -> node of each per-unit parameter. noise: the nodes of random numbers.
        biases: "b_w" and "b_r" -> gate -> name of its bias. bias: the key of `BIAS_MODES` for these.
        heads, drop_connect: see `Cell`. unused: names of parameters that the new states do not depend on.
    """

    graph: object
    outputs: list[Node]
    terms: dict
    columns: dict
    sizes: dict
    initial: dict
    projection: str | None
    gates: dict[str, Node] = field(default_factory=dict)
    recurrent: dict[str, Node] = field(default_factory=dict)
    stages: list = field(default_factory=list)
    per_unit: dict[str, Node] = field(default_factory=dict)
    noise: list[Node] = field(default_factory=list)
    biases: dict[str, dict[str, str]] = field(default_factory=dict)
    bias: str = "none"
    heads: int = 1
    drop_connect: tuple[float, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def all_recurrent(self):
        """Name -> node of all gates of ah."""
        return self.recurrent | {name: node for product in self.products for name, node in product.gates.items()}

    @property
    def products(self):
        """The stages that are products."""
        return [stage for stage in self.stages if isinstance(stage, Product)]

    @property
    def sums(self):
        """The nodes of all sums and maxima over units, in the order of their stages."""
        return [node for stage in self.stages if isinstance(stage, Sums) for node in stage.nodes]


def split(outputs, trace):
    """Return the `Structure` of traced equations. outputs: the nodes of the new states."""
    terms = trace.terms
    projection = _projection(outputs, terms)
    if projection:
        outputs = [outputs[0].args[0], *outputs[1:]]
    count = len(outputs)
    graph, outputs, bias_of = split_biases([*outputs, *trace.kept], terms)
    nodes, outputs = reachable(outputs), outputs[:count]
    structure = Structure(graph, outputs, terms, trace.columns, trace.sizes, trace.initial, projection)
    inputs = [node for node in nodes if node.op == "input"]
    inputs.sort(key=lambda node: terms[node.data].op == "eye")  # x itself last: see `Problem.copied_gates`
    structure.gates = dict(zip(_short_names(inputs), inputs, strict=True))
    products = products_by_vector(nodes)
    sums = [node for node in nodes if node.op in OVER_UNITS]
    structure.stages = _stages({v: own for v, own in products.items() if not _is_first_state(v)}, sums)
    first = [node for vector, own in products.items() if _is_first_state(vector) for node in own]
    order = first + [node for product in structure.products for node in products[product.vector]]
    short = dict(zip(order, _short_names(order), strict=True))
    structure.recurrent = {short[node]: node for node in first}
    for product in structure.products:
        product.gates = {short[node]: node for node in products[product.vector]}
    structure.per_unit = {flat_name(node.data): node for node in nodes if node.op == "vector"}
    structure.noise = [node for node in nodes if node.op == "noise"]
    structure.biases = {
        kind: {name: bias_of[node] for name, node in gates.items() if node in bias_of}
        for kind, gates in (("b_w", structure.gates), ("b_r", structure.all_recurrent))
    }
    present = tuple(kind for kind, names in structure.biases.items() if names)
    structure.bias = next(mode for mode, kinds in BIAS_MODES.items() if kinds == present)
    return structure


def _projection(outputs, terms):
    """Return the name of the matrix that projects to the new h, or None.

    Nothing else may use this matrix, h must be used in products only, and all products of a step must multiply h. A
    matrix that is an expression counts only if it has parameters and if products multiply h.
    """
    if outputs[0].op != "product":
        return None
    matrix, inner = outputs[0].data, [*outputs[0].args, *outputs[1:]]
    nodes = reachable(inner)
    operands = [node.args[0] for node in nodes if node.op == "product"]
    if terms[matrix].op != "parameter" and (not operands or not parameters_in((terms[matrix],))):
        return None
    elsewhere = [*inner, *(part for node in nodes if node.op != "product" for part in node.args)]
    only_in_products = all(map(_is_first_state, operands)) and not any(map(_is_first_state, elsewhere))
    used_again = matrix in {node.data for node in nodes if node.op in ("input", "product")}
    return matrix if only_in_products and not used_again else None


def _stages(products, sums):
    """Return the stages of products (vector -> nodes) and sums, in the order of computation.

    The next stage has all sums that can be computed by then, or else all maxima, or else one product."""
    made_of = {(node.op, node): set(reachable(node.args)) for node in sums}
    made_of |= {("product", vector): set(reachable([vector])) for vector in products}
    results = {(kind, node): products[node] if kind == "product" else [node] for kind, node in made_of}
    stages, left = [], sorted(made_of, key=lambda item: item[1].number)
    while left:
        ready = [item for item in left if not any(made_of[item].intersection(results[other]) for other in left)]
        now = next((now for op in OVER_UNITS if (now := [item for item in ready if item[0] == op])), ready[:1])
        kind, nodes = now[0][0], [node for _, node in now]
        stages.append(Product(nodes[0], {}) if kind == "product" else Sums(nodes, kind == "row_max"))
        left = [item for item in left if item not in now]
    return stages


def _is_first_state(node):
    return node.op == "state" and node.data == 0


def _short_names(products):
    """Return unique names of products: the last part of the matrix's name, or its whole name, or with a number."""
    matrices = [node.data.replace("#", "_") for node in products]
    last = [name.rpartition(".")[2] for name in matrices]
    names = [flat_name(matrices[k]) if last.count(name) > 1 else name for k, name in enumerate(last)]
    unique_names = []
    for name in names:
        unique, number = name, 1
        while unique in unique_names or (number > 1 and unique in names):
            number += 1
            unique = f"{name}_{number}"
        unique_names.append(unique)
    return unique_names


# -------------------------------------------------------------------------------------------------------------- biases
def split_biases(outputs, constants):
    """Take the biases out of the equations: return (new graph, new outputs, node of a product -> name of its bias).

    A vector is a bias if it and a product are terms of one sum, and nothing else uses them. `constants` are the names
    of vectors that are not learned. The first vector of a sum is the bias of its product with x, the second one that of
    its other product; without a product with x, the first vector is the bias of the other product.
    """
    nodes = reachable(outputs)
    users = consumers(nodes)
    for output in outputs:
        users[output].append(None)

    def is_inside(node):
        """Return whether the only use of a sum is as a term of another sum."""
        above = users[node][0] if len(users[node]) == 1 else None
        return above is not None and (above.op == "add" or (above.op == "sub" and above.args[0] is node))

    def terms_of(root):
        """Yield the terms of a sum that nothing else uses, from left to right."""
        for part in root.args if root.op == "add" else root.args[:1]:
            if len(users[part]) == 1:
                yield from terms_of(part) if part.op in ("add", "sub") else [part]

    bias_of = {}
    for root in nodes:
        if root.op in ("add", "sub") and not is_inside(root):
            terms = list(terms_of(root))
            per_unit = [term.data for term in terms if term.op == "vector" and term.data not in constants]
            products = [term for op in ("input", "product") for term in terms if term.op == op]
            bias_of |= zip(products, per_unit, strict=False)
    graph, new, removed = Graph(), {}, set(bias_of.values())
    for node in nodes:
        args, graph.place = [new[part] for part in node.args], node.place
        if node.op == "vector" and node.data in removed:
            new[node] = graph.const(0)
        elif node.op == "product":
            new[node] = graph.product(node.data, *args)
        elif node.op == "const":
            new[node] = graph.const(node.data)
        else:
            new[node] = graph.make(node.op, *args) if args else graph.leaf(node.op, node.data)
        if new[node].name is None and new[node].op != "const":
            new[node].name = node.name
    return graph, [new[node] for node in outputs], {new[node]: name for node, name in bias_of.items()}
