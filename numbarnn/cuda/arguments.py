"""Kernel arguments as compiled code takes them, following the way numba-cuda passes arrays to kernels."""

import struct
from functools import cache
from math import prod

import numpy as np

# dtype -> how `struct` packs one scalar of it, padded to a slot of 8 bytes.
_SCALARS = {
    "bool": "?7x",
    "int8": "b7x",
    "uint8": "B7x",
    "int16": "h6x",
    "uint16": "H6x",
    "int32": "i4x",
    "uint32": "I4x",
    "int64": "q",
    "uint64": "Q",
    "float16": "e6x",
    "float32": "f4x",
    "float64": "d",
}
_NAMES = {np.dtype(name): name for name in _SCALARS}  # dtype.name takes microseconds
INT = _SCALARS["int32"]
_HOST = "host memory"


class Arguments:
    """Arguments in slots of 8 bytes, one slot per parameter of the compiled kernel.

    An array of n dimensions is 5 + 2n parameters: two pointers that Numba uses on the CPU only, the number of
    elements, the size of an element, the address, n extents and n strides in bytes. A tuple is its elements
    in turn, and so is a NamedTuple, in which None is a parameter that nobody reads.

    Args:
        kernel_name: for messages.
        arguments: arrays on a GPU (CuPy's, or any with `__cuda_array_interface__`), NumPy scalars, tuples of
            these, NamedTuples of these and None; NumPy arrays too, to compile for, not to launch with.

    Attributes:
        arguments: as they were given.
        signature: hashable description of the arguments' types; see `numba_types`.
        values: one per slot.
    """

    def __init__(self, kernel_name, arguments):
        self._name, self._position, self.arguments = kernel_name, 0, arguments
        self._formats, self.values = [], []
        self._places = []  # (position, device or _HOST) of arrays whose place is known
        signature = []
        for self._position, argument in enumerate(arguments):
            signature.append(self._add(argument))
        self.signature = tuple(signature)

    def pack_into(self, slots):
        """Write all values to the start of `slots`, a writable buffer."""
        struct.pack_into("=" + "".join(self._formats), slots, 0, *self.values)

    def require_on(self, device):
        """Raise ValueError for an array that is not on this device."""
        for position, place in self._places:
            if place != device:
                where = _HOST if place == _HOST else f"device {place}"
                raise ValueError(f"argument {position} of kernel {self._name} is in {where}, not on device {device}")

    def require_layout(self, compiled, num_ints):
        """Raise RuntimeError unless the CompiledKernel takes what is packed here and `num_ints` int32."""
        sizes = tuple(_value_sizes("".join(self._formats) + INT * num_ints))
        if sizes != compiled.parameter_bytes:
            raise RuntimeError(
                f"kernel {self._name}: the installed numba-cuda passes arguments in an unknown way "
                f"(parameters of {compiled.parameter_bytes} bytes, expected {sizes}); please report it"
            )

    def _add(self, argument):
        if isinstance(argument, tuple):
            if hasattr(argument, "_fields"):
                return (type(argument), *[self._add_field(field) for field in argument])
            return ("tuple", *[self._add(element) for element in argument])
        if isinstance(argument, np.generic):
            name = self._known(argument.dtype)
            self._formats.append(_SCALARS[name])
            self.values.append(argument.item())
            return name
        return self._add_array(argument)

    def _add_field(self, field):
        """A field of a NamedTuple; None is passed as a null pointer."""
        if field is not None:
            return self._add(field)
        self._formats.append("Q")
        self.values.append(0)
        return "none"

    def _add_array(self, argument):
        address, dtype, shape, strides = self._describe(argument)
        contiguous = contiguous_strides(shape, dtype.itemsize)
        layout = "C" if strides is None or _same_elements(shape, strides, contiguous) else "A"
        self.values += (0, 0, prod(shape), dtype.itemsize, address, *shape)
        self.values += contiguous if layout == "C" else strides
        self._formats.append(f"4qQ{2 * len(shape)}q" if shape else "4qQ")
        return self._known(dtype), len(shape), layout

    def _describe(self, argument):
        """(address, dtype, shape, strides in bytes or None); notes where the array is."""
        if isinstance(argument, np.ndarray):
            self._places.append((self._position, _HOST))
            return argument.ctypes.data, argument.dtype, argument.shape, argument.strides
        memory = getattr(argument, "data", None)
        if hasattr(memory, "device_id"):  # CuPy; several times faster than through the interface
            if argument.size:  # nothing is read from an empty array
                self._places.append((self._position, memory.device_id))
            return memory.ptr, argument.dtype, argument.shape, argument.strides
        interface = getattr(argument, "__cuda_array_interface__", None)
        if interface is None or interface.get("mask") is not None:
            raise TypeError(
                f"argument {self._position} of kernel {self._name} must be an array on the GPU, a NumPy "
                f"scalar such as np.float32(0.5), or a tuple of these, got {type(argument).__name__}"
            )
        address, shape = interface["data"][0] or 0, tuple(interface["shape"])
        return address, np.dtype(interface["typestr"]), shape, interface.get("strides")

    def _known(self, dtype):
        name = _NAMES.get(dtype)
        if name is None:
            raise TypeError(
                f"argument {self._position} of kernel {self._name}: dtype {dtype} is not supported; it must "
                f"be one of {', '.join(_SCALARS)}, in native byte order"
            )
        return name


def contiguous_strides(shape, itemsize):
    """Strides in bytes of a C-contiguous array."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _same_elements(shape, strides, contiguous):
    """Whether `strides` address the elements of a C-contiguous array."""
    steps = zip(shape, strides, contiguous, strict=True)
    return 0 in shape or all(extent == 1 or stride == expected for extent, stride, expected in steps)


def _value_sizes(formats):
    """Bytes of each value of a `struct` format, padding left out: "2qi4x" -> 8, 8, 4."""
    repeat = ""
    for code in formats:
        if code.isdigit():
            repeat += code
            continue
        if code != "x":
            yield from [struct.calcsize("=" + code)] * int(repeat or 1)
        repeat = ""


@cache
def numba_types(signature):
    """The Numba types of a signature.

    Its entries: "float32" for a scalar, "none" for None, ("float32", 2, "C") for an array of 2 dimensions with layout
    "C" or "A", ("tuple", ...) for a tuple of entries, (its class, ...) for a NamedTuple of entries.
    """
    from numba import types

    def one(entry):
        if isinstance(entry, str):
            return types.boolean if entry == "bool" else getattr(types, entry)
        if entry[0] == "tuple":
            return types.Tuple([one(element) for element in entry[1:]])
        if isinstance(entry[0], type):
            return types.BaseTuple.from_types([one(element) for element in entry[1:]], entry[0])
        dtype, ndim, layout = entry
        return types.Array(one(dtype), ndim, layout)

    return tuple(one(entry) for entry in signature)
