"""Choose the values that forward saves for backward, as few as will do.

Backward needs some of the forward's values. States before and after the step, per_unit, sums over units, random numbers
and constants are there, and what is made of them alone can be computed again; what else is needed has to be saved, or
computed again from what is saved. The choice is a smallest cut of a graph, between products and what is needed, and of
smallest ones that nearest to what is needed: gates rather than pre-activations.
"""

from itertools import pairwise

from numbarnn.cells.tracing.graph import COMPARISONS, LEAVES, OVER_UNITS, reachable

CHOICES = ("gates", "minimal")
#: What takes time to compute: with save="gates" it is not computed again from saved values.
_FUNCTIONS = {"sigmoid", "tanh", "exp", "log", "sqrt", "sin", "cos", "softplus", "elu", "power", "erf", "normal_cdf"}
_MANY = 1 << 30


def values_to_save(outputs, needed, choice):
    """The nodes to save, by number.

    Args:
        outputs: the nodes that are the new states, which backward has.
        needed: the forward's nodes that backward reads.
        choice: "gates": functions such as sigmoid are not computed again, unless from states alone; "minimal": they are
            where fewer values are saved then.
    """
    return smallest_cut(needed, _given(outputs, needed), choice, ("input", "product"))


def smallest_cut(needed, given, choice, sources):
    """Return the fewest nodes from which all needed ones can be computed, by number.

    Args:
        needed: nodes. given: the nodes that are there anyway. choice: as of `values_to_save`.
        sources: operations that cannot be computed again, so that their results are among those saved, if need be.
    """
    capacities = {}

    def connect(a, b, capacity):
        capacities.setdefault(a, {})[b] = capacity
        capacities.setdefault(b, {}).setdefault(a, 0)

    for node in reachable(needed, stop=given):
        if node in given:
            continue
        connect((node, 0), (node, 1), _MANY if node.op in COMPARISONS else 1)
        if node.op in sources or (choice == "gates" and node.op in _FUNCTIONS):
            connect("source", (node, 0), _MANY)
        else:
            for part in node.args:
                if part not in given:
                    connect((part, 1), (node, 0), _MANY)
        if node in needed:
            connect((node, 1), "sink", _MANY)
    if "sink" not in capacities:
        return []
    for start in capacities["source"]:  # edges from there carry whatever is sent; from where nothing goes, nothing will
        while _sent(capacities, start, "sink"):
            pass
    before_sink = _reaching(capacities, "sink")
    found = {a[0] for a in before_sink if a != "sink" and a[1] == 1 and (a[0], 0) not in before_sink}
    return sorted(found, key=lambda node: node.number)


def _given(outputs, needed):
    """The nodes that backward has, or can make of such alone."""
    given = set(outputs)
    for node in reachable([*outputs, *needed]):
        made = node.args and node.op != "product" and given.issuperset(node.args)
        if made or node.op in OVER_UNITS or node.op in LEAVES - {"input"}:
            given.add(node)
    return given


def _sent(capacities, start, end):
    """Send 1 from one node to another by edges that can carry more; whether there was a way."""
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
    """All from which `end` can be reached by edges that can carry more."""
    found, waiting = {end}, [end]
    while waiting:
        b = waiting.pop()
        for a in capacities[b]:  # each edge is there both ways
            if a not in found and capacities[a][b] > 0:
                found.add(a)
                waiting.append(a)
    return found
