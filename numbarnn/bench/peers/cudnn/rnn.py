"""cuDNN's LSTM, GRU and RNN: forward, backward_data and backward_weights on NumPy arrays."""

import numpy as np

from numbarnn.common.precision import numpy_dtype
from numbarnn.weights import WeightSpace

from . import descriptors
from .descriptors import Options
from .library import NAN_BYTE, PROTOTYPES, ask, default_session

FORWARD, DATA, WEIGHTS = "cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"


class Call:
    """The arrays, spaces and descriptors of one call, to run it repeatedly: a run neither copies, allocates nor waits.

    cuDNN adds gradients of weights to those in memory, which are set to zero first. Outputs are filled with NaN once,
    so that unwritten elements show.

    Attributes:
        shapes: name -> shape of every array; None for a state that the cell does not have.
        buffers: name -> CuPy array, or None for NULL; also cuDNN's spaces.
        functions: cuDNN's functions in the call.
        why_no_graph: why `run` calls the functions one by one; None: it launches a graph.
    """

    def __init__(self, rnn, steps, lengths, padding_value, training):
        self.rnn, self.buffers, self.why_no_graph, self._graph = rnn, {}, None, None
        self.functions = self._chosen = (FORWARD, DATA, WEIGHTS) if training else (FORWARD,)
        chosen, library, self._session, B = rnn.options, rnn.session.library, rnn.session, len(lengths)
        parts = chosen.num_layers * chosen.directions, B
        h, c = (*parts, chosen.state_size), (*parts, chosen.hidden_size) if chosen.has_c else None
        rows = (sum(lengths),) if chosen.layout == "seq_major_packed" else (steps, B)
        x, y = (*rows, chosen.input_size), (*rows, chosen.output_size)
        self.shapes = {"x": x, "dx": x, "y": y, "dy": y} | dict.fromkeys(("weights", "dw"), (rnn.space.size,))
        self.shapes |= dict.fromkeys(("hx", "hy", "dhx", "dhy"), h) | dict.fromkeys(("cx", "cy", "dcx", "dcy"), c)
        self._descriptors = {
            "rnnDesc": rnn.descriptor,
            "xDesc": descriptors.sequences(library, chosen, steps, chosen.input_size, lengths, 0.0),
            "yDesc": descriptors.sequences(library, chosen, steps, chosen.output_size, lengths, padding_value),
            "hDesc": descriptors.tensor(library, h, chosen.dtype),
            "cDesc": descriptors.tensor(library, c, chosen.dtype) if c else None,
        }
        self._known = {name: one and one.pointer for name, one in self._descriptors.items()}
        self._known |= {"weightSpaceSize": rnn.space.size * rnn.dtype.itemsize, "addGrad": descriptors.WGRAD_ADD}
        self._known |= {"devSeqLengths": None}  # cuDNN 9 has the descriptors' own copy
        self._known |= {"fwdMode": descriptors.TRAINING if training else descriptors.INFERENCE}
        about = {name: self._known[name] for name in ("fwdMode", "rnnDesc", "xDesc")}
        spaces = "z:workSpaceSize z:reserveSpaceSize"
        self._known |= ask(self._session.call, "cudnnGetRNNTempSpaceSizes", spaces, **about)
        self._known["reserveSpaceSize"] *= training
        for name, there in (("workSpace", True), ("reserveSpace", training)):
            size = max(self._known[f"{name}Size"], 1)  # an array of no bytes has no address
            self.buffers[name] = self._session.empty(size, np.uint8) if there else None

    def put(self, **arrays):
        """Copy arrays by name to the device, None for NULL. Raise ValueError if one does not fit."""
        for name, array in arrays.items():
            if array is not None and (array.shape != self.shapes[name] or array.dtype != self.rnn.dtype):
                wanted = f"{self.shapes[name]} of {self.rnn.dtype}"
                raise ValueError(f"{name} must have shape {wanted}, got {array.shape} of {array.dtype}")
        self.buffers |= {name: self._session.copied(array) for name, array in arrays.items()}

    def make(self, *names):
        """Make outputs filled with NaN."""
        make, dtype = self._session.empty, self.rnn.dtype
        self.buffers |= {name: (shape := self.shapes[name]) and make(shape, dtype, NAN_BYTE) for name in names}

    def start(self, functions, stream=None):
        """Call cuDNN's functions, without waiting."""
        buffers = self.buffers | {"weightSpace": self.buffers["weights"], "dweightSpace": self.buffers.get("dw")}
        for function in functions:
            if function == WEIGHTS:
                self._session.fill(self.buffers["dw"], 0, stream)
            names = [name for name, _ in PROTOTYPES[function] if name != "handle"]
            arguments = {n: self._known[n] if n in self._known else _address(buffers[n]) for n in names}
            self._session.call(function, **arguments)

    def choose(self, *functions):
        """Let `run` make only these calls, as one CUDA graph if they can be captured."""
        self._session.device.synchronize()
        self._chosen, self._graph, self.why_no_graph = functions, None, None
        try:
            self._graph = self._session.record(lambda stream: self.start(functions, stream))
        except RuntimeError as error:
            self.why_no_graph = str(error)

    def run(self):
        if self._graph is None:
            self.start(self._chosen)
        else:
            self._session.launch(self._graph)

    def results(self):
        """Return name -> array of all outputs. If `run` makes only some calls, make all of them first."""
        if self._chosen != self.functions:
            self.start(self.functions)
        self._session.device.synchronize()
        names = [name for name in ("y", "hy", "cy", "dx", "dhx", "dcx", "dw") if self.buffers.get(name) is not None]
        return {name: self._session.read(self.buffers[name]) for name in names}


class Rnn:
    """A stack of recurrent layers in cuDNN. Arguments as in `Options`.

    Raises CudnnError if cuDNN refuses or fails, RuntimeError if cuDNN, a driver or a GPU is missing.

    Attributes:
        space: numbarnn's `WeightSpace`, whose layout is cuDNN's, as a test checks.
    """

    def __init__(self, cell, input_size, hidden_size, num_layers=1, *, session=None, **chosen):
        self.options = Options(cell, input_size, hidden_size, num_layers, **chosen)
        self.dtype, self.session = numpy_dtype(self.options.dtype), session or default_session()
        self.descriptor = descriptors.network(self.session, self.options)
        self._built_for = None  # batch size for which PERSIST_DYNAMIC was compiled
        o, asked = self.options, "z:weightSpaceSize"
        sizes = o.gates, o.input_size, (o.hidden_size,) * o.num_layers, o.directions
        self.space = WeightSpace(*sizes, o.bias_mode, o.proj_size, o.input_mode)
        found = ask(self.session.call, "cudnnGetRNNWeightSpaceSize", asked, rnnDesc=self.descriptor.pointer)
        if found["weightSpaceSize"] != self.space.size * self.dtype.itemsize:
            raise RuntimeError(f"this cuDNN's weight space has {found} bytes, not those of {self.space.size} elements")

    def split(self, flat):
        return self.space.views(flat)

    def join(self, parameters):
        """Return the flat weight space of a dict of arrays by PyTorch's names."""
        flat = np.zeros(self.space.size, self.dtype)
        for name, view in self.split(flat).items():
            view[...] = parameters[name]
        return flat

    def call(self, x, states, weights, gradients=None, lengths=None, padding_value=0.0):
        """Run inference, or with gradients training and backward, and return the `Call`.

        Args:
            x: (T, B, I), or with layout="seq_major_packed" (sum of lengths, I), time after time; lengths descend.
            states: hx (L*D, B, H or P) and cx (L*D, B, H); None is zero.
            weights: a dict of arrays by PyTorch's names. gradients: (dy, dhy, dcy); None is zero.
            lengths: B ints from 0 to T; None: all T. padding_value: value of y's padding, or None.
        """
        lengths = (len(x),) * x.shape[1] if lengths is None else tuple(map(int, lengths))
        # PERSIST_DYNAMIC must be compiled for the batch size before the sizes of its spaces are known.
        if self.options.algorithm == "persist_dynamic" and self._built_for != len(lengths):
            self.session.call("cudnnBuildRNNDynamic", rnnDesc=self.descriptor.pointer, miniBatch=len(lengths))
            self._built_for = len(lengths)
        call = Call(self, len(x) if x.ndim == 3 else max(lengths), lengths, padding_value, gradients is not None)
        call.put(x=x, weights=self.join(weights), **dict(zip(("hx", "cx"), states, strict=True)))
        call.make("y", "hy", "cy")
        if gradients is not None:
            dy, dhy, dcy = gradients
            call.put(
                dy=np.zeros(call.shapes["y"], self.dtype) if dy is None else dy, dhy=dhy, dcy=dcy
            )  # no NULL for dy
            call.make("dx", "dhx", "dcx", "dw")
        call.start(call.functions)  # before a capture, as cuDNN loads and allocates in the first call
        return call


def _address(array):
    return None if array is None else array.data.ptr
