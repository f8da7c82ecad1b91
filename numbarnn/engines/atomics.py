"""What threads of the CPU engine use to wait for each other inside compiled code."""

import ctypes
import sys

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_I64 = ir.IntType(64)
SLOTS = 8  # int64 words between two threads' counters: one cache line, so that they do not disturb each other
POLLS_BEFORE_YIELD = 2000  # some microseconds


@intrinsic
def load_acquire(typingctx, address):
    """The int64 at an address; what the thread that stored it wrote before is visible afterwards."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.intp), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Store an int64 at an address; what this thread wrote before becomes visible with it."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


def _register_yield():
    """Make the operating system's "let another thread run" callable from compiled code."""
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    llvm.add_symbol("numbarnn_yield", ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction("numbarnn_yield", types.int32())


yield_processor = _register_yield()


@njit(cache=True)
def barrier(counters, thread, threads):
    """Wait until all `threads` have called this as often as thread `thread` has.

    Polls, as the others are nearly there; when one is long in coming (its processor is busy with something else), lets
    others run between polls.

    Args:
        counters: int64 (threads * SLOTS,), zero before the first call.
    """
    if threads == 1:
        return
    base = counters.ctypes.data
    turn = counters[thread * SLOTS] + 1
    store_release(base + thread * SLOTS * 8, turn)
    for other in range(threads):
        polls = 0
        while load_acquire(base + other * SLOTS * 8) < turn:
            polls += 1
            if polls > POLLS_BEFORE_YIELD:
                yield_processor()
