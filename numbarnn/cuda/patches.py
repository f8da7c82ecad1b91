"""Changes of numba-cuda while it compiles one of our kernels: one context manager per change.

Each puts everything back at its end. Where a function of Numba's gives another answer, it does so in this thread only.
With a numba-cuda that lacks what it changes, each does nothing.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np


@contextmanager
def device_for_numba(cc):
    """Compile called device functions for `cc`, not for the current device.

    When a kernel calls a `@cuda.jit(device=True)` function, numba-cuda (0.20 to 0.30) compiles that function
    on its own and asks the current device for its compute capability; without a GPU that fails. Answer for
    it, in this thread.
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
    """Let numba-cuda (up to 0.30) load with NumPy 2.5, which dropped `row_stack`, a name Numba registers."""
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
    """Mark all functions as LLVM's `convergent`: a call must not come to depend on a branch that it did not depend on.

    Barriers, shuffles and `mma` need that, and so does each function that calls one, before it is inlined. As CUDA's
    own compiler does, mark them all: LLVM takes the mark away where nothing of the kind is inside. numba-cuda (up to
    0.30) marks none.
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
