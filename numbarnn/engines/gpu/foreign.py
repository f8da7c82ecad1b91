"""Use GPU arrays of other libraries, such as PyTorch's tensors, as CuPy arrays on the same memory.

Other libraries write on their own streams. DLPack is told the stream that will read an array, and makes that stream
wait for the other library's work. The CUDA array interface names the writing stream from its version 3 on, and CuPy
waits for it. Version 2, which PyTorch has, names none, so the whole device is synchronized.
"""

from numbarnn.engines.base import as_code

DLPACK_CUDA = (2, 13)  # DLPack's device types for CUDA memory: plain and managed
NAMES_STREAM = 3  # version of the CUDA array interface that names the stream


def shared(cupy, value, name):
    """Return another library's array as CuPy's, to be read on CuPy's current stream; None if it is not on a GPU.

    The caller must order later work of the other library on the same memory.

    Raises:
        TypeError: it requires a gradient, which would be lost here.
        BufferError: its library does not share it.
    """
    by_dlpack = hasattr(value, "__dlpack_device__")
    if by_dlpack and value.__dlpack_device__()[0] not in DLPACK_CUDA:
        return None
    if getattr(value, "requires_grad", False):  # PyTorch's own error would be about the interface
        raise TypeError(
            f"{name} requires a gradient, but PyTorch does not see what is computed with it here: pass "
            f"{as_code(name)}.detach()"
        )
    if by_dlpack:
        try:
            return cupy.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, NotImplementedError):
            # PyTorch does not share it by DLPack (such as with a per-thread default stream), or CuPy does not take it.
            if not hasattr(value, "__cuda_array_interface__"):
                raise
    elif not hasattr(value, "__cuda_array_interface__"):
        return None
    array = cupy.asarray(value)
    if value.__cuda_array_interface__["version"] < NAMES_STREAM:
        array.device.synchronize()
    return array
