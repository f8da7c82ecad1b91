"""Print a cell: `numbarnn.show`."""

from __future__ import annotations

import inspect

from numbarnn.cells.definition import Cell
from numbarnn.cells.layout import STACKED, as_text, flat_name, listed, term_text
from numbarnn.common.precision import itemsize


def show(cell: Cell) -> str:
    """Print a cell's equations, parameters, products, what it saves for backward, and its source.

    Args:
        cell: a `Cell`, made by `numbarnn.cell` or built in (`numbarnn.cells.LSTM`).

    Returns:
        the text.

    Raises:
        TypeError: cell is no `Cell`.
    """
    if not isinstance(cell, Cell):
        raise TypeError(f"show takes a Cell, such as numbarnn.cell makes, got {cell!r}")
    sizes = ("H", *(cell.parameters.states or ("H",) * cell.num_private))
    states = [name if size == "H" else f"{name} ({size})" for name, size in zip(cell.states, sizes, strict=True)]
    parts = [f"cell {cell.name}, states {' '.join(states)}"]
    equations = getattr(cell, "equations", "")
    if equations:
        chosen = ", ".join(f"{name}={value!r}" for name, value in cell.hyperparameters.items())
        parts.append(_section("equations" + (f" ({chosen})" if chosen else ""), equations.rstrip()))
    parts.append(_section("parameters", "\n".join(_parameters(cell))))
    parts.append(_section("a step", "\n".join(_step(cell))))
    if cell.noise or cell.drop_connect:
        parts.append(_section("random numbers, in training", "\n".join(_random(cell))))
    parts.append(_section("saved for backward", _saved(cell)))
    functions = [stage.forward for stage in cell.stages] + [cell.forward]
    functions += [stage.backward for stage in reversed(cell.stages)] + [cell.backward]
    by_hand = "\n\n".join(inspect.getsource(one).rstrip() for one in functions if not cell.source)
    parts.append(_section("source", cell.source.rstrip() or by_hand))
    text = "\n\n".join(parts)
    print(text)
    return text


def _section(title, text):
    return f"{title}\n" + "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def _parameters(cell):
    """Yield a line per array with name, shape and parameters, then all parameters by shape."""
    layout, width = cell.parameters, "P" if cell.projected else "H"
    columns = {"W": ", I", "R": f", {width}/{cell.heads}" if cell.heads > 1 else f", {width}"}
    gates = _gates_of_parameters(cell)
    for kind, names in layout.rows.items():
        shape = "(P, H)" if kind == "W_hr" else f"({len(names)}H{columns.get(kind, ',')})"
        yield _line(
            STACKED[kind], shape, ", ".join(f"{gates[name]}: p.{name}" if name in gates else name for name in names)
        )
    for name, shape in layout.own.items():
        yield _line(flat_name(name), as_text(shape), f"p.{name}")
    for kind, own in (("W", cell.gates), ("R", cell.gates_of_ah), ("W_hr", cell.states[:1])):
        for gate, term in zip(own, layout.derived.get(kind, ()), strict=False):
            if term.op != "parameter":
                yield f"derived once per call, for gate {gate} of {STACKED[kind]}: {term_text(term)}"
    for gate, term in zip(cell.per_unit, layout.derived.get("per_unit", ()), strict=False):
        if term.op == "constant":
            numbers = [] if term.data.array is None else [f"{number:g}" for number in term.data.array.reshape(-1)]
            shown = f"{' '.join(numbers[:6])}{' ...' if len(numbers) > 6 else ''}" if numbers else term.data
            yield f"{_line(gate, as_text(term.data.shape), 'not learnt')}: {shown}"
    yield "by name: " + "; ".join(listed(layout.shapes(width, cell.heads)))
    unused = cell.structure.unused if gates else ()
    if unused:
        yield "not parameters, as what is returned does not depend on them: " + ", ".join(f"p.{n}" for n in unused)


def _line(name, shape, text):
    return f"{name:<11} {shape:<10} {text}".rstrip()


def _gates_of_parameters(cell):
    """Return name of a matrix or bias -> its gate, {} for a cell written as functions."""
    structure = getattr(cell, "structure", None)
    if structure is None:
        return {}
    products = structure.gates, structure.all_recurrent
    found = {node.data: gate for own in products for gate, node in own.items()}
    return found | {name: gate for own in structure.biases.values() for gate, name in own.items()}


def _step(cell):
    """Yield a line per product and pointwise stage of a step, in their order."""
    yield f"products with x, of all steps at once: {' '.join(cell.gates)}"
    if cell.recurrent_gates:
        yield f"products with {cell.states[0]}: {' '.join(cell.recurrent_gates)}"
    for stage in cell.stages:
        made_by = stage.forward.__name__
        if stage.sums:
            yield f"{'largest' if stage.largest else 'sums'} over units: {' '.join(stage.sums)} ({made_by})"
        else:
            yield f"pointwise: the vector v ({made_by}); products with v: {' '.join(stage.gates)}"
    yield f"pointwise: the new states ({cell.forward.__name__})"
    if cell.projected:
        yield f"product: {cell.states[0]}, P wide, of what the functions call {cell.states[0]}"


def _random(cell):
    """Yield a line per random number in training."""
    for number, noise in enumerate(cell.noise):
        when = "each step" if noise.each_step else "one for all steps of a sequence"
        values = (
            f"uniform from 0 to 1; in inference {noise.mean:g}"
            if noise.uniform
            else (f"0 with probability {noise.rate:g}, else {noise.kept:g}; in inference {noise.mean:g}")
        )
        yield f"number {number}, {when}: {values}"
    for gate, rate in zip(cell.gates_of_ah, cell.drop_connect, strict=False):
        yield f"weights of gate {gate} of weight_hh, one choice per call: 0 with probability {rate:g}"


def _saved(cell):
    count = len(cell.saved)
    sums = f"\nthe {cell.num_sums} sums of each step and sequence" if cell.num_sums else ""
    if not count:
        return "nothing: states before and after the step are enough" + sums
    sizes = ", ".join(f"{count * itemsize(dtype)} in {dtype}" for dtype in ("float32", "float16"))
    return f"{' '.join(cell.saved)}\n{count} value{'s' * (count > 1)} per step and unit; bytes: {sizes}{sums}"
