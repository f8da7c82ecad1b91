"""Pack kernel arguments as compiled code takes them, as numba-cuda passes arrays to kernels."""

import re
import struct
from functools import cache
from math import prod

import numpy as np

# dtype -> `struct` format of a scalar, padded to a slot of 8 bytes.
_SCALARS = {
    "bool": "?7x", "int8": "b7x", "uint8": "B7x", "int16": "h6x", "uint16": "H6x", "int32": "i4x", "uint32": "I4x",
    "int64": "q", "uint64": "Q", "float16": "e6x", "float32": "f4x", "float64": "d",
}  # fmt: skip
_NAMES = {np.dtype(name): name for name in _SCALARS}  # a lookup is faster than dtype.name
INT = _SCALARS["int32"]
_HOST = "host memory"


class Arguments:
    """Arguments in slots of 8 bytes, one slot per parameter of the compiled kernel.

    An array of n dimensions takes 5 + 2n slots: two pointers that Numba uses on the CPU only, the number of elements,
    the size of an element, the address, n extents and n strides in bytes. A tuple or NamedTuple takes the slots of its
    elements. None in a NamedTuple takes one slot, which kernels do not read.

    Args:
        kernel_name: for messages.
        arguments: GPU arrays (CuPy's, or any with `__cuda_array_interface__`), NumPy scalars, tuples and NamedTuples of
            these, and None in NamedTuples. NumPy arrays do for compiling, but not for launching.

    Attributes:
        arguments: the arguments, unchanged.
        signature: hashable types of the arguments (see `numba_types`).
        values: one value per slot.
    """

    def __init__(self, kernel_name, arguments):
        self._name, self._position, self.arguments = kernel_name, 0, arguments
        self._formats, self.values = [], []
        self._devices = []  # (position, device or _HOST) of arrays whose memory is known
        signature = []
        for self._position, argument in enumerate(arguments):
            signature.append(self._add(argument))
        self.signature = tuple(signature)

    def pack_into(self, slots):
        """Write all values to the start of `slots`, a writable buffer."""
        struct.pack_into("=" + "".join(self._formats), slots, 0, *self.values)

    def require_on(self, device):
        """Raise ValueError for an array that is not on this device."""
        for position, found in self._devices:
            if found != device:
                where = _HOST if found == _HOST else f"device {found}"
                raise ValueError(f"argument {position} of kernel {self._name} is in {where}, not on device {device}")

    def require_layout(self, compiled, num_ints):
        """Raise RuntimeError unless the CompiledKernel takes these arguments and `num_ints` int32."""
        sizes = tuple(_value_sizes("".join(self._formats) + INT * num_ints))
        if sizes != compiled.parameter_bytes:
            raise RuntimeError(
                f"kernel {self._name}: the installed numba-cuda passes arguments in an unknown way "
                f"(parameters of {compiled.parameter_bytes} bytes, expected {sizes}). Please report it."
            )

    def _add(self, argument):
        if isinstance(argument, tuple):
            if hasattr(argument, "_fields"):
                return (type(argument), *[self._add_field(field) for field in argument])
            return ("tuple", *[self._add(element) for element in argument])
        if isinstance(argument, np.generic):
            name = self._dtype_name(argument.dtype)
            self._formats.append(_SCALARS[name])
            self.values.append(argument.item())
            return name
        return self._add_array(argument)

    def _add_field(self, field):
        if field is not None:
            return self._add(field)
        self._formats.append("Q")
        self.values.append(0)
        return "none"

    def _add_array(self, argument):
        address, dtype, shape, strides = self._describe(argument)
        contiguous = _contiguous_strides(shape, dtype.itemsize)
        layout = "C" if strides is None or _same_elements(shape, strides, contiguous) else "A"
        self.values += (0, 0, prod(shape), dtype.itemsize, address, *shape)
        self.values += contiguous if layout == "C" else strides
        self._formats.append(f"4qQ{2 * len(shape)}q" if shape else "4qQ")
        return self._dtype_name(dtype), len(shape), layout

    def _describe(self, argument):
        """Return (address, dtype, shape, strides in bytes or None) of an array, and note its device."""
        if isinstance(argument, np.ndarray):
            self._devices.append((self._position, _HOST))
            return argument.ctypes.data, argument.dtype, argument.shape, argument.strides
        memory = getattr(argument, "data", None)
        if hasattr(memory, "device_id"):  # CuPy; several times faster than the interface
            if argument.size:  # an empty array may be anywhere
                self._devices.append((self._position, memory.device_id))
            return memory.ptr, argument.dtype, argument.shape, argument.strides
        interface = getattr(argument, "__cuda_array_interface__", None)
        if interface is None or interface.get("mask") is not None:
            raise TypeError(
                f"argument {self._position} of kernel {self._name} must be an array on the GPU, a NumPy scalar such as "
                f"np.float32(0.5), or a tuple of these, got {type(argument).__name__}"
            )
        address, shape = interface["data"][0] or 0, tuple(interface["shape"])
        return address, np.dtype(interface["typestr"]), shape, interface.get("strides")

    def _dtype_name(self, dtype):
        name = _NAMES.get(dtype)
        if name is None:
            raise TypeError(
                f"argument {self._position} of kernel {self._name}: dtype {dtype} is not supported. Convert it to one "
                f"of {', '.join(_SCALARS)}, in native byte order."
            )
        return name


def _contiguous_strides(shape, itemsize):
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _same_elements(shape, strides, contiguous):
    """Return whether `strides` address the elements of a C-contiguous array. Axes of length 1 may have any stride."""
    steps = zip(shape, strides, contiguous, strict=True)
    return 0 in shape or all(extent == 1 or stride == expected for extent, stride, expected in steps)


def _value_sizes(formats):
    """Yield the bytes of each value of a `struct` format without its padding: 8, 8, 4 for "2qi4x"."""
    for count, code in re.findall(r"(\d*)([^\dx])", re.sub(r"\d*x", "", formats)):
        yield from [struct.calcsize("=" + code)] * int(count or 1)


@cache
def numba_types(signature):
    """Return the Numba types of a signature.

    An entry is "float32" for a scalar, "none" for None, ("float32", 2, "C") for an array of 2 dimensions with layout
    "C" or "A", ("tuple", ...) for a tuple, and (class, ...) for a NamedTuple.
    """
    from numba import types

    def type_of(entry):
        if isinstance(entry, str):
            return types.boolean if entry == "bool" else getattr(types, entry)
        if entry[0] == "tuple":
            return types.Tuple([type_of(element) for element in entry[1:]])
        if isinstance(entry[0], type):
            return types.BaseTuple.from_types([type_of(element) for element in entry[1:]], entry[0])
        dtype, ndim, layout = entry
        return types.Array(type_of(dtype), ndim, layout)

    return tuple(type_of(entry) for entry in signature)
