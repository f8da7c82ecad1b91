"""Which per-unit parameters are biases: added to a product and used nowhere else, so that a cell is given W x + b."""

from numbarnn.cells.tracing.graph import Graph, consumers, reachable


def split_biases(outputs):
    """The equations without biases, where every gate has one.

    A vector is a gate's bias if it and the gate's product are terms of one sum, and of nothing else. The biases of W's
    rows are taken out if every product with x has one; those of R's rows if every other product has one that is not
    W's: a second one of the sum, or one of a sum without x.

    Args:
        outputs: the nodes that are the new states.

    Returns:
        (a new graph; outputs without biases in it; name of W's matrix -> its bias; name of R's matrix -> its bias); a
        dict is empty if there are none of that kind.
    """
    nodes = reachable(outputs)
    users = consumers(nodes)
    for output in outputs:
        users[output].append(None)
    input_biases, other_biases = {}, {}
    for root in nodes:
        if root.op in ("add", "sub") and _sum_above(root, users) is None:
            terms = _terms(root, users)
            per_unit = [term.data for term in terms if term.op == "vector"]
            for op, found in (("input", input_biases), ("product", other_biases)):
                for product in (term for term in terms if term.op == op):
                    if per_unit:
                        found[product.data] = per_unit.pop(0)
    if {node.data for node in nodes if node.op == "input"} - input_biases.keys():
        input_biases = {}
    if {node.data for node in nodes if node.op == "product"} - other_biases.keys():
        other_biases = {}
    removed = {*input_biases.values(), *other_biases.values()}
    return *rebuild(outputs, removed), input_biases, other_biases


def _sum_above(node, users):
    """The sum of which a sum is a term and nothing else, or None."""
    if len(users[node]) != 1 or users[node][0] is None:
        return None
    above = users[node][0]
    return above if above.op == "add" or (above.op == "sub" and above.args[0] is node) else None


def _terms(root, users):
    """What is added to make a sum, from left to right; without what is used elsewhere too."""
    terms = []
    for part in root.args if root.op == "add" else root.args[:1]:
        if len(users[part]) == 1:
            terms += _terms(part, users) if part.op in ("add", "sub") else [part]
    return terms


def rebuild(outputs, removed):
    """(a new graph, the nodes in it) of the same equations where the per-unit parameters of these names are 0."""
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
    return graph, [made[node] for node in outputs]
