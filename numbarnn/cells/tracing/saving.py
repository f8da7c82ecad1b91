"""Choose the fewest values that forward must save for backward.

Backward has the states before and after the step, per-unit parameters, sums over units, random numbers and constants,
and can compute again whatever follows from them. Everything else that it needs is saved, or computed from saved values.
The choice is a minimum cut of the graph between products and needed values. Of several minimum cuts we take the nearest
to the needed values: gates rather than pre-activations.
"""

from itertools import pairwise

from numbarnn.cells.tracing.graph import COMPARISONS, LEAVES, OVER_UNITS, computable, reachable

CHOICES = ("gates", "minimal")
#: Functions that take time: save="gates" does not compute them again.
_FUNCTIONS = {"sigmoid", "tanh", "exp", "log", "sqrt", "sin", "cos", "softplus", "elu", "power", "erf", "normal_cdf"}
_MANY = 1 << 30


def values_to_save(outputs, needed, choice):
    """Return the nodes to save, sorted by number.

    Args:
        outputs: the nodes of the new states. needed: the forward's nodes that backward reads.
        choice: "gates" computes functions such as sigmoid again only from states and constants; "minimal" computes them
            again wherever this saves values.
    """
    leaves = {*OVER_UNITS, *LEAVES} - {"input"}
    available = computable(reachable([*outputs, *needed]), lambda node: node in outputs or node.op in leaves)
    return smallest_cut(needed, available, choice, ("input", "product"))


def smallest_cut(needed, available, choice, sources):
    """Return the fewest nodes from which, with the available nodes, all needed nodes can be computed, sorted by number.

    choice: see `values_to_save`. sources: operations that cannot be computed again."""
    capacities = {}

    def connect(a, b, capacity):
        capacities.setdefault(a, {})[b] = capacity
        capacities.setdefault(b, {}).setdefault(a, 0)

    for node in reachable(needed, stop=available):
        if node in available:
            continue
        connect((node, 0), (node, 1), _MANY if node.op in COMPARISONS else 1)
        if node.op in sources or (choice == "gates" and node.op in _FUNCTIONS):
            connect("source", (node, 0), _MANY)
        else:
            for part in node.args:
                if part not in available:
                    connect((part, 1), (node, 0), _MANY)
        if node in needed:
            connect((node, 1), "sink", _MANY)
    if "sink" not in capacities:
        return []
    for start in capacities["source"]:  # maximum flow; edges from the source have no limit
        while _send_one(capacities, start, "sink"):
            pass
    before_sink = _reaching(capacities, "sink")
    cut = {a[0] for a in before_sink if a != "sink" and a[1] == 1 and (a[0], 0) not in before_sink}
    return sorted(cut, key=lambda node: node.number)


def _send_one(capacities, start, end):
    """Send one unit of flow along a path with free capacity; return whether there was a path."""
    path, seen = [(start, iter(capacities[start]))], {start}
    while path and path[-1][0] != end:
        a, edges = path[-1]
        b = next((b for b in edges if b not in seen and capacities[a][b] > 0), None)
        if b is None:
            path.pop()
        else:
            seen.add(b)
            path.append((b, iter(capacities[b])))
    for (one, _), (other, _) in pairwise(path):
        capacities[one][other] -= 1
        capacities[other][one] += 1
    return bool(path)


def _reaching(capacities, end):
    """Return all vertices from which `end` can be reached by edges with free capacity."""
    vertices, waiting = {end}, [end]
    while waiting:
        b = waiting.pop()
        for a in capacities[b]:  # every edge has its reverse
            if a not in vertices and capacities[a][b] > 0:
                vertices.add(a)
                waiting.append(a)
    return vertices
