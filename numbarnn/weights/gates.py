"""Convert the order of gates: a cell's `gates` is cuDNN's and PyTorch's order; Keras and ONNX have others."""

from numbarnn import cells

# Names of gates are those of `Cell.gates`: Keras calls g "c" and n "h"; ONNX calls g "c" and n "h".
_GRU = {"gru": ("z", "r", "n"), "gru_reset_before": ("z", "r", "n")}
KERAS = {"lstm": ("i", "f", "g", "o")} | _GRU
ONNX = {"lstm": ("i", "o", "f", "g")} | _GRU


def to_order(array, cell, order):
    """Reorder rows (G*H, ...) from numbarnn's order to another's (`KERAS`, `ONNX`)."""
    ours = cells.get(cell).gates
    return _reordered(array, ours, order.get(cell, ours))


def from_order(array, cell, order):
    """Reorder rows (G*H, ...) from another's order (`KERAS`, `ONNX`) to numbarnn's."""
    ours = cells.get(cell).gates
    return _reordered(array, order.get(cell, ours), ours)


def _reordered(array, before, after):
    blocks = array.reshape(len(before), -1, *array.shape[1:])
    return blocks[[before.index(gate) for gate in after]].reshape(array.shape)
