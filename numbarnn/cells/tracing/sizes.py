"""How many units each value of a cell's equations has: H, unless it meets a state of another size, or x."""

from itertools import pairwise

from numbarnn.cells.layout import Equal
from numbarnn.cells.tracing.graph import OVER_UNITS, parts_of, reachable, same_for_all


class UnitSizes:
    """The size of every node: a letter or an int.

    Values whose sizes have to be equal are in one group: what an operation takes element by element, and its result; a
    state before and after the step. The result of a matrix product may have any size.

    Args:
        structure: the `Structure`.

    Attributes:
        states: the size of each state but the first.
        equal: `Equal`s, where several sizes were said of one group: the network must make them equal.
    """

    def __init__(self, structure):
        self._group, self._sizes, self.equal = {}, {}, []
        outputs, projected = structure.outputs, structure.projection is not None
        nodes = reachable(outputs)
        self._of_no_size = same_for_all(nodes)
        for node in nodes:
            term = structure.terms[node.data] if node.op in ("input", "product") else None
            if term is None or term.op in ("eye", "lower"):
                self._join(node, *parts_of(node))
            if node.op in OVER_UNITS:
                self._say(node.args[0], "H", "a sum over units is over as many as h has")
            if node.op == "input" and term.op == "eye":
                self._say(node, "I", term.data)
        graph = structure.graph
        states = [graph.leaf("state", number) for number in range(len(outputs))]
        if projected:
            self._say(outputs[0], "H", "h is made of it")
        for number, (state, output) in enumerate(zip(states, outputs, strict=True)):
            if number or not projected:
                self._join(state, output)
            if number == 0:
                self._say(state, "P" if projected else "H", "h is of the hidden size")
            elif number in structure.sizes:
                self._say(
                    state,
                    structure.sizes[number],
                    f"state {state.name} has {structure.sizes[number]} units, and what meets element by element or in "
                    "a sum over units has one size (a matrix changes it)",
                )
        self._settle()
        self.states = tuple(self.of(state) for state in states[1:])

    def of(self, node):
        """A node's size."""
        return self._sizes.get(self._root(node), {"H": ""}).copy().popitem()[0]

    def _root(self, node):
        while node in self._group:
            node = self._group[node]
        return node

    def _join(self, *nodes):
        """Put nodes into one group. Values that are the same for all units stay out: they go with any size."""
        nodes = [node for node in nodes if node not in self._of_no_size]
        for one, other in pairwise(nodes):
            first, second = self._root(one), self._root(other)
            if first is not second:
                self._group[second] = first
                sizes = self._sizes.pop(second, {})
                self._sizes[first] = sizes | self._sizes.get(first, {})

    def _say(self, node, size, why):
        """Note that a node's group has this size, and why."""
        if node not in self._of_no_size:
            self._sizes.setdefault(self._root(node), {}).setdefault(size, why)

    def _settle(self):
        """Choose one size for each group, H or P if it has that; its other sizes become `equal` to it."""
        for root, sizes in self._sizes.items():
            chosen = next((size for size in ("H", "P", *sizes) if size in sizes), "H")
            for size, why in sizes.items():
                if size != chosen:
                    self.equal.append(Equal(chosen, size, why))
            self._sizes[root] = {chosen: sizes.get(chosen)}
