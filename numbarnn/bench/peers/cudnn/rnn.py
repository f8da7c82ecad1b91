"""cuDNN's LSTM, GRU and RNN: forward, backward_data and backward_weights on NumPy arrays."""

import numpy as np

from numbarnn.common.precision import numpy_dtype
from numbarnn.weights import WeightSpace

from . import descriptors
from .descriptors import Options
from .library import NAN_BYTE, PROTOTYPES, ask, default_session

FORWARD, DATA, WEIGHTS = "cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"


class Call:
    """The arrays of one call on the device, cuDNN's spaces and its descriptors: in training the reserve of `forward`.

    One that `Rnn.prepare` makes can be run again and again on the same memory: what a benchmark times. A run copies
    nothing, allocates nothing and does not wait; where cuDNN's calls can be recorded, it launches one CUDA graph. As
    cuDNN adds gradients of weights to what is there, it sets them to zero first.

    Attributes:
        shapes: name -> shape of every array that a call may have; None for a state that the cell does not have.
        buffers: name -> array of CuPy's, or None for NULL; spaces, of bytes, under cuDNN's names.
        functions: those of a prepared call.
        why_no_graph: why `run` makes cuDNN's calls one by one, in cuDNN's or CUDA's words; None: it launches a graph.
    """

    def __init__(self, rnn, steps, lengths, padding_value, training):
        self.rnn, self.buffers, self.why_no_graph, self._graph = rnn, {}, None, None
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
        """Copy arrays by name to the device, None for NULL; ValueError where one does not fit."""
        for name, array in arrays.items():
            if array is not None and (array.shape != self.shapes[name] or array.dtype != self.rnn.dtype):
                wanted = f"{self.shapes[name]} of {self.rnn.dtype}"
                raise ValueError(f"{name} must have shape {wanted}, got {array.shape} of {array.dtype}")
        self.buffers |= {name: self._session.copied(array) for name, array in arrays.items()}

    def put_gradients(self, dy, dhy, dcy):
        """Copy the gradients that backward data is given, and make its outputs; cuDNN takes no NULL for dy."""
        self.put(dy=np.zeros(self.shapes["y"], self.rnn.dtype) if dy is None else dy, dhy=dhy, dcy=dcy)
        self.make("dx", "dhx", "dcx", "dw")

    def make(self, *names):
        """Make outputs, full of NaN."""
        make, dtype = self._session.empty, self.rnn.dtype
        self.buffers |= {name: (shape := self.shapes[name]) and make(shape, dtype, NAN_BYTE) for name in names}

    def start(self, functions, stream=None):
        """Call functions of cuDNN's, without waiting."""
        buffers = self.buffers | {"weightSpace": self.buffers["weights"], "dweightSpace": self.buffers.get("dw")}
        for function in functions:
            if function == WEIGHTS:
                self._session.fill(self.buffers["dw"], 0, stream)
            names = [name for name, _ in PROTOTYPES[function] if name != "handle"]
            arguments = {n: self._known[n] if n in self._known else _address(buffers[n]) for n in names}
            self._session.call(function, **arguments)

    def choose(self, *functions):
        """From now on a run makes these of the calls only: backward data, again and again on one reserve space."""
        self._session.device.synchronize()
        self._chosen, self._graph, self.why_no_graph = functions, None, None
        try:
            self._graph = self._session.record(lambda stream: self.start(functions, stream))
        except RuntimeError as error:
            self.why_no_graph = str(error)

    def run(self):
        """Start the chosen calls on the default stream."""
        if self._graph is None:
            self.start(self._chosen)
        else:
            self._session.launch(self._graph)

    def results(self):
        """Return name -> array of all outputs; after all calls anew where a run makes some of them only."""
        if len(self._chosen) < len(self.functions):
            self.start(self.functions)
        names = [name for name in ("y", "hy", "cy", "dx", "dhx", "dcx", "dw") if self.buffers.get(name) is not None]
        return dict(zip(names, self.read(*names), strict=True))

    def read(self, *names):
        """Return outputs as arrays; None where there is none."""
        self._session.device.synchronize()
        return [self.shapes[name] and self._session.read(self.buffers[name]) for name in names]


class Rnn:
    """A stack of recurrent layers in cuDNN: see `Options`.

    CudnnError, here and in its calls: cuDNN refuses, or fails. RuntimeError: cuDNN, a driver or a GPU is missing.

    Attributes:
        space: numbarnn's `WeightSpace`, which is cuDNN's; a test asks cuDNN where each parameter stands.
    """

    def __init__(self, cell, input_size, hidden_size, num_layers=1, *, session=None, **chosen):
        self.options = Options(cell, input_size, hidden_size, num_layers, **chosen)
        self.dtype, self.session = numpy_dtype(self.options.dtype), session or default_session()
        self.descriptor = descriptors.network(self.session, self.options)
        self._built_for = None  # the batch that PERSIST_DYNAMIC was compiled for
        o, asked = self.options, "z:weightSpaceSize"
        sizes = o.gates, o.input_size, (o.hidden_size,) * o.num_layers, o.directions
        self.space = WeightSpace(*sizes, o.bias_mode, o.proj_size, o.input_mode)
        found = ask(self.session.call, "cudnnGetRNNWeightSpaceSize", asked, rnnDesc=self.descriptor.pointer)
        if found["weightSpaceSize"] != self.space.size * self.dtype.itemsize:
            raise RuntimeError(f"this cuDNN's weight space has {found} bytes, not those of {self.space.size} elements")

    def split(self, flat):
        """Return PyTorch's name -> view of a flat weight space."""
        return self.space.views(flat)

    def join(self, parameters):
        """Return the flat weight space with the arrays of a dict by PyTorch's names."""
        flat = np.zeros(self.space.size, self.dtype)
        for name, view in self.split(flat).items():
            view[...] = parameters[name]
        return flat

    def forward(self, x, hx=None, cx=None, weights=None, lengths=None, padding_value=0.0, training=True):
        """Return y, hy, cy (None but for the LSTM), and in training the reserve for the backward calls, a `Call`.

        Args:
            x: (T, B, I), or with layout="seq_major_packed" (sum of lengths, I): first the B vectors of time 0, then
                those of time 1 of the sequences that have one; lengths descend.
            hx: (L*D, B, H), or P for H; cx: (L*D, B, H), LSTM only; None is zero, cuDNN's NULL.
            weights: a dict of arrays by PyTorch's names. lengths: B ints, each 0..T; None for T each.
            padding_value: what cuDNN is to write into y's padding; None leaves that to it.

        Outputs are full of NaN before the call: NaN that is left is what cuDNN did not write.
        """
        call = self._call(x, (hx, cx), weights, lengths, padding_value, training)
        call.start([FORWARD])
        return *call.read("y", "hy", "cy"), call if training else None

    def backward_data(self, reserve, dy=None, dhy=None, dcy=None):
        """Return dx like x, dhx, dcx (None but for the LSTM).

        reserve: of one `forward` in training; each allows one call, which changes it. dy: like y, None for zeros.
        """
        reserve.put_gradients(dy, dhy, dcy)
        reserve.start([DATA])
        return reserve.read("dx", "dhx", "dcx")

    def backward_weights(self, reserve):
        """Return the flat gradients of the weights, after `backward_data`."""
        reserve.start([WEIGHTS])
        return reserve.read("dw")[0]

    def prepare(self, x, hx=None, cx=None, weights=None, dy=None, lengths=None):
        """Return a `Call` that can be run again and again; it is inference without dy."""
        call = self._call(x, (hx, cx), weights, lengths, 0.0, dy is not None)
        call.functions = [FORWARD]
        if dy is not None:
            call.put_gradients(dy, None, None)
            call.functions += [DATA, WEIGHTS]
        call.start(call.functions)  # not recorded yet: what cuDNN loads and allocates at first is there then
        call.choose(*call.functions)
        return call

    def _call(self, x, states, weights, lengths, padding_value, training):
        """Return the `Call` of a forward call, with all that forward takes."""
        lengths = (len(x),) * x.shape[1] if lengths is None else tuple(map(int, lengths))
        # PERSIST_DYNAMIC is compiled for one batch size, before the sizes of its spaces are asked for.
        if self.options.algorithm == "persist_dynamic" and self._built_for != len(lengths):
            self.session.call("cudnnBuildRNNDynamic", rnnDesc=self.descriptor.pointer, miniBatch=len(lengths))
            self._built_for = len(lengths)
        call = Call(self, len(x) if x.ndim == 3 else max(lengths), lengths, padding_value, training)
        call.put(x=x, weights=self.join(weights), hx=states[0], cx=states[1])
        call.make("y", "hy", "cy")
        return call


def _address(array):
    return None if array is None else array.data.ptr
