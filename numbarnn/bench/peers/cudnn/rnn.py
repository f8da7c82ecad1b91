"""cuDNN's LSTM, GRU and RNN: forward, backward_data and backward_weights on NumPy arrays."""

import ctypes
import operator
from dataclasses import dataclass

import numpy as np

from . import options, weights
from .descriptors import DataDescriptor, DropoutDescriptor, RnnDescriptor, TensorDescriptor
from .driver import Buffer, address, copied, unwritten
from .options import Options, numpy_dtype
from .prepared import Prepared
from .session import default_session


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


@dataclass
class Reserve:
    """What the backward calls need of one forward call in training: its arrays and cuDNN's reserve, on the device."""

    rnn: "Rnn"
    sequences: Sequences
    buffers: dict  # x, y, hx, cx, weights, reserve: Buffers; hx and cx may be None
    descriptors: dict  # xDesc, yDesc, hDesc, cDesc: Descriptors; cDesc may be None
    data_done: bool = False


class Rnn:
    """A stack of recurrent layers in cuDNN.

    Args:
        cell, input_size, hidden_size, num_layers, **chosen: see `Options`.
        session: a `Session`; None for the first GPU.

    Attributes:
        options: the `Options`.
        weight_space_bytes, weight_space_size: size of the weight space, in bytes and in elements.

    Raises:
        ValueError, TypeError: see `Options`.
        CudnnError: cuDNN does not take these options.
        RuntimeError: cuDNN, a driver or a GPU is missing.
    """

    def __init__(self, cell, input_size, hidden_size, num_layers=1, *, session=None, **chosen):
        self.options = Options(cell, input_size, hidden_size, num_layers, **chosen)
        self.dtype = numpy_dtype(self.options.dtype)
        self._session = session or default_session()
        self._library, self._device = self._session.library, self._session.device
        dropout = DropoutDescriptor(self._session, self.options.dropout, self.options.seed)
        self._descriptor = RnnDescriptor(self._library, self.options, dropout)
        self._built_for = None  # the batch that PERSIST_DYNAMIC was compiled for
        with self._device:
            self.weight_space_bytes = weights.space_bytes(self._library, self._session.handle, self._descriptor)
            self.weight_space_size = self.weight_space_bytes // self.dtype.itemsize
            base = Buffer(self._device, self.weight_space_bytes)
            self._places = weights.places(
                self._library, self._session.handle, self._descriptor, self.options, base.address
            )

    # ------------------------------------------------------------------------------------------------------ weights
    def weight_params(self):
        """PyTorch's name -> (offset in elements, shape) of each parameter in the weight space, as cuDNN reports it."""
        return dict(self._places)

    def split(self, flat):
        """PyTorch's name -> view of a flat weight space (weight_space_size,)."""
        return weights.split(flat, self._places)

    def join(self, parameters):
        """The flat weight space with the arrays of a dict by PyTorch's names; ValueError, TypeError if one is wrong."""
        return weights.join(parameters, self._places, self.weight_space_size, self.dtype)

    # ------------------------------------------------------------------------------------------------------ forward
    def forward(self, x, hx=None, cx=None, weights=None, lengths=None, padding_value=0.0, training=True):
        """Run the network over a batch of sequences.

        Args:
            x: (T, B, I), or (B, T, I) with layout="batch_major_unpacked", or with "seq_major_packed"
                (sum of lengths, I): first the B vectors of time 0, then those of time 1 of the sequences that have
                one, and so on; lengths descend.
            hx: (L*D, B, H), or P for H; cx: (L*D, B, H), LSTM only; None is zero, cuDNN's NULL.
            weights: a dict of arrays by PyTorch's names, or a flat array (weight_space_size,).
            lengths: B ints, each 0..T; None for T each.
            padding_value: what cuDNN is to write into y's padding; None leaves that to it.
            training: whether dropout is applied, and a reserve is kept.

        Returns:
            y, shaped like x with D*H (D*P) for I; hy, cy like hx, cx (cy None but for the LSTM); a `Reserve`, or None.
            Outputs are full of NaN before the call: NaN that is left is what cuDNN did not write.

        Raises:
            ValueError, TypeError: an argument does not fit.
            CudnnError: cuDNN refuses, or fails.
        """
        sequences, arrays = self._inputs(x, hx, cx, weights, lengths)
        h_shape, c_shape = self._state_shapes(sequences)
        y_shape = sequences.shape(self.options.output_size)
        self._build(sequences.batch)

        descriptors = self._descriptors(sequences, padding_value)
        mode = options.TRAINING if training else options.INFERENCE
        work, reserve = self._spaces(mode, descriptors["xDesc"])
        buffers = {name: copied(self._device, array) for name, array in arrays.items()}
        outputs = {"y": y_shape, "hy": h_shape, "cy": c_shape}
        buffers |= {name: shape and unwritten(self._device, shape, self.dtype) for name, shape in outputs.items()}
        buffers["reserve"] = reserve
        self._session.call("cudnnRNNForward", **self._forward_arguments(mode, buffers, descriptors, work))
        y, hy, cy = (shape and buffers[name].read(shape, self.dtype) for name, shape in outputs.items())
        del buffers["hy"], buffers["cy"]
        return y, hy, cy, Reserve(self, sequences, buffers, descriptors) if training else None

    # ----------------------------------------------------------------------------------------------------- backward
    def backward_data(self, reserve, dy=None, dhy=None, dcy=None):
        """Gradients of x and of the initial state.

        Args:
            reserve: of one `forward` in training; each allows one call.
            dy: like y, None for zeros. dhy: like hy; dcy: like cy, LSTM only; None is cuDNN's NULL, zero.

        Returns:
            dx like x, dhx, dcx (None but for the LSTM), full of NaN before the call.

        Raises:
            ValueError, TypeError: an argument does not fit, or the reserve was used.
            CudnnError: cuDNN refuses, or fails.
        """
        self._check_reserve(reserve)
        if reserve.data_done:
            raise ValueError("reserve was already used by backward_data, which changes it: call forward again")
        sequences, buffers = reserve.sequences, reserve.buffers
        y_shape, x_shape = sequences.shape(self.options.output_size), sequences.shape(self.options.input_size)
        h_shape, c_shape = self._state_shapes(sequences)
        dy = np.zeros(y_shape, self.dtype) if dy is None else self._optional("dy", dy, y_shape)
        given = {"dy": dy, "dhy": self._optional("dhy", dhy, h_shape), "dcy": self._optional("dcy", dcy, c_shape)}
        given = {name: copied(self._device, array) for name, array in given.items()}
        results = {"dx": x_shape, "dhx": h_shape, "dcx": c_shape}
        outputs = {name: shape and unwritten(self._device, shape, self.dtype) for name, shape in results.items()}
        work = self._spaces(options.TRAINING, reserve.descriptors["xDesc"])[0]
        reserve.data_done = True
        arguments = self._data_arguments(buffers | given | outputs, reserve.descriptors, work)
        self._session.call("cudnnRNNBackwardData_v8", **arguments)
        return tuple(shape and outputs[name].read(shape, self.dtype) for name, shape in results.items())

    def backward_weights(self, reserve, dw=None):
        """Gradients of the weights: dw (weight_space_size,) or zeros, with what cuDNN adds to it, as a new array.

        Raises:
            ValueError, TypeError: dw does not fit, or backward_data was not called before.
            CudnnError: cuDNN refuses, or fails.
        """
        self._check_reserve(reserve)
        if not reserve.data_done:
            raise ValueError("reserve has no gradients yet: call backward_data before backward_weights")
        dw = np.zeros(self.weight_space_size, self.dtype) if dw is None else self._array("dw", dw)
        self._check_shape("dw", dw, (self.weight_space_size,))
        buffers, result = reserve.buffers, copied(self._device, dw)
        work = self._spaces(options.TRAINING, reserve.descriptors["xDesc"])[0]
        arguments = self._weights_arguments(buffers | {"dw": result}, reserve.descriptors, work)
        self._session.call("cudnnRNNBackwardWeights_v8", **arguments)
        return result.read(dw.shape, self.dtype)

    def prepare(self, x, hx=None, cx=None, weights=None, dy=None, dhy=None, dcy=None, lengths=None):
        """All of a call once, so that it can be run again and again; see `Prepared`. Arguments as of the calls.

        dy, dhy, dcy    any of them: forward in training, backward data and backward weights; none: inference
        """
        sequences, arrays = self._inputs(x, hx, cx, weights, lengths)
        h_shape, c_shape = self._state_shapes(sequences)
        shapes = {"y": sequences.shape(self.options.output_size), "hy": h_shape, "cy": c_shape}
        training = not (dy is None and dhy is None and dcy is None)
        if training:
            given = {"dy": (dy, shapes["y"]), "dhy": (dhy, h_shape), "dcy": (dcy, c_shape)}
            arrays |= {name: self._optional(name, array, shape) for name, (array, shape) in given.items()}
            arrays["dy"] = np.zeros(shapes["y"], self.dtype) if dy is None else arrays["dy"]
            shapes |= {"dx": arrays["x"].shape, "dhx": h_shape, "dcx": c_shape, "dw": (self.weight_space_size,)}
        self._build(sequences.batch)
        descriptors = self._descriptors(sequences, 0.0)
        mode = options.TRAINING if training else options.INFERENCE
        work, reserve = self._spaces(mode, descriptors["xDesc"])
        buffers = {name: copied(self._device, array) for name, array in arrays.items()} | {"reserve": reserve}
        buffers |= {name: shape and unwritten(self._device, shape, self.dtype) for name, shape in shapes.items()}
        calls = {"cudnnRNNForward": self._forward_arguments(mode, buffers, descriptors, work)}
        if training:
            calls["cudnnRNNBackwardData_v8"] = self._data_arguments(buffers, descriptors, work)
            calls["cudnnRNNBackwardWeights_v8"] = self._weights_arguments(buffers, descriptors, work)
        return Prepared(self._session, calls, buffers, shapes, self.dtype, (self, descriptors, work))

    def synchronize(self):
        """Wait for all work of the device."""
        self._device.synchronize()

    # ----------------------------------------------------------------------------------------------------- the calls
    def _inputs(self, x, hx, cx, weights, lengths):
        """(sequences, arrays by name) of a forward call, checked; weights as one flat array."""
        x = self._array("x", x)
        sequences = self._sequences(x, lengths)
        self._check_shape("x", x, sequences.shape(self.options.input_size))
        if weights is None:
            raise TypeError("weights are missing: give a dict by PyTorch's names, or a flat array")
        flat = self.join(weights) if isinstance(weights, dict) else self._array("weights", weights)
        self._check_shape("weights", flat, (self.weight_space_size,))
        h_shape, c_shape = self._state_shapes(sequences)
        states = {"hx": self._optional("hx", hx, h_shape), "cx": self._optional("cx", cx, c_shape)}
        return sequences, {"x": x, **states, "weights": flat}

    def _forward_arguments(self, mode, buffers, descriptors, work):
        """Arguments of cudnnRNNForward."""
        return {
            "fwdMode": mode,
            **_addresses(buffers, "x", "y", "hx", "hy", "cx", "cy"),
            **self._weight_space(weightSpace=buffers["weights"]),
            **self._common(descriptors, work, buffers["reserve"]),
        }

    def _data_arguments(self, buffers, descriptors, work):
        """Arguments of cudnnRNNBackwardData_v8."""
        return {
            **_addresses(buffers, "y", "dy", "dx", "hx", "dhy", "dhx", "cx", "dcy", "dcx"),
            **self._weight_space(weightSpace=buffers["weights"]),
            **self._common(descriptors, work, buffers["reserve"]),
        }

    def _weights_arguments(self, buffers, descriptors, work):
        """Arguments of cudnnRNNBackwardWeights_v8."""
        common = self._common(descriptors, work, buffers["reserve"])
        del common["cDesc"]
        return {
            "addGrad": options.WGRAD_ADD,
            **_addresses(buffers, "x", "hx", "y"),
            **self._weight_space(dweightSpace=buffers["dw"]),
            **common,
        }

    def _weight_space(self, **buffer):
        """The size of the weight space, and the address of a buffer that is one, by the argument's name."""
        return {"weightSpaceSize": self.weight_space_bytes} | _addresses(buffer, *buffer)

    def _descriptors(self, sequences, padding_value):
        """cuDNN's name -> descriptor of x, y, h and c; padding of dx is to be 0, as far as cuDNN fills it."""
        chosen, s = self.options, sequences
        about = (s.steps, s.batch)
        kind = (self._library, chosen.dtype, chosen.layout)
        h_shape, c_shape = self._state_shapes(sequences)
        return {
            "xDesc": DataDescriptor(*kind, *about, chosen.input_size, s.lengths, 0.0),
            "yDesc": DataDescriptor(*kind, *about, chosen.output_size, s.lengths, padding_value),
            "hDesc": TensorDescriptor(self._library, h_shape, chosen.dtype),
            "cDesc": TensorDescriptor(self._library, c_shape, chosen.dtype) if chosen.has_c else None,
        }

    def _spaces(self, mode, x_descriptor):
        """(workspace, reserve space) as Buffers; the reserve is None in inference."""
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        self._session.call(
            "cudnnGetRNNTempSpaceSizes", rnnDesc=self._descriptor.pointer, fwdMode=mode, xDesc=x_descriptor.pointer,
            workSpaceSize=ctypes.byref(work), reserveSpaceSize=ctypes.byref(reserve),
        )  # fmt: skip
        space = Buffer(self._device, reserve.value) if mode == options.TRAINING else None
        return Buffer(self._device, work.value), space

    def _common(self, descriptors, work, reserve):
        """The arguments that the three calls share. devSeqLengths is NULL: cuDNN 9 has the descriptors' own copy."""
        pointers = {name: descriptor and descriptor.pointer for name, descriptor in descriptors.items()}
        return {
            "rnnDesc": self._descriptor.pointer,
            "devSeqLengths": None,
            "workSpaceSize": work.size,
            "workSpace": work.address,
            "reserveSpaceSize": reserve.size if reserve else 0,
            "reserveSpace": address(reserve),
            **pointers,
        }

    def _build(self, batch):
        """PERSIST_DYNAMIC is compiled for one batch size, before the sizes of its spaces are asked for."""
        if self.options.algorithm == "persist_dynamic" and self._built_for != batch:
            self._session.call("cudnnBuildRNNDynamic", rnnDesc=self._descriptor.pointer, miniBatch=batch)
            self._built_for = batch

    # ---------------------------------------------------------------------------------------------------- arguments
    def _sequences(self, x, lengths):
        layout = self.options.layout
        packed = layout == "seq_major_packed"
        if x.ndim != (2 if packed else 3):
            raise ValueError(f"x must have {2 if packed else 3} axes with layout={layout!r}, got shape {x.shape}")
        if packed and lengths is None:
            raise ValueError("lengths are missing: packed sequences need them")
        if not packed:
            steps, batch = x.shape[:2] if layout == "seq_major_unpacked" else x.shape[1::-1]
        lengths = [steps] * batch if lengths is None else [operator.index(length) for length in lengths]
        if packed:
            steps, batch = max(lengths, default=0), len(lengths)
        if len(lengths) != batch:
            raise ValueError(f"lengths must be {batch} ints, one for each sequence, got {len(lengths)}")
        return Sequences(layout, steps, batch, tuple(lengths))

    def _state_shapes(self, sequences):
        """Shape of a state h, and of c or None."""
        chosen = self.options
        parts = chosen.num_layers * chosen.directions
        shape = (parts, sequences.batch, chosen.hidden_size)
        return (parts, sequences.batch, chosen.state_size), shape if chosen.has_c else None

    def _array(self, name, value):
        array = np.asarray(value)
        if array.dtype != self.dtype:
            raise TypeError(f"{name} must be {self.dtype}, the dtype of this Rnn; got {array.dtype}")
        return array

    def _optional(self, name, value, shape):
        """An array of that shape, or None; shape None: there is no such state."""
        if value is None:
            return None
        if shape is None:
            raise ValueError(f"{name} must be None: {self.options.cell} has no cell state")
        value = self._array(name, value)
        self._check_shape(name, value, shape)
        return value

    @staticmethod
    def _check_shape(name, array, shape):
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {array.shape}")

    def _check_reserve(self, reserve):
        if not isinstance(reserve, Reserve):
            raise TypeError(f"reserve must be what forward returned in training, got a {type(reserve).__qualname__}")
        if reserve.rnn is not self:
            raise ValueError("reserve was made by another Rnn")


def _addresses(buffers, *names):
    """name -> what a call takes for each of these Buffers."""
    return {name: address(buffers[name]) for name in names}
