"""Which per-unit parameters are biases: added to a product and used nowhere else, so that a cell is given W x + b."""

from numbarnn.cells.tracing.graph import Graph, consumers, reachable


def split_biases(outputs, constants):
    """The equations without biases.

    A vector is a bias if it and a product are terms of one sum, and of nothing else. If the sum has a product with x,
    its first vector is that product's bias, and a second one the other product's; else its first vector is the other
    product's. Other gates do not matter: where a parameter stands follows from the equations that it is in.

    Args:
        outputs: the nodes that are the new states.
        constants: names of vectors that are no parameters.

    Returns:
        (a new graph; outputs without biases in it; node of W @ x in it -> the name of its bias; node of another product
        in it -> the name of its bias).
    """
    nodes = reachable(outputs)
    users = consumers(nodes)
    for output in outputs:
        users[output].append(None)
    input_biases, other_biases = {}, {}
    for root in nodes:
        if root.op in ("add", "sub") and _sum_above(root, users) is None:
            terms = _terms(root, users)
            per_unit = [term.data for term in terms if term.op == "vector" and term.data not in constants]
            for op, found in (("input", input_biases), ("product", other_biases)):
                for product in (term for term in terms if term.op == op):
                    if per_unit:
                        found[product] = per_unit.pop(0)
    removed = {*input_biases.values(), *other_biases.values()}
    graph, made = rebuild(outputs, removed)
    biases = ({made[node]: name for node, name in found.items()} for found in (input_biases, other_biases))
    return graph, [made[node] for node in outputs], *biases


def _sum_above(node, users):
    """The sum of which a sum is a term and nothing else, or None."""
    if len(users[node]) != 1 or users[node][0] is None:
        return None
    above = users[node][0]
    return above if above.op == "add" or (above.op == "sub" and above.args[0] is node) else None


def _terms(root, users):
    """The terms of a sum, from left to right, without those that are used elsewhere too."""
    terms = []
    for part in root.args if root.op == "add" else root.args[:1]:
        if len(users[part]) == 1:
            terms += _terms(part, users) if part.op in ("add", "sub") else [part]
    return terms


def rebuild(outputs, removed):
    """(a new graph, node -> its node there) of the same equations where these parameters per unit, by name, are 0."""
    graph, made = Graph(), {}
    for node in reachable(outputs):
        args, graph.place = [made[part] for part in node.args], node.place
        if node.op == "vector" and node.data in removed:
            made[node] = graph.const(0)
        elif node.op == "product":
            made[node] = graph.product(node.data, *args)
        elif node.op == "const":
            made[node] = graph.const(node.data)
        else:
            made[node] = graph.make(node.op, *args) if args else graph.leaf(node.op, node.data)
        if made[node].name is None and made[node].op != "const":
            made[node].name = node.name
    return graph, made
