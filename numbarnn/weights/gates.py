"""Convert between cuDNN's and PyTorch's order of gates (`Cell.gates`) and that of Keras and ONNX."""

from numbarnn import cells

# Keras and ONNX call our g "c" and our n "h".
_GRU = {"gru": ("z", "r", "n"), "gru_reset_before": ("z", "r", "n")}
KERAS = {"lstm": ("i", "f", "g", "o")} | _GRU
ONNX = {"lstm": ("i", "o", "f", "g")} | _GRU


def to_order(array, cell, order):
    """Reorder rows (G*H, ...) from numbarnn's order to `order` (`KERAS` or `ONNX`)."""
    ours = cells.get(cell).gates
    return _reordered(array, ours, order.get(cell, ours))


def from_order(array, cell, order):
    """Reorder rows (G*H, ...) from `order` (`KERAS` or `ONNX`) to numbarnn's order."""
    ours = cells.get(cell).gates
    return _reordered(array, order.get(cell, ours), ours)


def _reordered(array, before, after):
    blocks = array.reshape(len(before), -1, *array.shape[1:])
    return blocks[[before.index(gate) for gate in after]].reshape(array.shape)
