"""cuDNN's LSTM, GRU and RNN: forward, backward_data and backward_weights on NumPy arrays."""

import operator
from dataclasses import dataclass

import numpy as np

from numbarnn.common.precision import numpy_dtype

from . import options, weights
from .descriptors import DataDescriptor, DropoutDescriptor, RnnDescriptor, TensorDescriptor
from .driver import address
from .library import PROTOTYPES, ask
from .options import Options
from .prepared import Prepared
from .session import default_session

FORWARD, DATA, WEIGHTS = "cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"


@dataclass(frozen=True)
class Sequences:
    """The sequences of one call: T, B, their lengths, and how a layout shapes arrays of them."""

    layout: str
    steps: int
    batch: int
    lengths: tuple[int, ...]

    def shape(self, width):
        """Shape of an array with vectors of a width."""
        return {
            "seq_major_unpacked": (self.steps, self.batch, width),
            "seq_major_packed": (sum(self.lengths), width),
            "batch_major_unpacked": (self.batch, self.steps, width),
        }[self.layout]


class Call:
    """The arrays of one call on the device, cuDNN's spaces and its descriptors: in training the reserve of `forward`.

    Attributes:
        shapes: name -> shape of every array that a call may have; None for a state that the cell does not have.
        buffers: name -> array of CuPy's, or None for NULL; spaces, of bytes, under cuDNN's names.
        data_done: whether backward data, which changes the reserve space, has run.
    """

    def __init__(self, rnn, sequences, padding_value, training):
        self.rnn, self.buffers, self.data_done = rnn, {}, False
        chosen, library, self._session = rnn.options, rnn._session.library, rnn._session
        x, y = sequences.shape(chosen.input_size), sequences.shape(chosen.output_size)
        parts = chosen.num_layers * chosen.directions, sequences.batch
        h, c = (*parts, chosen.state_size), (*parts, chosen.hidden_size) if chosen.has_c else None
        self.shapes = {"x": x, "dx": x, "y": y, "dy": y, "weights": (rnn.weight_space_size,)}
        self.shapes |= {"dw": self.shapes["weights"]} | dict.fromkeys(("hx", "hy", "dhx", "dhy"), h)
        self.shapes |= dict.fromkeys(("cx", "cy", "dcx", "dcy"), c)

        kind, about = (library, chosen.dtype, chosen.layout), (sequences.steps, sequences.batch)
        self._descriptors = {
            "rnnDesc": rnn._descriptor,
            "xDesc": DataDescriptor(*kind, *about, chosen.input_size, sequences.lengths, 0.0),
            "yDesc": DataDescriptor(*kind, *about, chosen.output_size, sequences.lengths, padding_value),
            "hDesc": TensorDescriptor(library, h, chosen.dtype),
            "cDesc": TensorDescriptor(library, c, chosen.dtype) if c else None,
        }
        self._known = {name: one and one.pointer for name, one in self._descriptors.items()}
        self._known |= {"weightSpaceSize": rnn.weight_space_bytes, "addGrad": options.WGRAD_ADD}
        self._known["devSeqLengths"] = None  # cuDNN 9 has the descriptors' own copy
        mode = {"fwdMode": options.TRAINING if training else options.INFERENCE}
        about = mode | {name: self._known[name] for name in ("rnnDesc", "xDesc")}
        spaces = "z:workSpaceSize z:reserveSpaceSize"
        self._known |= mode | ask(self._session.call, "cudnnGetRNNTempSpaceSizes", spaces, **about)
        self._known["reserveSpaceSize"] *= training
        for name, there in (("workSpace", True), ("reserveSpace", training)):
            size = max(self._known[f"{name}Size"], 1)  # an array of no bytes has no address
            self.buffers[name] = self._session.device.empty(size, np.uint8) if there else None

    def put(self, **arrays):
        """Copy arrays by name to the device; None is NULL."""
        self.buffers |= {name: self._session.device.copied(array) for name, array in arrays.items()}

    def make(self, *names):
        """Outputs full of NaN."""
        make, dtype = self._session.device.unwritten, self.rnn.dtype
        self.buffers |= {name: (shape := self.shapes[name]) and make(shape, dtype) for name in names}

    def arguments(self, function):
        """What a function of cuDNN's takes of all this, by its names of the arguments, without the handle."""
        buffers = self.buffers | {"weightSpace": self.buffers["weights"], "dweightSpace": self.buffers.get("dw")}
        names = [name for name, _ in PROTOTYPES[function] if name != "handle"]
        return {name: self._known[name] if name in self._known else address(buffers[name]) for name in names}

    def run(self, function):
        """Call a function of cuDNN's, and wait for it."""
        self._session.call(function, **self.arguments(function))

    def read(self, name):
        """An output as an array; None where there is none."""
        return self.shapes[name] and self._session.device.read(self.buffers[name])

    def take(self, *names):
        """Outputs as arrays, which nobody reads again on the device."""
        arrays = tuple(map(self.read, names))
        for name in names:
            del self.buffers[name]
        return arrays


class Rnn:
    """A stack of recurrent layers in cuDNN: see `Options`.

    Attributes:
        weight_space_bytes, weight_space_size: size of the weight space, in bytes and in elements.
        places: PyTorch's name -> `weights.Place` of each parameter there, as cuDNN reports it.

    Raises, as its calls do:
        ValueError, TypeError: an option or argument does not fit.
        CudnnError: cuDNN refuses, or fails. RuntimeError: cuDNN, a driver or a GPU is missing.
    """

    def __init__(self, cell, input_size, hidden_size, num_layers=1, *, session=None, **chosen):
        self.options = Options(cell, input_size, hidden_size, num_layers, **chosen)
        self.dtype = numpy_dtype(self.options.dtype)
        self._session = session or default_session()
        self._device, library = self._session.device, self._session.library
        dropout = DropoutDescriptor(self._session, self.options.dropout, self.options.seed)
        self._descriptor = RnnDescriptor(library, self.options, dropout)
        self._built_for = None  # the batch that PERSIST_DYNAMIC was compiled for
        with self._device:
            asked = library, self._session.handle, self._descriptor
            self.weight_space_bytes = weights.space_bytes(*asked)
            self.weight_space_size = self.weight_space_bytes // self.dtype.itemsize
            base = self._device.empty(self.weight_space_bytes, np.uint8)
            self.places = weights.places(*asked, self.options, address(base))

    # ------------------------------------------------------------------------------------------------------ weights
    def split(self, flat):
        """PyTorch's name -> view of a flat weight space (weight_space_size,)."""
        return weights.split(flat, self.places)

    def join(self, parameters):
        """The flat weight space with the arrays of a dict by PyTorch's names; ValueError, TypeError if one is wrong."""
        return weights.join(parameters, self.places, self.weight_space_size, self.dtype)

    # ------------------------------------------------------------------------------------------------------ forward
    def forward(self, x, hx=None, cx=None, weights=None, lengths=None, padding_value=0.0, training=True):
        """y, hy, cy (None but for the LSTM) of a batch of sequences, and in training the reserve for the backward
        calls.

        Args:
            x: (T, B, I), or (B, T, I) with layout="batch_major_unpacked", or with "seq_major_packed" (sum of
                lengths, I): first the B vectors of time 0, then those of time 1 of the sequences that have one;
                lengths descend.
            hx: (L*D, B, H), or P for H; cx: (L*D, B, H), LSTM only; None is zero, cuDNN's NULL.
            weights: a dict of arrays by PyTorch's names, or a flat array (weight_space_size,).
            lengths: B ints, each 0..T; None for T each.
            padding_value: what cuDNN is to write into y's padding; None leaves that to it.

        Outputs are full of NaN before the call: NaN that is left is what cuDNN did not write.
        """
        call = self._call(x, (hx, cx), weights, lengths, padding_value, training)
        call.run(FORWARD)
        y = call.read("y")  # which backward data reads
        return y, *call.take("hy", "cy"), call if training else None

    # ----------------------------------------------------------------------------------------------------- backward
    def backward_data(self, reserve, dy=None, dhy=None, dcy=None):
        """dx like x, dhx, dcx (None but for the LSTM), full of NaN before the call.

        Args:
            reserve: of one `forward` in training; each allows one call.
            dy: like y, None for zeros. dhy: like hy; dcy: like cy, LSTM only; None is cuDNN's NULL, zero.
        """
        self._check_reserve(reserve)
        if reserve.data_done:
            raise ValueError("reserve was already used by backward_data, which changes it: call forward again")
        reserve.put(**self._gradients(reserve, dy, dhy, dcy))
        reserve.make("dx", "dhx", "dcx")
        reserve.data_done = True
        reserve.run(DATA)
        return reserve.take("dx", "dhx", "dcx")

    def backward_weights(self, reserve, dw=None):
        """Gradients of the weights: dw (weight_space_size,) or zeros, with what cuDNN adds to it, as a new array."""
        self._check_reserve(reserve)
        if not reserve.data_done:
            raise ValueError("reserve has no gradients yet: call backward_data before backward_weights")
        dw = np.zeros(self.weight_space_size, self.dtype) if dw is None else dw
        reserve.put(**self._checked(reserve.shapes, dw=dw))
        reserve.run(WEIGHTS)
        return reserve.take("dw")[0]

    def prepare(self, x, hx=None, cx=None, weights=None, dy=None, dhy=None, dcy=None, lengths=None):
        """All of a call once, so that it can be run again and again; see `Prepared`. Without any gradient it is
        inference."""
        training = not (dy is None and dhy is None and dcy is None)
        call = self._call(x, (hx, cx), weights, lengths, 0.0, training)
        if training:
            call.put(**self._gradients(call, dy, dhy, dcy))
            call.make("dx", "dhx", "dcx", "dw")
        return Prepared(self._session, call, (FORWARD, DATA, WEIGHTS) if training else (FORWARD,))

    def synchronize(self):
        self._device.synchronize()

    # ----------------------------------------------------------------------------------------------------- the calls
    def _call(self, x, states, weights, lengths, padding_value, training):
        """The `Call` of a forward call whose arguments fit."""
        x = self._array("x", x)
        sequences = self._sequences(x, lengths)
        if weights is None:
            raise TypeError("weights are missing: give a dict by PyTorch's names, or a flat array")
        flat = self.join(weights) if isinstance(weights, dict) else weights
        # PERSIST_DYNAMIC is compiled for one batch size, before the sizes of its spaces are asked for.
        if self.options.algorithm == "persist_dynamic" and self._built_for != sequences.batch:
            self._session.call("cudnnBuildRNNDynamic", rnnDesc=self._descriptor.pointer, miniBatch=sequences.batch)
            self._built_for = sequences.batch
        shapes = {"x": sequences.shape(self.options.input_size), "weights": (self.weight_space_size,)}
        given = self._checked(shapes, x=x, weights=flat)
        call = Call(self, sequences, padding_value, training)
        call.put(**given, **self._checked(call.shapes, hx=states[0], cx=states[1]))
        call.make("y", "hy", "cy")
        return call

    def _gradients(self, call, dy, dhy, dcy):
        """Name -> the gradients that backward data is given; cuDNN takes no NULL for dy."""
        dy = np.zeros(call.shapes["y"], self.dtype) if dy is None else dy
        return self._checked(call.shapes, dy=dy, dhy=dhy, dcy=dcy)

    # ---------------------------------------------------------------------------------------------------- arguments
    def _sequences(self, x, lengths):
        layout = self.options.layout
        packed = layout == "seq_major_packed"
        if x.ndim != (2 if packed else 3):
            raise ValueError(f"x must have {2 if packed else 3} axes with layout={layout!r}, got shape {x.shape}")
        if packed and lengths is None:
            raise ValueError("lengths are missing: packed sequences need them")
        lengths = None if lengths is None else tuple(map(operator.index, lengths))
        if packed:
            return Sequences(layout, max(lengths, default=0), len(lengths), lengths)
        steps, batch = x.shape[:2] if layout == "seq_major_unpacked" else x.shape[1::-1]
        lengths = (steps,) * batch if lengths is None else lengths
        if len(lengths) != batch:
            raise ValueError(f"lengths must be {batch} ints, one for each sequence, got {len(lengths)}")
        return Sequences(layout, steps, batch, lengths)

    def _array(self, name, value):
        array = np.asarray(value)
        if array.dtype != self.dtype:
            raise TypeError(f"{name} must be {self.dtype}, the dtype of this Rnn; got {array.dtype}")
        return array

    def _checked(self, shapes, **given):
        """Name -> array of its shape, or None; shape None: there is no such state."""
        arrays = {name: None if value is None else self._array(name, value) for name, value in given.items()}
        for name, array in arrays.items():
            if array is not None and shapes[name] is None:
                raise ValueError(f"{name} must be None: {self.options.cell} has no cell state")
            if array is not None and array.shape != shapes[name]:
                raise ValueError(f"{name} must have shape {shapes[name]}, got {array.shape}")
        return arrays

    def _check_reserve(self, reserve):
        if not isinstance(reserve, Call):
            raise TypeError(f"reserve must be what forward returned in training, got a {type(reserve).__qualname__}")
        if reserve.rnn is not self:
            raise ValueError("reserve was made by another Rnn")
