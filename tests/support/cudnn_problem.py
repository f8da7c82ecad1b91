"""Where cuDNN has the parameters of a network, and where numbarnn's weight space has them; cases of its options."""

import ctypes
import math
from itertools import product

from cases import Case
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn.descriptors import BIAS_MODES, CELLS, Descriptor
from numbarnn.bench.peers.cudnn.library import ask
from numbarnn.common.precision import numpy_dtype
from numbarnn.weights import WeightSpace

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
