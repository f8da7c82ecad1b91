"""Compute recurrent networks by cuDNN's four calls: a flat weight space, cuDNN's argument names.

    rnn = Descriptor("lstm", input_size=64, hidden_size=128, num_layers=2)
    w = rnn.zeros_weights()                                            # cudnnGetRNNWeightSpaceSize
    views = rnn.weight_params(w)                                       # cudnnGetRNNWeightParams
    y, hy, cy = forward_inference(rnn, x, hx, cx, w)                   # cudnnRNNForward, fwdMode inference
    y, hy, cy, reserve = forward_training(rnn, x, hx, cx, w)           # cudnnRNNForward, fwdMode training
    dx, dhx, dcx = backward_data(rnn, reserve, dy, dhy, dcy, w)        # cudnnRNNBackwardData_v8
    backward_weights(rnn, reserve, dw)                                 # cudnnRNNBackwardWeights_v8, adds to dw

Data layouts (`layout=`, cudnnRNNDataLayout_t) are "seq_major_unpacked" (T, B, I), "batch_major_unpacked" (B, T, I), and
"seq_major_packed" (sum of lengths, I): all elements of time 0, then all of time 1, ..., the longest sequence first.

None is cuDNN's NULL: zero for an input. Pass arrays as `y=`, `hy=`, `cy=`, `dx=`, `dhx=` or `dcx=` to receive results;
without them new arrays are returned. Work space is handled inside. `reserve` is opaque: use it for one `backward_data`
and then any number of `backward_weights`.

Example:
    >>> rnn = Descriptor("gru", input_size=8, hidden_size=16, device="cpu")
    >>> w = rnn.zeros_weights()
    >>> y, hy, cy, reserve = forward_training(rnn, np.zeros((5, 3, 8), "float32"), w=w)
    >>> dx, dhx, dcx = backward_data(rnn, reserve, dy=np.ones_like(y), w=w)
    >>> backward_weights(rnn, reserve, np.zeros_like(w)).shape
    (1248,)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn.layers import arguments, array_checks, sequences
from numbarnn.layers.planned import Tape
from numbarnn.layers.stack import Stack
from numbarnn.programs.states import state_arrays

if TYPE_CHECKING:
    from numbarnn.common.typing import Array

    Given = Array | list[Array] | None  # or a list of one array per layer

__all__ = ["Descriptor", "backward_data", "backward_weights", "forward_inference", "forward_training"]

LAYOUTS = ("seq_major_unpacked", "batch_major_unpacked", "seq_major_packed")


class Descriptor(Stack):
    """Describe a network as cudnnRNNDescriptor does: cell, sizes, options and engine, but no parameters.

    The first argument is the cell: "lstm", "gru", "rnn_tanh" or "rnn_relu". The others are those of `numbarnn.LSTM`.
    cuDNN's biasMode is `bias`, inputMode is `input_mode`, projSize is `proj_size`, cudnnRNNSetClip is `cell_clip`.
    """

    @property
    def weight_space_size(self) -> int:
        """Return the number of elements of `w` and `dw`."""
        return self.space.size

    def zeros_weights(self) -> Array:
        """Allocate a weight space of zeros on the descriptor's engine."""
        with self.engine.activate(), self.allocating_weights():
            return self.engine.zeros(self.space.size, self.dtype)

    def weight_params(self, w: Array) -> dict[str, Array]:
        """Return PyTorch's names -> views of `w`. Writing to a view changes `w`."""
        return self.space.views(self._weights(w, "w"))

    def _weights(self, w, name):
        """Check a weight space and return it, never a copy: callers read and write it."""
        array = array_checks.as_array(self.engine, w, name)
        if array.shape != (self.space.size,) or array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"{name} must be a contiguous weight space of shape ({self.space.size},) and dtype {self.dtype}, got "
                f"shape {array.shape} and dtype {array.dtype}"
            )
        return array


# Options of forward calls, with their defaults: see `forward_inference`.
_OPTIONS = {"layout": LAYOUTS[0], "seq_lengths": None, "padding_fill": 0.0, "resets": None}


def forward_inference(
    rnn: Descriptor, x: Array, hx: Given = None, cx: Given = None, w: Array | None = None, *, y: Given = None,
    hy: Given = None, cy: Given = None, **options: Any,
) -> tuple[Array, Any, Any]:  # fmt: skip
    """Compute y, hy and cy without keeping anything for backward (cudnnRNNForward, inference).

    Args:
        rnn: the `Descriptor`.
        x: the input sequences, (T, B, I), or as `layout` says.
        hx, cx: the initial states, (L*D, B, H), or lists of one (D, B, H) per layer if sizes differ. cx is for cells
            with c. None is zero.
        w: the weight space, (weight_space_size,).
        y, hy, cy: arrays to write the results into. None makes new ones.
        layout: layout of x and y, see this module. Default: "seq_major_unpacked".
        seq_lengths: the number of steps of each sequence, (B,) ints on the host, 0 to T (seqLengthArray). None: all
            are T. The packed layout needs them: at least 1, the longest first.
        padding_fill: value of y beyond a sequence's length (paddingFill).
        resets: bools (T, B) that restart sequences, as in calls of layers; unpacked layouts only. Not in cuDNN.

    Returns:
        y (T, B, D*H), or as `layout` says; hy; cy, None for cells without c.

    Raises:
        ValueError, TypeError: an argument does not fit.
    """
    return _forward(rnn, x, hx, cx, w, {"y": y, "hy": hy, "cy": cy}, options, training=False)[:3]


def forward_training(
    rnn: Descriptor, x: Array, hx: Given = None, cx: Given = None, w: Array | None = None, *, y: Given = None,
    hy: Given = None, cy: Given = None, **options: Any,
) -> tuple[Array, Any, Any, Tape]:  # fmt: skip
    """Compute y, hy, cy and the reserve for backward (cudnnRNNForward, training), with dropout between layers.

    Arguments are those of `forward_inference`. The reserve has copies of `w` and `x`: changing either afterwards does
    not change the gradients.
    """
    return _forward(rnn, x, hx, cx, w, {"y": y, "hy": hy, "cy": cy}, options, training=True)


def backward_data(
    rnn: Descriptor, reserve: Tape, dy: Given = None, dhy: Given = None, dcy: Given = None, w: Array | None = None, *,
    dx: Given = None, dhx: Given = None, dcx: Given = None,
) -> tuple[Array, Any, Any]:  # fmt: skip
    """Compute the gradients of x and of the initial states (cudnnRNNBackwardData_v8).

    Args:
        rnn: the `Descriptor`.
        reserve: the result of one `forward_training`. Each allows one `backward_data`.
        dy: dL/dy, (T, B, D*H), or in the layout of the forward call. None is zero.
        dhy, dcy: gradients of the final states, like hy and cy. None is zero.
        w: the weight space of the forward call.
        dx, dhx, dcx: arrays to write the results into. None makes new ones.

    Returns:
        dx, dhx, dcx.

    Raises:
        ValueError, TypeError: an argument does not fit; the reserve was used, or made with another descriptor or `w`.
    """
    _check_reserve(rnn, reserve)
    if reserve.used:
        raise ValueError("reserve was already used by backward_data: call forward_training again")
    if w is None or rnn.engine.address(rnn._weights(w, "w")) != rnn.engine.address(reserve.weights):
        raise ValueError("w must be the weight space of the forward_training call")
    problem, packing = reserve.forward.problem, reserve.packing
    axes = (len(packing.places),) if packing else problem.x_shape[:2]
    if dy is not None:
        dy = array_checks.array(rnn.engine, dy, "dy", (*axes, rnn.directions * rnn.output_sizes[-1]), rnn.dtype)
        dy = packing.pad(rnn.engine, dy) if packing else dy
    dhy = arguments.checked_state(rnn, dhy, "dhy", problem.batch, rnn.output_sizes)
    dcy = _split_c(rnn, dcy, "dcy", problem.batch)
    dhx_shape, dcx_shape = rnn.shapes_of_states(problem.batch)[0], _c_shape(rnn, problem.batch)
    shapes = {"dx": (*axes, rnn.input_size), "dhx": dhx_shape, "dcx": dcx_shape}
    places = _places(rnn, {"dx": dx, "dhx": dhx, "dcx": dcx}, shapes, (("w", w), ("x", reserve.x)))
    return _delivered(rnn, packing, rnn.backward_data(reserve, dy, dhy, dcy), places)


def backward_weights(rnn: Descriptor, reserve: Tape, dw: Array) -> Array:
    """Add the parameters' gradients to `dw` (weight_space_size,) after `backward_data` (cudnnRNNBackwardWeights_v8).

    Returns:
        dw.

    Raises:
        ValueError, TypeError: `backward_data` has not run, or an argument does not fit.
    """
    _check_reserve(rnn, reserve)
    if reserve.backward is None:
        raise ValueError("reserve has no gradients yet: call backward_data before backward_weights")
    dw = array_checks.buffer(rnn.engine, rnn._weights(dw, "dw"), "dw", (rnn.space.size,), rnn.dtype)
    read = ("w", reserve.weights), ("x", reserve.x)
    array_checks.apart(rnn.engine, dw, "dw", read, "give dw an array of its own")
    rnn.backward_weights(reserve, dw)
    return dw


def _forward(rnn, x, hx, cx, w, places, options, training):
    """Return (y, hy, cy, tape) of a call. places: the caller's arrays for these results, by name."""
    _check_descriptor(rnn)
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"forward calls have no argument {name!r}; there are {', '.join((*places, *_OPTIONS))}")
    layout, seq_lengths, padding_fill, resets = (_OPTIONS | options).values()
    if w is None:
        raise TypeError("w, the weight space, is missing")
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}")
    w = rnn._weights(w, "w")
    packing, batch_major = None, layout == "batch_major_unpacked"
    if layout == "seq_major_packed":
        packing = _packing(seq_lengths)
        x = array_checks.array(rnn.engine, x, "x", (len(packing.places), rnn.input_size), rnn.dtype)
        x = packing.pad(rnn.engine, x)
    letters = ("B", "T") if batch_major else ("T", "B")
    x = array_checks.array(rnn.engine, x, "x", (*letters, rnn.input_size), rnn.dtype)
    steps, batch = x.shape[1::-1] if batch_major else x.shape[:2]
    about, names = (seq_lengths, resets, padding_fill), ("seq_lengths", "padding_fill")
    about = sequences.checked(rnn.engine, *about, steps, batch, batch_major, names)
    hx, cx = arguments.checked_state(rnn, hx, "hx", batch, rnn.output_sizes), _split_c(rnn, cx, "cx", batch)
    axes = (len(packing.places),) if packing else x.shape[:2]
    shapes = {"y": (*axes, rnn.directions * rnn.output_sizes[-1])}
    shapes |= {"hy": rnn.shapes_of_states(batch)[0], "cy": _c_shape(rnn, batch)}
    read_again = (("w", w), ("x", x)) if training else (("w", w),)
    places = _places(rnn, places, shapes, read_again)
    made, *states, tape = rnn.forward(x, hx, cx, w, training, batch_major=batch_major, sequences=about)
    if packing and training:
        tape.packing = packing
    return (*_delivered(rnn, packing, (made, *states), places), tape)


def _packing(seq_lengths):
    """Return the Packing of sequences that are already sorted by length."""
    if seq_lengths is None:
        raise ValueError("seq_lengths must be given with layout 'seq_major_packed', got None")
    lengths = np.asarray(seq_lengths)
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or not lengths.size:
        raise TypeError(f"seq_lengths must be ints, one per sequence, got {seq_lengths!r}")
    if lengths[-1] < 1 or (np.diff(lengths) > 0).any():
        raise ValueError(f"seq_lengths of packed data must be at least 1 and never increase, got {lengths}")
    order = np.arange(len(lengths))
    return sequences.Packing((lengths[None] > np.arange(lengths[0])[:, None]).sum(axis=1), order, order)


def _split_c(rnn, value, name, batch):
    if value is not None and not rnn.cell.num_private:
        raise ValueError(f"{name} must be None: a {rnn.cell.name} has no state besides h")
    sizes = tuple(rnn.cell.num_private * width for width in rnn.widths)
    return arguments.checked_state(rnn, value, name, batch, sizes)


def _c_shape(rnn, batch):
    """Return the shape of c, or a list of shapes, or None for a cell without c."""
    return rnn.c_shapes(batch, rnn.cell.num_private) if rnn.cell.num_private else None


def _places(rnn, given, shapes, read_again):
    """Check the caller's arrays for results: they must not overlap each other or what is read again. None stays None.
    given: name -> array. shapes: name -> shape, in the order of the results. read_again: (name, array) pairs."""
    places, used = [], list(read_again)
    for name, shape in shapes.items():
        places.append(_place(rnn, given[name], name, shape))
        for part in state_arrays(places[-1]):
            array = rnn.engine.asarray(part, name)
            array_checks.apart(rnn.engine, array, name, used, f"give {name} an array of its own")
            used.append((name, array))
    return places


def _place(rnn, given, name, shape):
    """Check a caller's array for a result (or list of arrays, for a list of shapes). None stays None."""
    if given is None:
        return None
    if shape is None:
        raise ValueError(f"{name} must be None: a {rnn.cell.name} has no state besides h")
    if not isinstance(shape, list):
        array_checks.buffer(rnn.engine, given, name, shape, rnn.dtype, strided=True)
        return given
    if not isinstance(given, list | tuple) or len(given) != len(shape):
        raise ValueError(f"{name} must be a list with one array per layer, of shapes {shape}")
    return [_place(rnn, part, f"{name}[{layer}]", shape[layer]) for layer, part in enumerate(given)]


def _delivered(rnn, packing, results, places):
    """Copy results to the caller's arrays if there are any, and return them. The first is packed if x was."""
    first, *states = results
    results, found = (packing.pack(rnn.engine, first) if packing else first, *states), []
    with rnn.engine.activate():
        for result, place in zip(results, places, strict=True):
            for out, part in zip(state_arrays(place), state_arrays(result), strict=place is not None):
                rnn.engine.copy(rnn.engine.asarray(out, "output"), part)
            found.append(result if place is None else place)
    return tuple(found)


def _check_descriptor(rnn):
    if not isinstance(rnn, Descriptor):
        raise TypeError(f"rnn must be a Descriptor, got a {type(rnn).__qualname__}")
    if rnn.widths != rnn.hidden_sizes:
        raise ValueError(
            f"rnn must have states of h's size, but {rnn.cell.name} has {rnn.widths} units: cuDNN's calls have no form "
            "for them, use numbarnn.RNN"
        )


def _check_reserve(rnn, reserve):
    _check_descriptor(rnn)
    if not isinstance(reserve, Tape):
        raise TypeError(f"reserve must be the result of forward_training, got a {type(reserve).__qualname__}")
    if reserve.stack is not rnn:
        raise ValueError("reserve was made with another descriptor")
