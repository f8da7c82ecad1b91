"""Make cells for derivatives of higher order: a cell's equations with all inputs open, and their tangent.

The tangent of a step is linear in the tangents of its inputs. Its factors follow from values of the step itself. So the
backward of two cells gives second derivatives:

    primal    computes the equations and also returns the values that the factors need
    tangent   computes the derivative of the new states along the tangents of the inputs, with those values as inputs

Everything that does not depend on earlier steps is an input of both, as W x of a layer with input_mode="given": W x,
biases inside of gates, per-unit parameters, random numbers. R is their only matrix.
"""

import inspect
from functools import cache
from typing import NamedTuple

from numbarnn.cells.definition import CELLS
from numbarnn.cells.tracing.decorator import TracedCell, cell
from numbarnn.cells.tracing.derive import RULES
from numbarnn.cells.tracing.graph import COMPARISONS, computable, consumers, is_const, reachable
from numbarnn.cells.tracing.saving import smallest_cut
from numbarnn.cells.tracing.values import Value

_COMPUTED_BEFORE = ("input", "product", "state", "noise", "vector", "row_sum", "row_max")


class Opened(NamedTuple):
    """The primal and the tangent cell of a cell.

    Inputs are named "W.i" (gate of W x), "Z.n" (bias of another product), "U.peep" (per-unit parameter), "N.n0" (random
    number) and "S.s0" (value that the primal cell computes). Each has a bias.

    Attributes:
        primal: the cell with all inputs open. After the cell's states it returns the values "S", then zeros, which
            reserve the places of the tangents of "W", "Z" and "U".
        tangent: the cell of the tangents. Its inputs are the states that the primal cell returns, but the first.
        inputs, tangent_inputs: names of both cells' inputs in the order of their gates.
        merged: gate of R -> gate of W x, where only their sum is used.
        operands: gate of R -> number of the tangent cell's input that R multiplies.
        num_states: number of states of the cell itself.
    """

    primal: TracedCell
    tangent: TracedCell
    inputs: tuple
    tangent_inputs: tuple
    merged: dict
    operands: dict
    num_states: int


def equations_of(known):
    """Return the `TracedCell` with the equations of a `Cell`.

    Raises:
        NotImplementedError: the cell is written as functions, so that its equations are unknown.
    """
    if isinstance(known, TracedCell):
        return known
    from numbarnn.cells import library  # traces its cells

    if known.varied_by:
        return library.lstm_with_options(**dict(known.varied_by))
    if CELLS.get(known.name) is known:
        return getattr(library, known.name)
    raise NotImplementedError(
        f"cell {known.name} is written as functions: derivatives of higher order, schedule 'loop' and recorded values "
        "need equations, @numbarnn.cell def ...(x, h, p)"
    )


@cache
def opened(traced):
    """Return the `Opened` of a `TracedCell`."""
    structure = traced.structure
    outputs, recurrent, heads = structure.outputs, structure.all_recurrent, structure.heads
    nodes, zero = reachable(outputs), structure.graph.const(0)
    merged, names = _merged(structure, nodes), _names_of_inputs(structure)
    tangents = _tangents(structure, nodes, names, merged)
    new, primal = [tangents[node] for node in outputs], set(nodes)
    over_units = ("product", "row_sum", "row_max")
    constant = computable(nodes, lambda node: node.op in ("const", "units"), barriers=over_units)
    # values of the primal cell that the tangents depend on, and the fewest values to compute them from
    needed = {node for node in reachable(new, stop=primal) if node in primal} - constant
    saved = smallest_cut(needed, constant, "gates", _COMPUTED_BEFORE)
    multiplied = {gate: node.args[0] for gate, node in recurrent.items()}
    exposed = [*outputs[1:], *(node for node in dict.fromkeys([*saved, *multiplied.values()])
                               if node not in outputs[1:])]  # fmt: skip
    saved_as = {node: f"S.s{number}" for number, node in enumerate(exposed)}
    moving = [f"W.{name}" for name in structure.gates] + [f"Z.{gate}" for gate in recurrent if gate not in merged]
    moving += [f"U.{name}" for name in structure.per_unit]

    def of_tangent(inputs, states, p, node, args):
        if node in saved_as:
            return inputs[saved_as[node]]
        if node.op == "product":
            return _product(p, node.data[1], args[0], heads)
        if node.op == "tangent":
            return states[node.data] if isinstance(node.data, int) else inputs[node.data]
        return None

    returned = [outputs[0], *exposed, *[zero] * len(moving)]
    noise = [f"N.n{number}" for number in range(len(structure.noise))]
    of_primal = _replacement(structure, names, merged)
    primal_cell, inputs = _cell(f"{traced.name}_opened", traced.states, returned, (), of_primal, moving + noise)
    both = [*saved_as.values(), *moving]
    tangent, tangent_inputs = _cell(f"{traced.name}_tangent", traced.states, new, saved_as, of_tangent, both)
    operands = {gate: exposed.index(node) for gate, node in multiplied.items()}
    return Opened(primal_cell, tangent, inputs, tangent_inputs, merged, operands, len(outputs))


def values_by_name(traced):
    """Return name -> node of each variable of the equations, and of each state after the step."""
    code = getattr(traced.definition, "__code__", None)  # a callable object has none
    last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno) if code else 0

    def is_own(node):  # made by the equations, not by a function that they call
        return (
            code and node.place and node.place[0] == code.co_filename and code.co_firstlineno <= node.place[1] <= last
        )

    structure = traced.structure  # in its graph, products with x contain their biases
    whole = [node for gate, node in structure.gates.items() if gate not in structure.biases["b_w"]] + structure.noise
    named = [node for node in reachable(structure.outputs) if node.name and (node.args or node in whole)]
    by_name = {node.name: node for node in sorted(named, key=lambda node: (bool(is_own(node)), node.number))}
    return by_name | dict(zip(traced.states, traced.structure.outputs, strict=True))


@cache
def looked_into(traced, names):
    """Return the `Opened` of a cell whose primal cell returns, after its states, the values of these names.

    Inputs "E.0", "E.1", ... are added to the new states, so that their gradients are those of each step's states. There
    is no tangent cell."""
    structure = traced.structure
    outputs, recurrent, graph = structure.outputs, structure.all_recurrent, structure.graph
    added = {graph.leaf("added", number): f"E.{number}" for number in range(len(outputs))}
    new_states = [graph.make("add", node, one) for node, one in zip(outputs, added, strict=True)]
    returned = [*new_states, *map(values_by_name(traced).get, names)]
    inputs = _names_of_inputs(structure)
    order = [*inputs.values(), *(f"Z.{gate}" for gate in recurrent), *added.values()]
    replaced = _replacement(structure, inputs | added, merged={})
    inside, inputs = _cell(f"{traced.name}_inside", traced.states, returned, (), replaced, order)
    return Opened(inside, None, inputs, (), {}, dict.fromkeys(recurrent), len(outputs))


def _names_of_inputs(structure):
    """Return node -> name of the input that replaces it."""
    names = {node: f"W.{name}" for name, node in structure.gates.items()}
    names |= {node: f"U.{name}" for name, node in structure.per_unit.items()}
    return names | {node: f"N.n{number}" for number, node in enumerate(structure.noise)}


def _replacement(structure, names, merged):
    """Return the function for `_cell` that replaces nodes by inputs (`names`), and products by R v, plus a bias unless
    `merged`."""
    gate_of = {node: gate for gate, node in structure.all_recurrent.items()}

    def replaced(inputs, states, p, node, args):
        if node in names:
            return inputs[names[node]]
        if node.op == "product":
            gate = gate_of[node]
            product = _product(p, gate, args[0], structure.heads)
            return product if gate in merged else product + inputs[f"Z.{gate}"]
        return states[node.data] if node.op == "state" else None

    return replaced


def _merged(structure, nodes):
    """Return gate of R -> gate of W x, for gates whose only use is the sum of both."""
    users, gates = consumers(nodes), {node: name for name, node in structure.gates.items()}
    merged = {}
    for gate, node in structure.all_recurrent.items():
        if len(users[node]) == 1 and users[node][0].op == "add" and node not in structure.outputs:
            other = next((part for part in users[node][0].args if part is not node), None)
            if other in gates and len(users[other]) == 1 and other not in structure.outputs:
                merged[gate] = gates[other]
    return merged


def _tangents(structure, nodes, names, merged):
    """Return node -> the node of its tangent, by the rules of backward, which are linear in the gradient."""
    graph, gate_of = structure.graph, {node: gate for gate, node in structure.all_recurrent.items()}
    zero, tangents = graph.const(0), {}

    def make(op, *args):
        return graph.const(*args) if op == "const" else graph.make(op, *args)

    for node in nodes:
        graph.place, total = node.place, zero
        if node.op == "state":
            total = graph.leaf("tangent", node.data)
        elif node.op == "product":
            gate = gate_of[node]
            if not is_const(tangents[node.args[0]], 0):
                total = graph.product(("tangent", gate), tangents[node.args[0]])
            if gate not in merged:
                total = make("add", total, graph.leaf("tangent", f"Z.{gate}"))
        elif node.op == "input" or (node.op == "vector" and node.data not in structure.terms):
            total = graph.leaf("tangent", names[node])
        elif node.op == "row_sum":
            inner = tangents[node.args[0]]
            total = zero if is_const(inner, 0) else make("row_sum", inner)
        elif node.op in RULES:
            for number, part in enumerate(node.args):
                tangent = tangents[part]
                if node.op not in COMPARISONS and not is_const(tangent, 0):
                    for place, a, b in RULES[node.op](make, node, tangent):
                        if place == number:
                            total = make("add", total, a if b is None else make("mul", a, b))
        tangents[node] = total
    return tangents


def _named(p, name):
    """Return the parameter of a name such as "W.i"."""
    group, _, last = name.partition(".")
    return getattr(getattr(p, group), last)


def _product(p, gate, vector, heads):
    """Return the product of a gate's matrix in R with a value."""
    matrix = getattr(p.R, gate)
    return (matrix._with(heads=heads) if heads > 1 else matrix) @ vector


def _cell(name, states, outputs, stop, replaced, inputs):
    """Return (cell whose new states are `outputs`, nodes of another cell's graph; names of its inputs by gate).

    Args:
        states: names of the first states. stop: nodes whose arguments are not computed. inputs: names in order.
        replaced: function (name of an input -> value, states, p, node, its arguments) -> value of the node, or None.
    """

    def equations(x, *values):
        *states, p = values
        trace, computed = x._trace, {}
        by_name = {one: _named(p, one) @ x + getattr(p.b, one.replace(".", "_")) for one in inputs}
        trace.kept = [one._node for one in by_name.values()]
        for node in reachable(outputs, stop=stop):
            args = [computed[part] for part in node.args if part in computed]
            value = replaced(by_name, states, p, node, args)
            if value is None and node.op == "const":
                value = Value(trace, trace.graph.const(node.data))
            elif value is None and node.op == "units":
                value = trace.units()
            elif value is None:
                value = Value(trace, trace.graph.make(node.op, *(one._node for one in args)))
            if node.name and node.op != "const":
                value._name_it(node.name)
            computed[node] = value
        return [computed[node] for node in outputs]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [*states, *(f"exposed_{number}" for number in range(len(outputs) - len(states)))]
    equations.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in ("x", *names, "p")])
    result = cell(equations, name=name)
    return result, tuple(node.data for node in result.structure.gates.values())
