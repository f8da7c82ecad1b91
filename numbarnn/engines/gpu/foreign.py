"""Arrays of other libraries on a GPU, such as PyTorch's tensors, as CuPy's: the same memory, once it is written.

Other libraries work on streams of their own. DLPack is told on which stream an array will be read, and makes that one
wait for the other's work so far. The CUDA array interface names the other stream from its version 3 on, and CuPy waits
for it; in version 2, which is PyTorch's, it names none, so then everything that the device was given has to be done.
"""

from numbarnn.engines.base import as_code

DLPACK_CUDA = (2, 13)  # DLPack's device types for CUDA memory: plain and managed
NAMES_STREAM = 3  # the version of the CUDA array interface from which on it does


def shared(cupy, value, name):
    """An array of another library as CuPy's, to be read on CuPy's current stream; None if it is not on a GPU.

    What the other library does later with the same memory is the caller's to order.

    Raises:
        TypeError: it requires a gradient, of which its library would not learn here.
        BufferError: its library does not share it.
    """
    by_dlpack = hasattr(value, "__dlpack_device__")
    if by_dlpack and value.__dlpack_device__()[0] not in DLPACK_CUDA:
        return None
    if getattr(value, "requires_grad", False):  # before PyTorch's own error about the interface
        raise TypeError(
            f"{name} requires a gradient, but PyTorch does not see what is computed with it here: pass "
            f"{as_code(name)}.detach()"
        )
    if by_dlpack:
        try:
            return cupy.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, NotImplementedError):
            # What PyTorch does not share by DLPack, as for a per-thread default stream, or CuPy does not take so.
            if not hasattr(value, "__cuda_array_interface__"):
                raise
    elif not hasattr(value, "__cuda_array_interface__"):
        return None
    array = cupy.asarray(value)
    if value.__cuda_array_interface__["version"] < NAMES_STREAM:
        array.device.synchronize()
    return array
