"""Convert the order of gates: a cell's `gates` is cuDNN's and PyTorch's order; Keras and ONNX have others."""

from numbarnn import cells

# Names of gates are those of `Cell.gates`: Keras calls g "c" and n "h"; ONNX calls g "c" and n "h".
_GRU = {"gru": ("z", "r", "n"), "gru_reset_before": ("z", "r", "n")}
KERAS = {"lstm": ("i", "f", "g", "o")} | _GRU
ONNX = {"lstm": ("i", "o", "f", "g")} | _GRU


def _blocks(array, take):
    """Return a copy with blocks of rows reordered: block k of the result is block take[k]."""
    shape = array.shape
    blocks = array.reshape(len(take), shape[0] // len(take), *shape[1:])
    return blocks[list(take)].reshape(shape)


def to_order(array, cell, order):
    """Reorder rows (G*H, ...) from numbarnn's order to another's (`KERAS`, `ONNX`)."""
    ours = cells.get(cell).gates
    return _blocks(array, [ours.index(gate) for gate in order.get(cell, ours)])


def from_order(array, cell, order):
    """Reorder rows (G*H, ...) from another's order (`KERAS`, `ONNX`) to numbarnn's."""
    ours = cells.get(cell).gates
    theirs = order.get(cell, ours)
    return _blocks(array, [theirs.index(gate) for gate in ours])
