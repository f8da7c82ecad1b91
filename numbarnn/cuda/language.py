"""The language of kernels: the one object `cuda` that they know, as `numba.cuda` has it.

    from numbarnn.cuda.language import cuda

    @cuda.jit
    def kernel(out): out[cuda.grid(1)] = cuda.threadIdx.x

Where kernels are compiled (`numbarnn.cuda.backend`), `cuda.jit` hands them to Numba, in whose copy of a function the
name `cuda` is `numba.cuda`. Else they stay Python for the simulator, which gives this object its other names
(`numbarnn.cuda.simulator`). Nothing outside of this folder knows the compiler.
"""

from functools import lru_cache
from types import CellType, FunctionType, ModuleType

from numbarnn.cuda.backend import backend


class PythonKernel:
    """A kernel for the simulator; py_func: its function, in which `cuda` is this module's."""

    def __init__(self, function):
        self.py_func = function


class Language:
    """`cuda` in kernels."""

    def jit(self, function=None, device=False, **options):
        """Decorate a kernel, or with `device` a function that kernels call; options: those of `numba.cuda.jit`."""
        if function is None:
            return lambda function: self.jit(function, device, **options)
        if backend() == "python":
            return function if device else PythonKernel(function)
        from numba import cuda as numbas  # half a second, which the CPU engine does without

        return numbas.jit(device=device, **options)(with_names(function, {"cuda": numbas}))

    def __getattr__(self, name):
        raise AttributeError(f"cuda.{name} is not there: outside of a launch, or the simulator has no such name")


cuda = Language()


def with_names(function, names, cells=()):
    """Return a copy of a function with other values of some of its global names, and of its closure's cells."""
    used = names.keys() & set(function.__code__.co_names)
    if not used and not cells:
        return function
    namespace = function.__globals__ | {name: names[name] for name in used}
    closure = cells or function.__closure__
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, closure)
    for name in ("__kwdefaults__", "__qualname__", "__doc__", "__module__"):
        setattr(copy, name, getattr(function, name))
    return copy


@lru_cache(maxsize=1024)
def as_python(kernel):
    """Return the function of a kernel as the simulator runs it: `cuda` is ours, in it and in what it calls, though
    `numba.cuda.jit` may have decorated them.

    Args:
        kernel: a `PythonKernel`, what `numba.cuda.jit` made, or a function.
    """
    if isinstance(kernel, PythonKernel):
        return kernel.py_func
    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", kernel)
    names = {name: _as_python(function.__globals__.get(name)) for name in function.__code__.co_names}
    names = {name: value for name, value in names.items() if value is not function.__globals__.get(name)}
    cells = tuple(CellType(_as_python(cell.cell_contents)) for cell in function.__closure__ or ())
    return with_names(function, names, cells)


def _as_python(value):
    """Return what stands in a kernel for a value that its function refers to."""
    if isinstance(value, ModuleType) and value.__name__ == "numba.cuda":
        return cuda
    is_jitted = type(value).__module__.startswith("numba.cuda") and (hasattr(value, "py_func") or hasattr(value, "fn"))
    return as_python(value) if is_jitted else value


def libdevice():
    """Return NVIDIA's functions for GPUs, as Numba knows them."""
    from numba.cuda import libdevice

    return libdevice
