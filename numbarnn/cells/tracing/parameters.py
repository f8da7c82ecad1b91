"""The names, places and sizes of a cell's parameters: the `Layout` of its equations.

The rule, for each parameter by its own equations alone: a matrix that multiplies x stands in weight_ih, one that
multiplies anything else in weight_hh, the one that makes the first state is weight_hr; a vector that is added to a
product with x, and used nowhere else, stands in bias_ih, one added to another product in bias_hh. Everything else is an
array of its own: vectors, scalars, matrices that are only parts of expressions, and what makes or multiplies states of
another size than H. Gates without a bias have none in these arrays; kernels are given zeros.
"""

from itertools import pairwise

from numbarnn.cells.layout import SCALARS, STACKED, Equal, Layout, Term, flat_name, parameters_in, term_text
from numbarnn.cells.tracing.errors import error
from numbarnn.cells.tracing.graph import OVER_UNITS, parts_of, reachable, same_for_all


def layout_of(structure, place, input_name):
    """The `Layout` of a `Structure`.

    Args:
        place: of the equations that errors point to. input_name: what they call x.
    """
    gates = {"W": structure.gates, "R": structure.all_recurrent}
    terms = {kind: tuple(structure.terms[node.data] for node in own.values()) for kind, own in gates.items()}
    units = UnitSizes(structure)
    shapes = {
        kind: tuple((units.of(node), units.of(node.args[0]) if node.args else "I") for node in own.values())
        for kind, own in gates.items()
    }
    usual = {"W": ("H", "I"), "R": ("H", "P" if structure.projection else "H"), "W_hr": ("P", "H")}
    terms["W_hr"] = (structure.terms[structure.projection],) if structure.projection else ()
    shapes["W_hr"] = (usual["W_hr"],) * len(terms["W_hr"])
    rows, placed = {}, set()
    for kind, own in terms.items():
        plain = dict.fromkeys(
            term.data
            for term, shape in zip(own, shapes[kind], strict=True)
            if term.op == "parameter" and shape == usual[kind]
        )
        rows[kind] = tuple(name for name in plain if name not in placed)
        placed.update(plain)
    sizes = _Sizes(structure.columns, place, _products(gates, structure.terms, input_name))
    unusual = any(shape != usual[kind] for kind in usual for shape in shapes[kind])
    if unusual and structure.heads > 1:
        raise error("numbarnn.heads beside states of other sizes than H; take matrices without heads", place)
    resolved = sizes.of(terms, shapes)
    formed = {kind: own for kind, own in resolved.items() if _are_rows(own) != rows[kind]}
    vectors = {}  # that are arrays of their own -> shape
    for kind, biases in structure.biases.items():
        own = gates["W" if kind == "b_w" else "R"]
        of_gates = {biases[gate]: units.of(node) for gate, node in own.items() if gate in biases}
        rows[kind] = tuple(name for name, size in of_gates.items() if size == "H" and not name.startswith(SCALARS))
        vectors |= {name: (size,) for name, size in of_gates.items() if size != "H" and not name.startswith(SCALARS)}
        if biases:
            formed[kind] = tuple(_vector(biases.get(gate)) for gate in own)
    per_unit = [node.data for node in structure.per_unit.values()]
    per_unit_sizes = {name: units.of(node) for name, node in zip(per_unit, structure.per_unit.values(), strict=True)}
    constants = {
        name: Term("constant", data=structure.terms[name].data.with_shape(per_unit_sizes[name]))
        for name in per_unit
        if name in structure.terms
    }
    formed["per_unit"] = tuple(constants.get(name) or _vector(name) for name in per_unit)
    for name, term in constants.items():
        if term.data.array is not None:
            why = "an array of the equations has a number per unit (numbarnn.constant(lambda H: ...) is one of any H)"
            sizes.equal.append(Equal(*term.data.shape, per_unit_sizes[name], why))
    rows_of = rows | {"per_unit": tuple(name for name in per_unit if per_unit_sizes[name] == "H")}
    formed = {kind: own for kind, own in formed.items() if _are_rows(own) != rows_of[kind]}
    stacked = {name for names in rows.values() for name in names}
    inside = [name for name in parameters_in(sum(formed.values(), ())) if name not in stacked]
    scalars = dict.fromkeys(name for name in inside if name.startswith(SCALARS))
    vectors |= {name: (size,) for name, size in per_unit_sizes.items() if name not in scalars | constants}
    own = vectors | dict.fromkeys(scalars, ())
    own |= {name: tuple(sizes.shapes[name]) for name in inside if name not in own}
    check_names(own, place)
    states = units.states if any(size != "H" for size in units.states) else ()
    equal = tuple(dict.fromkeys((*units.equal, *sizes.equal)))
    return Layout({kind: names for kind, names in rows.items() if names}, own, formed, equal, states)


def _are_rows(terms):
    """The names of the parameters that terms are, one after another; None if one of them is anything else."""
    return tuple(term.data for term in terms) if all(term.op == "parameter" for term in terms) else None


def _products(gates, terms, input_name):
    """Name of a parameter -> the products that it is a part of, as equations have them."""
    found = {}
    for node in (node for own in gates.values() for node in own.values()):
        vector = (node.args[0].name or "a computed value") if node.args else input_name
        for name in parameters_in((terms[node.data],)):
            found.setdefault(name, []).append(f"{term_text(terms[node.data])} @ {vector}")
    return {name: " and ".join(dict.fromkeys(products)) for name, products in found.items()}


def _vector(name):
    """The `Term` of a bias or a parameter per unit; of none zeros."""
    if name is None:
        return Term("zero")
    return Term("fill" if name.startswith(SCALARS) else "parameter", data=name)


def check_names(names, place):
    """Refuse names that arrays cannot have."""
    found = {}
    for name in names:
        flat = flat_name(name)
        if flat in STACKED.values():
            raise error(
                f"a vector may not be named p.{name}: that is the name of all of a layer's; take another", place
            )
        if flat.startswith("_") or not flat.isidentifier():
            raise error(f"a vector may not be named p.{name}; take an ordinary name", place)
        if found.setdefault(flat, name) != name:
            raise error(f"p.{found[flat]} and p.{name} would both be called {flat}; rename one", place)


class _Sizes:
    """The shapes of matrices, worked out from where they stand.

    Args:
        columns: name -> number of columns, where it is said.
        products: name -> the products that it is a part of, in words.

    Attributes:
        shapes: name -> [rows, columns], letters or ints.
        equal: what has to be equal besides.
    """

    def __init__(self, columns, place, products):
        self.shapes, self.equal, self._place, self._products = {}, [], place, products
        for name, count in columns.items():
            self.shapes[name] = [None, count]

    def of(self, terms, shapes):
        """The terms of W and R with the size of each identity in them.

        Args:
            terms: kind -> `Term`s. shapes: kind -> (rows, columns) of each.
        """
        roots = [pair for kind, own in terms.items() for pair in zip(own, shapes[kind], strict=True)]
        for _ in range(1 + len(roots)):  # what is found out about one matrix may tell the size of another
            self.equal.clear()
            found = [self._resolved(term, *shape)[0] for term, shape in roots]
        unknown = [name for name, shape in self.shapes.items() if None in shape]
        if unknown:
            name = unknown[0]
            raise error(
                f"nothing says how many columns p.{name} has; say so: numbarnn.columns(p.{name}, 8)", self._place
            )
        kinds = [kind for kind, own in terms.items() for _ in own]
        return {kind: tuple(term for of, term in zip(kinds, found, strict=True) if of == kind) for kind in terms}

    def _resolved(self, term, rows, columns):
        """(the term, its rows, its columns) of a matrix, None for a size that is not known; a scalar stays as it is."""
        op, args = term.op, term.args
        if op == "parameter":
            if term.data.startswith(SCALARS):
                return term, rows, columns
            shape = self.shapes.setdefault(term.data, [None, None])
            products = self._products.get(term.data, "a projection")
            why = f"p.{term.data} stands in {products} (else take a matrix for each)"
            shape[:] = self._one(shape[0], rows, why), self._one(shape[1], columns, why)
            return term, *shape
        if op in ("eye", "lower"):
            size = self._one(rows, columns, term.data if term.data not in "HIP" else "an identity is square")
            return (term if size is None else term._replace(data=size)), size, size
        if op == "constant" and term.data.array is None:
            return term._replace(data=term.data.with_shape(rows, columns)), rows, columns
        if op == "constant":
            why = f"{term_text(term)} is a matrix of the equations"
            height, width = term.data.shape
            return term, self._one(height, rows, why), self._one(width, columns, why)
        if op == "number":
            return term, rows, columns
        if op == "transpose":
            inner, columns, rows = self._resolved(args[0], columns, rows)
            return term._replace(args=(inner,)), rows, columns
        if op == "product":
            left, rows, size = self._resolved(args[0], rows, None)
            right, size, columns = self._resolved(args[1], size, columns)
            left, rows, size = self._resolved(left, rows, size)
            return term._replace(args=(left, right)), rows, columns
        found = []
        for part in args:
            part, rows, columns = self._resolved(part, rows, columns)
            found.append(part)
        return term._replace(args=tuple(found)), rows, columns

    def _one(self, size, other, why):
        """The size that both are; None is one that is not known."""
        if None in (size, other) or size == other:
            return other if size is None else size
        if isinstance(size, int) and isinstance(other, int):
            raise error(f"{why}: {size} and {other} are different", self._place)
        if not any({size, other} == {equal.one, equal.other} and equal.why == why for equal in self.equal):
            self.equal.append(Equal(size, other, why))
        return other if isinstance(size, int) else size


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
