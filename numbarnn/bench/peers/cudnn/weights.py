"""Where cuDNN puts each parameter in its weight space, asked of cuDNN itself (cudnnGetRNNWeightParams).

cuDNN counts pseudo-layers (layer 0 forward, layer 0 backward, layer 1 forward, ...) and, in each, linear layers: W of
each gate, then R of each gate, then the LSTM's projection. It reports one matrix and one bias for each. Gates stand in
PyTorch's order (LSTM i f g o; GRU r z n), so the G matrices of a kind are one parameter of PyTorch's.
"""

import math
from typing import NamedTuple

import numpy as np

from numbarnn.common.precision import numpy_dtype

from .descriptors import TensorDescriptor
from .library import ask


class Place(NamedTuple):
    """A parameter's place in the weight space: offset of its first element, and its shape."""

    offset: int
    shape: tuple[int, ...]

    @property
    def size(self):
        return math.prod(self.shape)


def space_bytes(library, handle, descriptor):
    given = {"handle": handle, "rnnDesc": descriptor.pointer}
    return ask(library.call, "cudnnGetRNNWeightSpaceSize", "z:weightSpaceSize", **given)["weightSpaceSize"]


def places(library, handle, descriptor, chosen, base):
    """PyTorch's name -> `Place` of every parameter, in the order in which they stand.

    Args:
        base: the address that cuDNN is to count from; it reads and writes nothing there.
    """
    given = {"handle": handle, "rnnDesc": descriptor.pointer, "weightSpace": base}
    given["weightSpaceSize"] = space_bytes(library, handle, descriptor)
    itemsize, G = numpy_dtype(chosen.dtype).itemsize, chosen.gates
    found = {}
    for pseudo_layer in range(chosen.num_layers * chosen.directions):
        layer, direction = divmod(pseudo_layer, chosen.directions)
        suffix = f"_l{layer}{'_reverse' if direction else ''}"
        given["pseudoLayer"] = pseudo_layer
        numbers = range(2 * G + bool(chosen.proj_size))
        layers = [_linear_layer(library, itemsize, linLayerID=number, **given) for number in numbers]
        for kind, group in (("ih", layers[:G]), ("hh", layers[G : 2 * G])):
            matrices, biases = zip(*group, strict=True)
            found |= _together(f"weight_{kind}{suffix}", matrices)
            found |= _together(f"bias_{kind}{suffix}", [part and Place(part.offset, part.shape[:1]) for part in biases])
        if chosen.proj_size:
            found |= _together(f"weight_hr{suffix}", layers[-1][:1])
    return dict(sorted(found.items(), key=lambda item: item[1].offset))


def _linear_layer(library, itemsize, **given):
    """The `Place`s, or None, of a linear layer's matrix (rows, columns) and of its bias (rows, 1)."""
    matrix, bias = TensorDescriptor(library), TensorDescriptor(library)
    given |= {"mDesc": matrix.pointer, "bDesc": bias.pointer}
    addresses = ask(library.call, "cudnnGetRNNWeightParams", "p:mAddr p:bAddr", **given).values()
    return [
        Place((address - given["weightSpace"]) // itemsize, tensor.read()[1][1:]) if address else None
        for address, tensor in zip(addresses, (matrix, bias), strict=True)
    ]


def _together(name, parts):
    """{name: one Place for the parts of all gates}; {} where cuDNN has none of them."""
    parts = [part for part in parts if part is not None]
    if not parts:
        return {}
    offset = parts[0].offset
    for part in parts:
        if part.offset != offset or part.shape != parts[0].shape:
            raise RuntimeError(f"{name}: this cuDNN does not put its gates one after another: {parts}")
        offset += part.size
    rows, *columns = parts[0].shape
    return {name: Place(parts[0].offset, (len(parts) * rows, *columns))}


def split(flat, found):
    """Name -> view of a flat weight space, for places as `places` finds them."""
    return {name: flat[place.offset : place.offset + place.size].reshape(place.shape) for name, place in found.items()}


def join(weights, found, size, dtype):
    """The flat weight space of `size` elements with the arrays of a dict, or an error that names all that is wrong."""
    missing, unknown = [n for n in found if n not in weights], [n for n in weights if n not in found]
    if missing or unknown:
        raise ValueError(
            f"weights: missing {', '.join(missing) or 'none'}; unexpected {', '.join(unknown) or 'none'}. "
            f"With these options cuDNN has {', '.join(found)}"
        )
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    wrong = [f"{n} {arrays[n].shape}, expected {p.shape}" for n, p in found.items() if arrays[n].shape != p.shape]
    if wrong:
        raise ValueError(f"weights of the wrong shape: {'; '.join(wrong)}")
    wrong = [f"{name} {array.dtype}" for name, array in arrays.items() if array.dtype != dtype]
    if wrong:
        raise TypeError(f"weights must be {dtype}, got {', '.join(wrong)}")
    flat = np.zeros(size, dtype)
    for name, view in split(flat, found).items():
        view[...] = arrays[name]
    return flat
