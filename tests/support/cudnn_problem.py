"""Problems for cuDNN's binding: random arrays for a set of options, and what `numbarnn.reference` says of them."""

import ctypes
import math
from itertools import product

import numpy as np

import problems
from cases import Case
from numbarnn import reference
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn.descriptors import BIAS_MODES, CELLS, Descriptor
from numbarnn.bench.peers.cudnn.library import ask
from numbarnn.common.precision import numpy_dtype
from numbarnn.weights import WeightSpace

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
ROUNDINGS = 12  # of one step, in eps: as in cases.py

# Each option at least once, and some that meet.
_BASE = dict(input_size=3, hidden_size=5)
OPTIONS = {
    "lstm": dict(cell="lstm", **_BASE),
    "gru": dict(cell="gru", **_BASE),
    "rnn_tanh": dict(cell="rnn_tanh", **_BASE),
    "rnn_relu": dict(cell="rnn_relu", **_BASE),
    "lstm-float64": dict(cell="lstm", **_BASE, num_layers=2, dtype="float64", bidirectional=True),
    "gru-float64": dict(cell="gru", **_BASE, num_layers=2, dtype="float64", bidirectional=True),
    "lstm-float16": dict(cell="lstm", **_BASE, dtype="float16"),
    "gru-bfloat16": dict(cell="gru", **_BASE, dtype="bfloat16"),
    "lstm-no_bias": dict(cell="lstm", **_BASE, bias=False),
    "lstm-input_bias": dict(cell="lstm", **_BASE, bias="input", bidirectional=True),
    "lstm-recurrent_bias": dict(cell="lstm", **_BASE, bias="recurrent"),
    "gru-input_bias": dict(cell="gru", **_BASE, bias="input"),
    "gru-recurrent_bias": dict(cell="gru", **_BASE, bias="recurrent", num_layers=2),
    "lstm-skip": dict(cell="lstm", input_size=5, hidden_size=5, num_layers=2, input_mode="skip"),
    "gru-skip-bidirectional": dict(cell="gru", input_size=5, hidden_size=5, input_mode="skip", bidirectional=True),
    "rnn_relu-skip-no_bias": dict(cell="rnn_relu", input_size=5, hidden_size=5, input_mode="skip", bias=False),
    "lstm-projection": dict(cell="lstm", **_BASE, num_layers=2, proj_size=2, bidirectional=True),
    "lstm-projection-skip": dict(cell="lstm", input_size=5, hidden_size=5, proj_size=2, input_mode="skip"),
    "lstm-clip": dict(cell="lstm", **_BASE, num_layers=2, cell_clip=0.25),
    "lstm-clip-bounds": dict(cell="lstm", **_BASE, cell_clip=(-0.25, 0.125), clip_propagate_nan=False),
    "gru-packed": dict(cell="gru", **_BASE, layout="seq_major_packed", num_layers=2, bidirectional=True),
    "lstm-tensor_op": dict(cell="lstm", **_BASE, math_type="tensor_op_allow_conversion"),
    "lstm-default_math": dict(cell="lstm", **_BASE, math_type="default"),
    "lstm-persist_static": dict(cell="lstm", **_BASE, algorithm="persist_static"),
    "gru-persist_dynamic": dict(cell="gru", **_BASE, algorithm="persist_dynamic"),
    "rnn_tanh-small_h": dict(cell="rnn_tanh", **_BASE, algorithm="persist_static_small_h"),
}


STANDARD = {name: chosen for name, chosen in OPTIONS.items() if "algorithm" not in chosen}

# Every cell, bias mode, direction, input mode and projection.
LAYOUTS_OF_WEIGHTS = [
    dict(cell=cell, input_size=5 if skip else 3, hidden_size=5, num_layers=2, bidirectional=both, bias=bias,
         input_mode="skip" if skip else "linear", proj_size=proj)
    for cell, bias, both, skip, proj in product(CELLS, BIAS_MODES, (False, True), (False, True), (0, 2))
    if cell == "lstm" or not proj
]  # fmt: skip


def as_id(chosen):
    """Options as a test's id: their values, and the names of those that are True."""
    return "-".join(name if value is True else str(value) for name, value in chosen.items() if value)


def as_weight_space(chosen):
    """Where numbarnn's own weight space has the parameters, and its size."""
    space = weight_space(cudnn.Options(**chosen))
    return {part.name: (part.offset, part.shape) for part in space.parameters}, space.size


def layout_by_cudnn(library, handle, descriptor, o):
    """As `as_weight_space`, asked of cuDNN about the network of a descriptor, whose `cudnn.Options` are o.

    cuDNN counts pseudo-layers (layer 0 forward, layer 0 backward, layer 1 forward, ...) and, in each, linear layers:
    W of each gate, then R of each gate, then the LSTM's projection. It reports one matrix and one bias for each. Gates
    stand in PyTorch's order (LSTM i f g o; GRU r z n), so the G matrices of a kind are one parameter of PyTorch's.
    """
    base, given = 1 << 30, {"handle": handle, "rnnDesc": descriptor.pointer}  # it reads and writes nothing there
    size = ask(library.call, "cudnnGetRNNWeightSpaceSize", "z:weightSpaceSize", **given)["weightSpaceSize"]
    itemsize, found = numpy_dtype(o.dtype).itemsize, {}
    for pseudo_layer in range(o.num_layers * o.directions):
        layer, direction = divmod(pseudo_layer, o.directions)
        for number in range(2 * o.gates + bool(o.proj_size)):
            tensors = [Descriptor(library, "Tensor") for _ in range(2)]
            asked = {"pseudoLayer": pseudo_layer, "linLayerID": number, "mDesc": tensors[0].pointer}
            asked |= given | {"bDesc": tensors[1].pointer, "weightSpace": base, "weightSpaceSize": size}
            addresses = ask(library.call, "cudnnGetRNNWeightParams", "p:mAddr p:bAddr", **asked).values()
            for what, tensor, address in zip(("weight", "bias"), tensors, addresses, strict=True):
                if address:
                    rows, *columns = shape_of(tensor)[1:]
                    kind = f"{what}_{('ih', 'hh', 'hr')[number // o.gates]}"
                    offset, name = (address - base) // itemsize, f"{kind}_l{layer}{'_reverse' * direction}"
                    first, shape = found.setdefault(name, (offset, (0, *(columns if what == "weight" else []))))
                    assert first + math.prod(shape) == offset, f"{name}: its gates do not stand one after another"
                    found[name] = first, (shape[0] + rows, *shape[1:])
    return dict(sorted(found.items(), key=lambda item: item[1])), size // itemsize


def shape_of(tensor):
    """The shape of a tensor that cuDNN has set."""
    shape, strides = (ctypes.c_int * 8)(), (ctypes.c_int * 8)()
    arguments = {"tensorDesc": tensor.pointer, "nbDimsRequested": 8, "dimA": shape, "strideA": strides}
    found = ask(tensor.library.call, "cudnnGetTensorNdDescriptor", "i:dataType i:nbDims", **arguments)
    return tuple(shape[: found["nbDims"]])


def weight_space(o):
    """The `WeightSpace` of `cudnn.Options`."""
    return WeightSpace(
        o.gates, o.input_size, (o.hidden_size,) * o.num_layers, o.directions, o.bias_mode, o.proj_size, o.input_mode
    )


def case_of(o, T, B, **options):
    """The `Case` of `cudnn.Options`, and of what these do not say."""
    return Case(
        o.cell, T, B, o.input_size, (o.hidden_size,) * o.num_layers, o.directions, o.bias_mode, o.input_mode,
        o.proj_size, o.clip_bounds, o.clip_propagate_nan, **options,
    )  # fmt: skip


class Problem(problems.Problem):
    """A network of `cudnn.Options`, with the random arrays of a `Case` like it.

    Attributes:
        x, dy: (T, B, ...), whatever the layout; 3 in padding.
        h, c, dhy, dcy: (L*D, B, ...) or None.
        lengths: B ints, or None.
    """

    def __init__(
        self, cell, input_size, hidden_size, num_layers=1, *, T=4, B=3, lengths=None, padding_value=0.5, states=True,
        gradients=True, **chosen,
    ):  # fmt: skip
        self.options = o = cudnn.Options(cell, input_size, hidden_size, num_layers, **chosen)
        if lengths is None and o.layout == "seq_major_packed":
            lengths = (T,) * B
        self.lengths, self.padding_value = lengths, padding_value
        given = ("dy", "dhy", "dcy") if gradients else ("dy",)
        options = dict(lengths=lengths, padding_value=padding_value, state=states, given=given, dtype=o.dtype)
        super().__init__(case_of(o, T, B, **options))
        self.x[self.padding] = self.dy[self.padding] = 3

    def expected(self):
        """Name -> what the reference computes, in the shapes of cuDNN's results."""
        result = self.reference()
        gradients = reference.backward(result, self.dy, self.dhy, self.dcy)
        states = {"hy": result.hy, "cy": result.cy, "dhx": gradients.dhx, "dcx": gradients.dcx}
        values = {"y": result.y, "dx": gradients.dx, **gradients.params}
        return values | {name: np.concatenate(value) for name, value in states.items() if value is not None}

    def laid_out(self, array):
        """A (T, B, n) array in the options' layout."""
        if self.options.layout == "seq_major_packed":
            return array[~self.padding]
        return array

    def padded(self, array):
        """The reverse of `laid_out`."""
        if self.options.layout == "seq_major_packed":
            rows, array = array, np.full((*self.padding.shape, array.shape[1]), np.nan, array.dtype)
            array[~self.padding] = rows  # lengths descend
        return array

    def rnn(self, session=None):
        """cuDNN's network."""
        chosen = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        return cudnn.Rnn(**chosen, session=session)

    def run(self, session=None):
        """Name -> what cuDNN computes, sequences as (T, B, n)."""
        rnn = self.rnn(session)
        gradients = self.laid_out(self.dy), self.dhy, self.dcy
        call = rnn.call(self.laid_out(self.x), (self.h, self.c), self.parameters, gradients, self.lengths,
                        self.padding_value)  # fmt: skip
        found = call.results()
        found |= rnn.split(found.pop("dw"))
        return found | {name: self.padded(found[name]) for name in ("y", "dx")}

    @property
    def limit(self):
        """The largest error that passes: ROUNDINGS and the longest sum's, as in cases.py; halves round more."""
        o, eps = self.options, EPS[self.options.dtype]
        widest = max(o.input_size, o.output_size) + o.hidden_size
        limit = eps * (ROUNDINGS + max(widest, self.case.T * self.case.B) ** 0.5)
        if o.algorithm != "standard" and o.dtype == "float32":
            limit *= 4  # 3.4 was seen of cuDNN 9.19 on an H200: its persistent algorithms have other functions
        if o.math in ("default", "tensor_op_allow_conversion") and o.dtype == "float32":
            limit *= EPS["float16"] / eps  # TF32 and float16 have 10 bits of a fraction
        return limit

    def assert_agrees(self, values, what):
        """Every quantity is within the limit of the reference's, dx where there is no padding."""
        expected, problems = self.expected(), []
        assert set(values) == set(expected), what
        packed = self.options.layout == "seq_major_packed"
        for name, value in values.items():
            if name == "dx" or (name == "y" and packed):
                value, wanted = value[~self.padding], expected[name][~self.padding]
            else:
                wanted = expected[name]
            assert value.dtype == self.x.dtype and value.shape == wanted.shape, f"{what} {name}"
            found = np.max(np.abs(value.astype(np.float64) - wanted)) / max(1.0, np.max(np.abs(wanted)))
            if not found <= self.limit:  # so that NaN fails
                problems.append(f"{name} {found:.2e}")
        assert not problems, f"{what}: errors above {self.limit:.2e}: {', '.join(problems)}"
