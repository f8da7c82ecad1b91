"""Take a cell apart for derivatives of higher order: its equations with all inputs open, and their tangent.

The tangent of a step is linear in the tangents of its inputs, with factors that the step itself computes. So two cells
give every derivative that backward gives of one, and their own derived backward gives the second ones:

    primal    the equations, which also return the values that the factors are made of
    tangent   the derivative of each new state in the direction of given tangents, with those values as inputs

Both get what does not depend on earlier steps as W x of a layer with input_mode="given": W x itself, biases inside of
gates, parameters per unit, random numbers. R is their only matrix.
"""

import inspect
from functools import cache
from typing import NamedTuple

from numbarnn.cells.definition import CELLS
from numbarnn.cells.tracing.decorator import TracedCell, cell
from numbarnn.cells.tracing.derive import RULES
from numbarnn.cells.tracing.graph import COMPARISONS, consumers, is_const, reachable
from numbarnn.cells.tracing.saving import smallest_cut
from numbarnn.cells.tracing.values import Value

_COMPUTED_BEFORE = ("input", "product", "state", "noise", "vector", "row_sum", "row_max")


class Opened(NamedTuple):
    """A cell taken apart. Inputs have names: of the gates of W x "W.i", of biases of other products "Z.n", of
    parameters per unit "U.peep", of random numbers "N.n0", of values that the primal cell computes "S.s0". Each has a
    bias.

    Attributes:
        primal: the `Cell` with all inputs open. Behind its own states it returns the values "S", then zeros.
        tangent: the `Cell` of the tangents. Its inputs are the private states of the primal one: zeros make room for
            the tangents of "W", "Z" and "U".
        inputs: of the primal cell, in the order of its gates; tangent_inputs: of the tangent cell.
        merged: gate of R -> gate of W x with which it is added up, so that only their sum matters.
        operands: gate of R -> the number of the tangent cell's input that R multiplies.
        num_states: how many states are the cell's own."""

    primal: TracedCell
    tangent: TracedCell
    inputs: tuple
    tangent_inputs: tuple
    merged: dict
    operands: dict
    num_states: int


def equations_of(known, clip=None, propagate_nan=True):
    """Return the `TracedCell` with the equations of a cell.

    known: a `Cell`. clip: (lclip, rclip) if it is the LSTM with limits of c. propagate_nan: of these limits.

    Raises:
        NotImplementedError: the cell was written as functions, so that its equations are not known."""
    if isinstance(known, TracedCell):
        return known
    from numbarnn.cells import library  # traces its cells

    if clip:
        return library.lstm_with_limits(*clip, propagate_nan)
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
    merged, gate_of = _merged(structure, nodes), {node: gate for gate, node in recurrent.items()}
    names = {node: f"W.{name}" for name, node in structure.gates.items()}
    names |= {node: f"U.{name}" for name, node in structure.per_unit.items()}
    names |= {node: f"N.n{number}" for number, node in enumerate(structure.noise)}
    tangents = _tangents(structure, nodes, names, merged)
    new, primal = [tangents[node] for node in outputs], set(nodes)
    constant = _without_inputs(nodes)
    needed = {node for node in reachable(new, stop=primal) if node in primal} - constant
    saved = smallest_cut(needed, constant, "gates", _COMPUTED_BEFORE)
    multiplied = {gate: node.args[0] for gate, node in recurrent.items()}
    exposed = [*outputs[1:], *(node for node in dict.fromkeys([*saved, *multiplied.values()])
                               if node not in outputs[1:])]  # fmt: skip
    saved_as = {node: f"S.s{number}" for number, node in enumerate(exposed)}
    moving = [f"W.{name}" for name in structure.gates] + [f"Z.{gate}" for gate in recurrent if gate not in merged]
    moving += [f"U.{name}" for name in structure.per_unit]

    def of_primal(trace, inputs, states, p, node, args):
        if node in names:
            return inputs[names[node]]
        if node.op == "product":
            product = _product(p, gate_of[node], args[0], heads)
            return product if gate_of[node] in merged else product + inputs[f"Z.{gate_of[node]}"]
        return states[node.data] if node.op == "state" else None

    def of_tangent(trace, inputs, states, p, node, args):
        if node in saved_as:
            return inputs[saved_as[node]]
        if node.op == "product":
            return _product(p, node.data[1], args[0], heads)
        if node.op == "tangent":
            return states[node.data] if isinstance(node.data, int) else inputs[node.data]
        return None

    def made(kind, count, returned, stop, replaced, inputs):
        one = _cell(f"{traced.name}_{kind}", traced.states, count, returned, stop, replaced, inputs)
        return one, tuple(node.data for node in one.structure.gates.values())

    returned = [outputs[0], *exposed, *[zero] * len(moving)]
    noise = [f"N.n{number}" for number in range(len(structure.noise))]
    primal_cell, inputs = made("opened", len(returned), returned, (), of_primal, moving + noise)
    both = [*saved_as.values(), *moving]
    tangent, tangent_inputs = made("tangent", len(outputs), new, saved_as, of_tangent, both)
    operands = {gate: exposed.index(node) for gate, node in multiplied.items()}
    return Opened(primal_cell, tangent, inputs, tangent_inputs, merged, operands, len(outputs))


def values_by_name(traced):
    """Return name of a state, or of a variable of the equations -> its node; a state's is that after the step."""
    code = getattr(traced.definition, "__code__", None)  # a callable object has none
    last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno) if code else 0

    def is_own(node):  # of the equations themselves, not of a function that they call, whose variables have names too
        return (
            code and node.place and node.place[0] == code.co_filename and code.co_firstlineno <= node.place[1] <= last
        )

    structure = traced.structure  # whose products with x have their biases in them
    whole = [node for gate, node in structure.gates.items() if gate not in structure.biases["b_w"]] + structure.noise
    named = [node for node in reachable(structure.outputs) if node.name and (node.args or node in whole)]
    found = {node.name: node for node in sorted(named, key=lambda node: (bool(is_own(node)), node.number))}
    return found | dict(zip(traced.states, traced.structure.outputs, strict=True))


@cache
def looked_into(traced, names):
    """Return the `Opened` of a cell whose primal one also returns the values of these names, behind its own states; its
    inputs "E.0", ... are added to the new states, so that their gradients are those of each step's states. It has no
    tangent cell."""
    structure = traced.structure
    outputs, recurrent, graph = structure.outputs, structure.all_recurrent, structure.graph
    gate_of = {node: gate for gate, node in recurrent.items()}
    inputs_of = {node: f"W.{name}" for name, node in structure.gates.items()}
    inputs_of |= {node: f"U.{name}" for name, node in structure.per_unit.items()}
    inputs_of |= {node: f"N.n{number}" for number, node in enumerate(structure.noise)}
    added = {graph.leaf("added", number): f"E.{number}" for number in range(len(outputs))}
    biases = {gate: f"Z.{gate}" for gate in recurrent}
    own = [graph.make("add", node, one) for node, one in zip(outputs, added, strict=True)]

    def replaced(trace, inputs, states, p, node, args):
        if node in inputs_of or node in added:
            return inputs[inputs_of.get(node) or added[node]]
        if node.op == "product":
            product = _product(p, gate_of[node], args[0], structure.heads)
            return product + inputs[biases[gate_of[node]]]
        return states[node.data] if node.op == "state" else None

    returned = [*own, *map(values_by_name(traced).get, names)]
    order = [*inputs_of.values(), *biases.values(), *added.values()]
    made = _cell(f"{traced.name}_inside", traced.states, len(returned), returned, (), replaced, order)
    inputs = tuple(node.data for node in made.structure.gates.values())
    return Opened(made, None, inputs, (), {}, dict.fromkeys(recurrent), len(outputs))


def _merged(structure, nodes):
    """Return gate of R -> gate of W x, where one sum of both is the only use of either."""
    users, gates = consumers(nodes), {node: name for name, node in structure.gates.items()}
    found = {}
    for gate, node in structure.all_recurrent.items():
        if len(users[node]) == 1 and users[node][0].op == "add" and node not in structure.outputs:
            other = next((part for part in users[node][0].args if part is not node), None)
            if other in gates and len(users[other]) == 1 and other not in structure.outputs:
                found[gate] = gates[other]
    return found


def _without_inputs(nodes):
    """Return the nodes that are the same in every call: constants, the number of units, and what is made of these."""
    found = set()
    for node in nodes:
        made = node.args and node.op not in ("product", "row_sum", "row_max") and found.issuperset(node.args)
        if made or node.op in ("const", "units"):
            found.add(node)
    return found


def _tangents(structure, nodes, names, merged):
    """Return node -> the node of its tangent, by the rules of the backward: each is linear in what it passes on."""
    graph, gate_of = structure.graph, {node: gate for gate, node in structure.all_recurrent.items()}
    zero, found = graph.const(0), {}

    def make(op, *args):
        return graph.const(*args) if op == "const" else graph.make(op, *args)

    for node in nodes:
        graph.place, total = node.place, zero
        if node.op == "state":
            total = graph.leaf("tangent", node.data)
        elif node.op == "product":
            gate = gate_of[node]
            if not is_const(found[node.args[0]], 0):
                total = graph.product(("tangent", gate), found[node.args[0]])
            if gate not in merged:
                total = make("add", total, graph.leaf("tangent", f"Z.{gate}"))
        elif node.op == "input" or (node.op == "vector" and node.data not in structure.terms):
            total = graph.leaf("tangent", names[node])
        elif node.op == "row_sum":
            inner = found[node.args[0]]
            total = zero if is_const(inner, 0) else make("row_sum", inner)
        elif node.op in RULES:
            for number, part in enumerate(node.args):
                tangent = found[part]
                if node.op not in COMPARISONS and not is_const(tangent, 0):
                    for place, a, b in RULES[node.op](make, node, tangent):
                        if place == number:
                            total = make("add", total, a if b is None else make("mul", a, b))
        found[node] = total
    return found


def _named(p, name):
    """Return the parameter of a name such as "W.i"."""
    group, _, last = name.partition(".")
    return getattr(getattr(p, group), last)


def _product(p, gate, vector, heads):
    """Return the product of a gate of R with a value; blocks on the diagonal where the cell has heads."""
    matrix = getattr(p.R, gate)
    return (matrix._with(heads=heads) if heads > 1 else matrix) @ vector


def _cell(name, states, count, outputs, stop, replaced, inputs):
    """Make a cell that computes nodes of another one's graph.

    states: names of the first states. count: how many states it has. outputs: the nodes. stop: nodes whose arguments
    are not looked at. replaced: function (trace, name of an input -> its value, states, p, node, its arguments) ->
    what stands in place of a node, or None. inputs: names of inputs, in the order that its gates are to have."""

    def equations(x, *values):
        *states, p = values
        trace, made = x._trace, {}
        given = {one: _named(p, one) @ x + getattr(p.b, one.replace(".", "_")) for one in inputs}
        trace.kept = [one._node for one in given.values()]
        for node in reachable(outputs, stop=stop):
            args = [made[part] for part in node.args if part in made]
            value = replaced(trace, given, states, p, node, args)
            if value is None and node.op == "const":
                value = Value(trace, trace.graph.const(node.data))
            elif value is None and node.op == "units":
                value = trace.units()
            elif value is None:
                value = Value(trace, trace.graph.make(node.op, *(one._node for one in args)))
            if node.name and node.op != "const":
                value._name_it(node.name)
            made[node] = value
        return [made[node] for node in outputs]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [*states[:count], *(f"exposed_{number}" for number in range(count - len(states)))]
    equations.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in ("x", *own, "p")])
    return cell(equations, name=name)
