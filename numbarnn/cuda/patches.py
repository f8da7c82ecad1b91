"""Context managers that patch numba-cuda while it compiles a kernel, unless it lacks the patched name."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np


@contextmanager
def _replaced(owner, name, make):
    """Replace owner.name by make(the original), if owner has the name."""
    if not hasattr(owner, name):
        yield
        return
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def device_for_numba(cc):
    """Compile device functions for compute capability `cc` where no GPU is.

    numba-cuda (0.20 to 0.30) compiles a called `@cuda.jit(device=True)` function on its own and asks the current device
    for its compute capability. This patch gives `cc` as the result, in this thread only.
    """
    from numba.cuda import dispatcher

    device, thread = SimpleNamespace(compute_capability=cc), threading.get_ident()

    def make(original):
        return lambda: device if threading.get_ident() == thread else original()

    return _replaced(dispatcher, "get_current_device", make)


@contextmanager
def numpy_for_numba():
    """Let numba-cuda (up to 0.30) load with NumPy 2.5, which dropped `row_stack`, a name that Numba registers."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = lambda *_: None  # noqa: NPY201
    try:
        yield
    finally:
        if missing:
            del np.row_stack  # noqa: NPY201


def convergent_functions():
    """Mark all functions as LLVM's `convergent`, which forbids making a call depend on a further branch.

    Barriers, shuffles and `mma` need the mark, and so does every function that calls one before it is inlined. NVIDIA's
    compiler marks all functions too, and LLVM removes needless marks. numba-cuda (up to 0.30) marks none.
    """
    from numba.cuda import codegen

    def make(original):
        def add_ir_module(library, module):
            for function in module.functions:
                function.attributes.add("convergent")
            original(library, module)

        return add_ir_module

    return _replaced(getattr(codegen, "CUDACodeLibrary", None), "add_ir_module", make)
