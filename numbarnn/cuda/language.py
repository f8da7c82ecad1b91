"""The object `cuda` that kernels use, with the names of `numba.cuda`.

    from numbarnn.cuda.language import cuda

    @cuda.jit
    def kernel(out): out[cuda.grid(1)] = cuda.threadIdx.x

For the backend "cuda", `cuda.jit` hands Numba a copy of the function in which `cuda` is `numba.cuda`. For the backend
"python", functions stay as they are, and the simulator adds the other names to this object while a kernel runs. Only
this folder imports Numba's compiler.
"""

from functools import lru_cache
from types import CellType, FunctionType, ModuleType

from numbarnn.cuda.backend import backend


class PythonKernel:
    """A kernel for the simulator. py_func: its Python function."""

    def __init__(self, function):
        self.py_func = function


class Language:
    """The class of `cuda`."""

    def jit(self, function=None, device=False, **options):
        """Decorate a kernel, or with `device` a function that kernels call. options: as for `numba.cuda.jit`."""
        if function is None:
            return lambda function: self.jit(function, device, **options)
        if backend() == "python":
            return function if device else PythonKernel(function)
        from numba import cuda as numba_cuda  # takes 0.5 s, and the CPU engine does not need it

        return numba_cuda.jit(device=device, **options)(with_names(function, {"cuda": numba_cuda}))

    def __getattr__(self, name):
        raise AttributeError(f"cuda.{name} exists in a running kernel only, or the simulator does not support it")


cuda = Language()


def with_names(function, names, cells=()):
    """Copy a function, with new values for some global names and, with `cells`, for its closure."""
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
    """Return a kernel's Python function for the simulator, with our `cuda` in it and in every function it calls.

    Args:
        kernel: a `PythonKernel`, a kernel or device function decorated by `numba.cuda.jit`, or a plain function.
    """
    if isinstance(kernel, PythonKernel):
        return kernel.py_func
    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", kernel)
    names = {name: _replacement(function.__globals__.get(name)) for name in function.__code__.co_names}
    names = {name: value for name, value in names.items() if value is not function.__globals__.get(name)}
    cells = tuple(CellType(_replacement(cell.cell_contents)) for cell in function.__closure__ or ())
    return with_names(function, names, cells)


def _replacement(value):
    """Replace `numba.cuda` and functions decorated by its jit; return any other value unchanged."""
    if isinstance(value, ModuleType) and value.__name__ == "numba.cuda":
        return cuda
    is_jitted = type(value).__module__.startswith("numba.cuda") and (hasattr(value, "py_func") or hasattr(value, "fn"))
    return as_python(value) if is_jitted else value


def libdevice():
    """Return Numba's module of NVIDIA's math functions for GPUs."""
    from numba.cuda import libdevice

    return libdevice
