"""Check arrays that users pass in. Errors say what came, what was expected, and the cure. See `checks` for options."""

import numpy as np

from numbarnn.common.precision import DTYPES, known_dtype, numpy_dtype
from numbarnn.engines.base import as_code


def as_array(engine, value, name):
    """Return `value` as the engine's array, not copied; TypeError if it has a mask or requires a gradient."""
    if type(value) is not engine.array_module.ndarray:
        _require_plain(value, name)
    return engine.asarray(value, name)


def _require_plain(value, name):
    """Raise TypeError for a masked array or a tensor that requires a gradient: the mask or gradient would be lost."""
    code = as_code(name)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be ignored: pass {code}.filled(0), and lengths= for shorter "
            "sequences"
        )
    if getattr(value, "requires_grad", False):
        raise TypeError(
            f"{name} is a tensor that requires a gradient, which PyTorch would not get: pass {code}.detach() and call "
            "backward, or use numbarnn.torch"
        )


def array(engine, value, name, shape, dtype):
    """Return `value` as a C-contiguous array of the engine with this shape and dtype, copied only if it is not
    contiguous. shape: for each axis its size, or a letter if any size of at least 1 is allowed."""
    if type(value) is engine.array_module.ndarray and _fits(value.shape, shape) and value.dtype == known_dtype(dtype):
        result = engine.asarray(value, name)  # right, as most are, if it is not on another GPU: the rest takes longer
    else:
        result = as_array(engine, value, name)
        if result.dtype != known_dtype(dtype) or not _fits(result.shape, shape):
            _check_array(result, name, shape, dtype)
    return result if result.flags.c_contiguous else engine.array_module.ascontiguousarray(result)


def _fits(shape_of_array, shape):
    """Return whether a shape passes `_check_array`, quickly."""
    for came, size in zip(shape_of_array, shape, strict=False):
        if came != size and not (came > 0 and type(size) is str):
            return False
    return len(shape_of_array) == len(shape)


def _check_array(array, name, shape, dtype, written=False):
    """Raise ValueError or TypeError unless an array has the shape and dtype; written: whether results are written into
    it."""
    expected = "(" + ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
    if array.ndim != len(shape):
        raise ValueError(
            f"{name} must have {len(shape)} dimensions {expected}, but has {array.ndim}: shape {array.shape}"
        )
    for came, size in zip(array.shape, shape, strict=True):
        if isinstance(size, str) and came < 1:
            raise ValueError(f"{name} must have {size} >= 1, but its shape {expected} is {array.shape}")
        if not isinstance(size, str) and came != size:
            raise ValueError(f"{name} must have shape {expected}, but has {array.shape}")
    if array.dtype != dtype:
        raise TypeError(f"{name} has dtype {array.dtype}, {_why_not(array.dtype, as_code(name), dtype, written)}")


def _why_not(dtype_of_array, code, dtype, written):
    """Describe a dtype that is not the layer's, with the cure."""
    if written:
        return f"but this layer computes in {dtype}: pass an array of that dtype, as results are written into it"
    if dtype_of_array.newbyteorder("=") == dtype:
        return f"{dtype} with its bytes in the other order: pass {code}.astype({dtype!r})"
    if dtype_of_array.kind == "c":
        return f"but this layer computes in {dtype}, which has no imaginary part: pass {code}.real.astype({dtype!r})"
    cure = f"but this layer computes in {dtype}: pass {code}.astype({dtype!r})"
    runs = dtype_of_array.name in DTYPES and dtype_of_array.isnative
    return f"{cure}, or make the layer with dtype={dtype_of_array.name!r}" if runs else cure


def buffer(engine, value, name, shape, dtype, strided=False):
    """Return `value` as an array of the engine to write results into, never a copy; contiguous unless `strided`."""
    result = as_array(engine, value, name)
    _check_array(result, name, shape, dtype, written=True)
    if not (strided or result.flags.c_contiguous):
        raise ValueError(f"{name} must be contiguous, as results are written into it, but has strides {result.strides}")
    if not getattr(result.flags, "writeable", True):
        raise ValueError(f"{name} must be writable, as results are written into it, but is read-only")
    return result


def apart(engine, out, name, others, cure):
    """Raise ValueError if an array that is written shares memory with another one.
    others: (name, array, nested lists of arrays, or None) pairs."""
    for other_name, other in others:
        if isinstance(other, list | tuple):
            apart(engine, out, name, [(other_name, part) for part in other], cure)
        elif other is not None and np.shares_memory(_place(engine, out), _place(engine, other)):
            raise ValueError(f"{name} shares memory with {other_name}, which it would overwrite: {cure}")


class _Place:
    """Presents an array's memory to NumPy, which never reads it."""

    def __init__(self, engine, array):
        self.__array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": f"|V{array.dtype.itemsize}", "strides": array.strides,
            "data": (engine.address(array), True),
        }  # fmt: skip


def _place(engine, array):
    return np.asarray(_Place(engine, array))


def host_array(value, name, shape, dtype):
    """Return `value` as a NumPy array of real numbers with this shape, converted to the dtype. A finite number beyond
    the dtype's range is an error; infinity and NaN pass."""
    _require_plain(value, name)
    try:
        result = np.asarray(value)
    except (TypeError, ValueError) as error:
        cure = "; NumPy cannot take PyTorch's bfloat16: pass its .float()" if "BFloat16" in str(error) else ""
        raise TypeError(f"{name} must be an array of shape {shape}, not {value!r}: {error}{cure}") from error
    if result.dtype.str == "|V2":  # what NumPy's files make of bfloat16
        result = result.view(numpy_dtype("bfloat16"))
    if result.dtype.kind not in "fiub" and result.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of real numbers, but is {value!r} of dtype {result.dtype}")
    if result.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, but has {result.shape}")
    with np.errstate(over="ignore"):
        converted = result.astype(dtype)
    if result.dtype != converted.dtype:
        lost = np.argwhere(np.isinf(converted) & np.isfinite(result))
        if len(lost):
            where = tuple(map(int, lost[0]))
            raise ValueError(
                f"{name} has {len(lost)} values beyond the range of {dtype}, such as {result[where]} at {list(where)}: "
                "use a layer of a wider dtype, or np.clip"
            )
    return converted
