"""Determine the `Layout` of a cell's equations: the names, places and sizes of its parameters.

A matrix that multiplies x is part of weight_ih, one that multiplies anything else part of weight_hh, and the projection
to the first state is weight_hr. A vector whose only use is to be added to a product with x is part of bias_ih; one that
is added to another product is part of bias_hh. All others are separate arrays: other vectors, scalars, matrices that
are only parts of expressions, and matrices that make or multiply states of another size than H.
"""

from itertools import pairwise

from numbarnn.cells.layout import SCALARS, STACKED, Equal, Layout, Term, flat_name, parameters_in, term_text
from numbarnn.cells.tracing.errors import error
from numbarnn.cells.tracing.graph import OVER_UNITS, parts_of, reachable, same_for_all


def layout_of(structure, place, input_name, side=None):
    """Return the `Layout` of a `Structure`.

    place, input_name: the place and the name of x in errors. side: name -> width of side inputs."""
    sizes = Sizes(structure, place, input_name)
    usual = {"W": ("H", "I"), "R": ("H", "P" if structure.projection else "H"), "W_hr": ("P", "H")}
    rows, derived, placed, unusual = {}, {}, set(), False
    for kind, matrices in sizes.matrices.items():
        plain = dict.fromkeys(term.data for term, shape in matrices if term.op == "parameter" and shape == usual[kind])
        unusual = unusual or any(shape != usual[kind] for _, shape in matrices)
        rows[kind] = tuple(name for name in plain if name not in placed)
        derived[kind] = tuple(term for term, _ in matrices)
        placed.update(plain)
    if unusual and structure.heads > 1:
        raise error("numbarnn.heads cannot go with states of other sizes than H. Use matrices without heads", place)
    vectors = {}  # name of a vector that is a separate array -> size
    for kind, biases in structure.biases.items():
        gates = structure.gates if kind == "b_w" else structure.all_recurrent
        size_of = {biases[gate]: sizes.of(node) for gate, node in gates.items() if gate in biases}
        size_of = {name: size for name, size in size_of.items() if not name.startswith(SCALARS)}
        rows[kind] = tuple(name for name, size in size_of.items() if size == "H")
        vectors |= {name: size for name, size in size_of.items() if size != "H"}
        if biases:
            derived[kind] = tuple(_vector(biases.get(gate)) for gate in gates)
    per_unit = {node.data: sizes.of(node) for node in structure.per_unit.values()}
    constants = {
        name: structure.terms[name].data.with_shape(per_unit[name]) for name in per_unit if name in structure.terms
    }
    derived["per_unit"] = tuple(
        Term("constant", data=constants[name]) if name in constants else _vector(name) for name in per_unit
    )
    for name, constant in constants.items():
        if constant.array is not None:
            why = "an array of the equations has one number per unit (numbarnn.constant(lambda H: ...) fits any H)"
            sizes.equal[Equal(*constant.shape, per_unit[name], why)] = None
    plain = rows | {"per_unit": tuple(name for name, size in per_unit.items() if size == "H")}
    plain = {kind: tuple(Term("parameter", data=name) for name in names) for kind, names in plain.items()}
    derived = {kind: terms for kind, terms in derived.items() if terms != plain[kind]}
    stacked = {name for names in rows.values() for name in names}
    inside = [name for name in parameters_in(sum(derived.values(), ())) if name not in stacked]
    scalars = dict.fromkeys((name for name in inside if name.startswith(SCALARS)), ())
    vectors |= {name: size for name, size in per_unit.items() if name not in scalars and name not in constants}
    own = {name: (size,) for name, size in vectors.items()} | scalars
    own |= {name: sizes.of_matrix(name) for name in inside if name not in own}
    check_names(own, place)
    states = sizes.states if any(size != "H" for size in sizes.states) else ()
    rows = {kind: names for kind, names in rows.items() if names}
    return Layout(rows, own, derived, tuple(sizes.equal), states, side or {})


def _vector(name):
    """Return the `Term` of a bias or per-unit parameter, zeros for None."""
    if name is None:
        return Term("zero")
    return Term("fill" if name.startswith(SCALARS) else "parameter", data=name)


def check_names(names, place):
    """Raise CellError for names that a layer's arrays cannot have."""
    names_by_array = {}
    for name in names:
        flat = flat_name(name)
        if flat in STACKED.values():
            raise error(
                f"a vector must not be named p.{name}, which is a parameter of every layer. Use another name", place
            )
        if flat.startswith("_") or not flat.isidentifier():
            raise error(f"a vector must not be named p.{name}. Use a plain Python name", place)
        if names_by_array.setdefault(flat, name) != name:
            raise error(f"p.{names_by_array[flat]} and p.{name} would both be called {flat}. Rename one", place)


class Sizes:
    """Infer the sizes (letters or ints) of all values and matrices.

    Items that must have one size form a group (union-find): arguments and result of an elementwise operation; a state
    before and after the step; a matrix' rows and its product; its columns and the vector. If a group gets two sizes,
    the layer must make them equal (`Equal`). Items are nodes, and (name of a matrix, 0 for rows or 1 for columns).

    Args:
        structure, place, input_name: see `layout_of`.

    Attributes:
        states: the size of each state but the first. equal: its keys are `Equal`s.
        matrices: "W", "R" and "W_hr" -> list of (`Term` with sizes of identities and constants, shape).
    """

    def __init__(self, structure, place, input_name):
        self._above, self._sizes, self.equal, self._place = {}, {}, {}, place
        graph, outputs, terms = structure.graph, structure.outputs, structure.terms
        nodes = reachable([*outputs, *structure.gates.values()])
        of_no_size = same_for_all(nodes)
        states = [graph.leaf("state", number) for number in range(len(outputs))]
        alike = [(node, *parts_of(node)) for node in nodes
                 if node.op not in ("input", "product") or terms[node.data].op in ("eye", "lower")]  # fmt: skip
        alike += [*zip(states, outputs, strict=True)][bool(structure.projection) :]
        for group in alike:
            for one, other in pairwise(node for node in group if node not in of_no_size):
                self._join(one, other)
        required = []  # (node, size, why)
        for node in nodes:
            term = terms[node.data] if node.op == "input" else None
            if node.op in OVER_UNITS:
                required.append((node.args[0], "H", "a sum over units is over as many as h has"))
            elif term and term.op == "eye":
                required.append((node, "I", term.data))
            elif term and term.op == "part" and term.data.width != 1:
                width = "I" if term.data.start is None else term.data.width
                required.append((node, width, f"{term.data.name} is used itself, element by element"))
        required += [(outputs[0], "H", "h is made of it")] if structure.projection else []
        required += [(states[0], "P" if structure.projection else "H", "h is of the hidden size")]
        for number, size in sorted(structure.sizes.items()):
            what = f"state {states[number].name} has {size} units, and what meets element by element or in a sum over"
            required.append((states[number], size, f"{what} units has one size (a matrix changes it)"))
        for node, size, why in sorted(required, key=lambda one: {"H": 0, "P": 1}.get(one[1], 2)):
            if node not in of_no_size:
                self._same(node, size, why)
        for node in (*nodes, *states):
            self._sizes.setdefault(self._root(node), "H")
        self.states = tuple(map(self.of, states[1:]))
        self._sizes |= {(name, 1): count for name, count in structure.columns.items()}
        own = {
            "W": [(terms[node.data], node, node.args[0] if node.args else "I") for node in structure.gates.values()],
            "R": [(terms[node.data], node, node.args[0]) for node in structure.all_recurrent.values()],
            "W_hr": [(terms[structure.projection], "P", "H")] if structure.projection else [],
        }
        self._stands_in = _products(own["W"] + own["R"], input_name)
        for _ in range(2):  # the size of one matrix may determine that of another
            self.matrices = {
                kind: [(self._sized(*one), (self.of(one[1]), self.of(one[2]))) for one in matrices]
                for kind, matrices in own.items()
            }
        for name in parameters_in([term for matrices in own.values() for term, *_ in matrices]):
            if not name.startswith(SCALARS) and None in self.of_matrix(name):
                raise error(f"nothing says how many columns p.{name} has. Say so: numbarnn.columns(p.{name}, 8)", place)

    def of(self, item):
        """Return the size of an item, None if unknown; a size is returned unchanged."""
        return item if isinstance(item, str | int) else self._sizes.get(self._root(item))

    def of_matrix(self, name):
        """Return (rows, columns) of a parameter."""
        return self.of((name, 0)), self.of((name, 1))

    def _root(self, item):
        while item in self._above:
            item = self._above[item]
        return item

    def _join(self, one, other):
        """Merge the groups of two items, of which at most one has a size."""
        first, second = self._root(one), self._root(other)
        if first != second:
            self._above[second] = first
            self._sizes |= {first: self._sizes.pop(second)} if second in self._sizes else {}

    def _same(self, one, other, why):
        """Require that two items, or an item and a size, are equal."""
        first, second = self.of(one), self.of(other)
        if first is not None and second is not None:
            if isinstance(first, int) and isinstance(second, int) and first != second:
                raise error(f"{why}: {first} and {second} are different", self._place)
            if first != second:
                self.equal[Equal(first, second, why)] = None
        elif isinstance(other, str | int):
            self._sizes[self._root(one)] = other
        elif isinstance(one, str | int):
            self._sizes[self._root(other)] = one
        else:
            self._join(one, other)

    def _sized(self, term, rows, columns):
        """Return a matrix' term with the sizes of identities and constants; record the sizes that its shape implies."""
        op, args = term.op, term.args
        if op == "parameter" and not term.data.startswith(SCALARS):
            products = self._stands_in.get(term.data, "a projection")
            why = f"p.{term.data} stands in {products} (else take a matrix for each)"
            self._same((term.data, 0), rows, why)
            self._same((term.data, 1), columns, why)
        elif op in ("eye", "lower"):
            self._same(rows, columns, term.data)
            return term if self.of(rows) is None else term._replace(data=self.of(rows))
        elif op == "part":
            return term._replace(data=term.data._replace(rows=self.of(rows)))
        elif op == "constant" and term.data.array is None:
            return term._replace(data=term.data.with_shape(self.of(rows), self.of(columns)))
        elif op == "constant":
            for size, item in zip(term.data.shape, (rows, columns), strict=True):
                self._same(size, item, f"{term_text(term)} is a matrix of the equations")
        elif op == "transpose":
            return term._replace(args=(self._sized(*args, columns, rows),))
        elif op == "product":
            inner, right = ("inner", term), term.args[1]
            if right.op == "part":
                self._same(inner, right.data.width, f"{right.data.name} is of this width")
            return term._replace(args=(self._sized(args[0], rows, inner), self._sized(args[1], inner, columns)))
        return term._replace(args=tuple(self._sized(part, rows, columns) for part in args))


def _products(matrices, input_name):
    """Return name of a parameter -> text of the products with it. matrices: list of (`Term`, rows, vector or "I")."""
    found = {}
    for term, _, vector in matrices:
        text = input_name if vector == "I" else vector.name or "a computed value"
        for name in parameters_in((term,)):
            found.setdefault(name, {})[f"{term_text(term)} @ {text}"] = None
    return {name: " and ".join(products) for name, products in found.items()}
