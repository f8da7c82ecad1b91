"""The same work in cuDNN's own terms: four calls over a flat weight space, with cuDNN's argument names.

    rnn = Descriptor("lstm", input_size=64, hidden_size=128, num_layers=2)
    w = rnn.zeros_weights()                                            # cudnnGetRNNWeightSpaceSize
    views = rnn.weight_params(w)                                       # cudnnGetRNNWeightParams
    y, hy, cy = forward_inference(rnn, x, hx, cx, w)                   # cudnnRNNForward, fwdMode inference
    y, hy, cy, reserve = forward_training(rnn, x, hx, cx, w)           # cudnnRNNForward, fwdMode training
    dx, dhx, dcx = backward_data(rnn, reserve, dy, dhy, dcy, w)        # cudnnRNNBackwardData_v8
    backward_weights(rnn, reserve, dw)                                 # cudnnRNNBackwardWeights_v8, adds to dw

None means what NULL means in cuDNN: zero for an input. Outputs may be given as arrays to write into (`y=`, `hy=`,
`cy=`, `dx=`, `dhx=`, `dcx=`); without them new ones are returned. Work space and reserve space are handled inside:
`reserve` is an opaque object, good for one `backward_data` followed by any number of `backward_weights`.
"""

from numbarnn.layers import checks
from numbarnn.layers.stack import Stack, Tape

__all__ = ["Descriptor", "backward_data", "backward_weights", "forward_inference", "forward_training"]


class Descriptor(Stack):
    """cudnnRNNDescriptor: cell, sizes and options, and the engine; no parameters.

    Arguments as for `numbarnn.LSTM`, with the cell first: "lstm", "gru", "rnn_tanh", "rnn_relu". Data are time-major.

    Attributes:
        weight_space_size: elements of the weight space.
    """

    @property
    def weight_space_size(self):
        """Number of elements of `w` and `dw`."""
        return self.space.size

    def zeros_weights(self):
        """A weight space of zeros, on the descriptor's engine."""
        with self.engine.activate():
            return self.engine.zeros(self.space.size, self.dtype)

    def weight_params(self, w):
        """Name (PyTorch's) -> view of `w`; writing through a view changes `w`."""
        return self.space.views(self._weights(w, "w"))

    def _weights(self, w, name):
        """A weight space, checked; never a copy, as callers read or write it through this very array."""
        array = self.engine.asarray(w, name)
        if array.shape != (self.space.size,) or array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"{name} must be a contiguous weight space of shape ({self.space.size},) and dtype {self.dtype}, but "
                f"has shape {array.shape} and dtype {array.dtype}"
            )
        return array


def forward_inference(rnn, x, hx=None, cx=None, w=None, *, y=None, hy=None, cy=None):
    """y, hy, cy of a forward call that keeps nothing.

    Args:
        rnn: Descriptor.
        x: (T, B, I). hx: (L*D, B, H) or None, cx: likewise, LSTM only; with unequal sizes lists of one (D, B, H) per
            layer.
        w: (weight_space_size,).
        y, hy, cy: arrays to write the results into, or None.

    Returns:
        y (T, B, D*H), hy, cy; cy is None for cells without c.

    Raises:
        ValueError, TypeError: an argument does not fit.
    """
    return _forward(rnn, x, hx, cx, w, y, hy, cy, training=False)[:3]


def forward_training(rnn, x, hx=None, cx=None, w=None, *, y=None, hy=None, cy=None):
    """As `forward_inference`, with dropout between layers, and the reserve for backward as a fourth result.

    `w`, `x` and the returned `y` are read again by the backward calls: do not change them in between.
    """
    return _forward(rnn, x, hx, cx, w, y, hy, cy, training=True)


def backward_data(rnn, reserve, dy=None, dhy=None, dcy=None, w=None, *, dx=None, dhx=None, dcx=None):
    """dx, dhx, dcx: the gradients of x and the initial state.

    Args:
        reserve: of one `forward_training`; each allows one `backward_data`.
        dy: (T, B, D*H); dhy, dcy: like hy, cy; None is zero.
        w: the weight space of the forward call.
        dx, dhx, dcx: arrays to write the results into, or None.

    Raises:
        ValueError, TypeError: an argument does not fit; the reserve was used, or made with another descriptor or `w`.
    """
    _check_reserve(rnn, reserve)
    if reserve.used:
        raise ValueError("reserve was already used by backward_data: call forward_training again")
    if w is None or rnn.engine.address(rnn._weights(w, "w")) != rnn.engine.address(reserve.weights):
        raise ValueError("w must be the weight space that forward_training was given")
    work = reserve.forward
    if dy is not None:
        width = rnn.directions * rnn.hidden_sizes[-1]
        dy = checks.array(rnn.engine, dy, "dy", (work.steps, work.batch, width), rnn.dtype)
    dhy = rnn.check_state(dhy, "dhy", work.batch)
    dcy = _split_c(rnn, dcy, "dcy", work.batch)
    states = rnn.state_shapes(work.batch)
    places = (
        _place(rnn, dx, "dx", work.x.shape),
        _place(rnn, dhx, "dhx", states),
        _place(rnn, dcx, "dcx", states if rnn.cell.num_private else None),
    )
    reserve.used = True
    results = rnn.backward_data(reserve, dy, dhy, dcy)
    return tuple(_deliver(rnn, result, place) for result, place in zip(results, places, strict=True))


def backward_weights(rnn, reserve, dw):
    """Add the parameters' gradients to `dw` (weight_space_size,), after `backward_data`; returns dw."""
    _check_reserve(rnn, reserve)
    if reserve.walk is None:
        raise ValueError("reserve has no gradients yet: call backward_data before backward_weights")
    dw = rnn._weights(dw, "dw")
    rnn.backward_weights(reserve, dw)
    return dw


def _forward(rnn, x, hx, cx, w, y, hy, cy, training):
    _check_descriptor(rnn)
    if w is None:
        raise TypeError("w, the weight space, is missing")
    w = rnn._weights(w, "w")
    x = checks.array(rnn.engine, x, "x", ("T", "B", rnn.input_size), rnn.dtype)
    batch = x.shape[1]
    hx, cx = rnn.check_state(hx, "hx", batch), _split_c(rnn, cx, "cx", batch)
    states = rnn.state_shapes(batch)
    places = (
        _place(rnn, y, "y", (*x.shape[:2], rnn.directions * rnn.hidden_sizes[-1])),
        _place(rnn, hy, "hy", states),
        _place(rnn, cy, "cy", states if rnn.cell.num_private else None),
    )
    *results, tape = rnn.forward(x, hx, cx, w, training)
    return (*(_deliver(rnn, result, place) for result, place in zip(results, places, strict=True)), tape)


def _split_c(rnn, value, name, batch):
    if value is not None and not rnn.cell.num_private:
        raise ValueError(f"{name} must be None: a {rnn.cell.name} has no state besides h")
    return rnn.check_state(value, name, batch)


def _place(rnn, given, name, shape):
    """A caller's array for a result, checked (a list of them for a list of shapes); None stays None."""
    if given is None:
        return None
    if shape is None:
        raise ValueError(f"{name} must be None: a {rnn.cell.name} has no state besides h")
    if not isinstance(shape, list):
        checks.buffer(rnn.engine, given, name, shape, rnn.dtype, strided=True)
        return given
    if not isinstance(given, list | tuple) or len(given) != len(shape):
        raise ValueError(f"{name} must be a list with one array per layer, of shapes {shape}")
    return [_place(rnn, part, f"{name}[{layer}]", shape[layer]) for layer, part in enumerate(given)]


def _deliver(rnn, result, place):
    """The result, or the caller's array after copying it there."""
    if place is None:
        return result
    if isinstance(place, list):
        return [_deliver(rnn, *pair) for pair in zip(result, place, strict=True)]
    with rnn.engine.activate():
        rnn.engine.copy(rnn.engine.asarray(place, "output"), result)
    return place


def _check_descriptor(rnn):
    if not isinstance(rnn, Descriptor):
        raise TypeError(f"rnn must be a Descriptor, not a {type(rnn).__qualname__}")


def _check_reserve(rnn, reserve):
    _check_descriptor(rnn)
    if not isinstance(reserve, Tape):
        raise TypeError(f"reserve must be what forward_training returned, not a {type(reserve).__qualname__}")
    if reserve.stack is not rnn:
        raise ValueError("reserve was made with another descriptor")
