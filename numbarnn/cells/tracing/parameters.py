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


def layout_of(structure, place, input_name, side=None):
    """The `Layout` of a `Structure`; errors point to a place, and call x by the name that the equations give it.
    side: name -> width of side inputs."""
    sizes = Sizes(structure, place, input_name)
    usual = {"W": ("H", "I"), "R": ("H", "P" if structure.projection else "H"), "W_hr": ("P", "H")}
    rows, derived, placed, unusual = {}, {}, set(), False
    for kind, own in sizes.matrices.items():
        plain = dict.fromkeys(term.data for term, shape in own if term.op == "parameter" and shape == usual[kind])
        unusual = unusual or any(shape != usual[kind] for _, shape in own)
        rows[kind] = tuple(name for name in plain if name not in placed)
        derived[kind] = tuple(term for term, _ in own)
        placed.update(plain)
    if unusual and structure.heads > 1:
        raise error("numbarnn.heads cannot go with states of other sizes than H; use matrices without heads", place)
    vectors = {}  # that are arrays of their own -> size
    for kind, biases in structure.biases.items():
        gates = structure.gates if kind == "b_w" else structure.all_recurrent
        own = {biases[gate]: sizes.of(node) for gate, node in gates.items() if gate in biases}
        own = {name: size for name, size in own.items() if not name.startswith(SCALARS)}
        rows[kind] = tuple(name for name, size in own.items() if size == "H")
        vectors |= {name: size for name, size in own.items() if size != "H"}
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
            why = "an array of the equations has a number per unit (numbarnn.constant(lambda H: ...) is one of any H)"
            sizes.equal[Equal(*constant.shape, per_unit[name], why)] = None
    as_they_are = rows | {"per_unit": tuple(name for name, size in per_unit.items() if size == "H")}
    derived = {kind: terms for kind, terms in derived.items() if not _are(terms, as_they_are[kind])}
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


def _are(terms, names):
    """Whether terms are the parameters of these names, one after another."""
    return len(terms) == len(names) and all(
        term.op == "parameter" and term.data == name for term, name in zip(terms, names, strict=True)
    )


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
                f"a vector must not be named p.{name}, which is a parameter of every layer; use another name", place
            )
        if flat.startswith("_") or not flat.isidentifier():
            raise error(f"a vector must not be named p.{name}; use a plain Python name", place)
        if found.setdefault(flat, name) != name:
            raise error(f"p.{found[flat]} and p.{name} would both be called {flat}; rename one", place)


class Sizes:
    """The sizes of all values and matrices: letters or ints, as far as the equations tell.

    What has to have one size is one group: what an operation takes element by element, and its result; a state before
    and after the step; the rows of a matrix and what it makes, its columns and what it multiplies. Where a group is
    told two sizes, the network has to make them equal.

    Args:
        structure: the `Structure`.
        place, input_name: as of `layout_of`.

    Attributes:
        states: the size of each state but the first.
        matrices: "W", "R" and "W_hr" -> (`Term`, with the size of each identity in it; its shape) of each matrix there.
        equal: keys are `Equal`s.
    """

    def __init__(self, structure, place, input_name):
        self._above, self._sizes, self.equal, self._place = {}, {}, {}, place
        graph, outputs, terms = structure.graph, structure.outputs, structure.terms
        nodes = reachable([*outputs, *structure.gates.values()])
        of_no_size = same_for_all(nodes)  # they go with any size
        states = [graph.leaf("state", number) for number in range(len(outputs))]
        alike = [(node, *parts_of(node)) for node in nodes
                 if node.op not in ("input", "product") or terms[node.data].op in ("eye", "lower")]  # fmt: skip
        alike += [*zip(states, outputs, strict=True)][bool(structure.projection) :]
        for own in alike:
            for one, other in pairwise(node for node in own if node not in of_no_size):
                self._join(one, other)
        told = [(node.args[0], "H", "a sum over units is over as many as h has") for node in nodes
                if node.op in OVER_UNITS]  # fmt: skip
        told += [(node, "I", terms[node.data].data) for node in nodes
                 if node.op == "input" and terms[node.data].op == "eye"]  # fmt: skip
        parts = [(node, terms[node.data].data) for node in nodes
                 if node.op == "input" and terms[node.data].op == "part"]  # fmt: skip
        told += [(node, "I" if part.start is None else part.width, f"{part.name} is used itself, element by element")
                 for node, part in parts if part.width != 1]  # fmt: skip
        told += [(outputs[0], "H", "h is made of it")] if structure.projection else []
        told += [(states[0], "P" if structure.projection else "H", "h is of the hidden size")]
        for number, size in sorted(structure.sizes.items()):
            what = f"state {states[number].name} has {size} units, and what meets element by element or in a sum over"
            told.append((states[number], size, f"{what} units has one size (a matrix changes it)"))
        for node, size, why in sorted(told, key=lambda one: {"H": 0, "P": 1}.get(one[1], 2)):
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
        for _ in range(2):  # what is found out about one matrix may tell the size of another
            self.matrices = {
                kind: [(self._sized(*one), (self.of(one[1]), self.of(one[2]))) for one in matrices]
                for kind, matrices in own.items()
            }
        for name in parameters_in([term for matrices in own.values() for term, *_ in matrices]):
            if not name.startswith(SCALARS) and None in self.of_matrix(name):
                raise error(f"nothing says how many columns p.{name} has; say so: numbarnn.columns(p.{name}, 8)", place)

    def of(self, item):
        """The size of a node, or of a matrix' (name, 0 for its rows or 1 for its columns); of a size itself."""
        return item if isinstance(item, str | int) else self._sizes.get(self._root(item))

    def of_matrix(self, name):
        """The (rows, columns) of a parameter."""
        return self.of((name, 0)), self.of((name, 1))

    def _root(self, item):
        while item in self._above:
            item = self._above[item]
        return item

    def _join(self, one, other):
        """Put two items into one group, of which at least one has no size yet."""
        first, second = self._root(one), self._root(other)
        if first != second:
            self._above[second] = first
            self._sizes |= {first: self._sizes.pop(second)} if second in self._sizes else {}

    def _same(self, one, other, why):
        """Let two items, or an item and a size, be equal."""
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
        """A matrix' term with the sizes of identities and constants in it; notes what its shape tells of others."""
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


def _products(own, input_name):
    """Name of a parameter -> the products that it is a part of, as equations have them; `own` are (the `Term`, its
    rows, what it multiplies or "I")."""
    found = {}
    for term, _, vector in own:
        text = input_name if vector == "I" else vector.name or "a computed value"
        for name in parameters_in((term,)):
            found.setdefault(name, {})[f"{term_text(term)} @ {text}"] = None
    return {name: " and ".join(products) for name, products in found.items()}
