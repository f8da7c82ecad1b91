"""The names and places of a cell's parameters: the `Layout` of its equations.

The rule, for each parameter by its own equations alone: a matrix that multiplies x stands in weight_ih, one that
multiplies anything else in weight_hh, the one that makes the first state is weight_hr; a vector that is added to a
product with x, and used nowhere else, stands in bias_ih, one added to another product in bias_hh. Everything else is an
array of its own. Gates without a bias have none in these arrays; kernels are given zeros.
"""

from numbarnn.cells.layout import Layout, Term


def layout_of(structure):
    """The `Layout` of a `Structure`."""
    gates = {"W": structure.gates, "R": structure.all_recurrent}
    rows = {kind: tuple(node.data for node in own.values()) for kind, own in gates.items()}
    rows["W_hr"] = (structure.projection,) if structure.projection else ()
    formed = {}
    for kind, known_as, own in (("b_w", "input", gates["W"]), ("b_r", "recurrent", gates["R"])):
        biases = structure.biases[known_as]
        rows[kind] = tuple(biases.values())
        if 0 < len(biases) < len(own):
            formed[kind] = tuple(
                Term("parameter", data=biases[gate]) if gate in biases else Term("zero") for gate in own
            )
    vectors = [node.data for node in structure.per_unit.values()]
    return Layout({kind: names for kind, names in rows.items() if names}, dict.fromkeys(vectors, ("H",)), formed)
