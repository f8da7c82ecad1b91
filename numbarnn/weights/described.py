"""Describe a layer of any cell in a file: the cell's name, a digest of its equations, and the layer's options.

A file has no equations that could be run. Its reader must have the cell; the digest shows that it is the same.
"""

from numbarnn import cells
from numbarnn.cells.definition import Cell

OPTIONS = ("bias", "bidirectional", "batch_first", "dropout", "proj_size", "input_mode", "cell_clip",
           "clip_propagate_nan")  # fmt: skip
_USUAL = {"proj_size": 0, "input_mode": "linear", "cell_clip": None, "clip_propagate_nan": True}


def describe(layer):
    """Return JSON's values that tell a layer but for its parameters."""
    options = {"bias": layer.bias_mode} | {name: getattr(layer, name) for name in OPTIONS[1:]}
    kept = {name: value for name, value in options.items() if name not in _USUAL or value != _USUAL[name]}
    sizes = {"input_size": layer.input_size, "hidden_size": list(layer.hidden_sizes)}
    return {"cell": layer.cell, "digest": _digest(layer.stack.cell)} | sizes | kept


def _digest(cell):
    """Return a digest of a cell's equations; None of a cell that is written as functions: the name has to do."""
    return getattr(cell, "digest", None)


def cell_of(description, given, source):
    """Return the `Cell` of a description: the given one, a built-in one or the library's, with the same equations.

    Args:
        given: a `Cell`, a name, or None. source: what the description comes from, for errors.

    Raises:
        ValueError: there is no such cell, it has another name or other equations.
    """
    name = description["cell"]
    if given is not None:
        cell = cells.get(given)
    else:
        from numbarnn.cells import library  # traces its cells

        known = getattr(library, name, None), cells.CELLS.get(name)  # some names are of both
        cell = known[description["digest"] is None] or next(filter(None, known), None)
    if not isinstance(cell, Cell):
        raise ValueError(f"{source} is a layer of the cell {name!r}, which is not numbarnn's own: pass cell=")
    if cell.name != name:
        raise ValueError(f"{source} is a layer of the cell {name!r}, but cell= is {cell.name!r}")
    if _digest(cell) != description["digest"]:
        raise ValueError(
            f"{source} is a layer of a cell {name!r} with other equations: pass the cell with which it was written, or "
            "load its arrays by layer.load_state_dict(...)"
        )
    return cell
