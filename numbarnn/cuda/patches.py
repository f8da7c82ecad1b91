"""Context managers that patch numba-cuda while it compiles a kernel, and undo the patch at the end.

A patch does nothing with a numba-cuda that lacks the patched name.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np


@contextmanager
def device_for_numba(cc):
    """Compile device functions for compute capability `cc` where no GPU is.

    numba-cuda (0.20 to 0.30) compiles a called `@cuda.jit(device=True)` function on its own and asks the current device
    for its compute capability. This patch gives `cc` as the result, in this thread only.
    """
    from numba.cuda import dispatcher

    if not hasattr(dispatcher, "get_current_device"):
        yield
        return
    original, thread = dispatcher.get_current_device, threading.get_ident()
    device = SimpleNamespace(compute_capability=cc)
    dispatcher.get_current_device = lambda: device if threading.get_ident() == thread else original()
    try:
        yield
    finally:
        dispatcher.get_current_device = original


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


@contextmanager
def convergent_functions():
    """Mark all functions as LLVM's `convergent`, which forbids making a call depend on a further branch.

    Barriers, shuffles and `mma` need the mark, and so does every function that calls one before it is inlined. NVIDIA's
    compiler marks all functions too, and LLVM removes needless marks. numba-cuda (up to 0.30) marks none.
    """
    from numba.cuda import codegen

    library_class = getattr(codegen, "CUDACodeLibrary", None)
    if not hasattr(library_class, "add_ir_module"):
        yield
        return
    original = library_class.add_ir_module

    def add_ir_module(library, module):
        for function in module.functions:
            function.attributes.add("convergent")
        original(library, module)

    library_class.add_ir_module = add_ir_module
    try:
        yield
    finally:
        library_class.add_ir_module = original
