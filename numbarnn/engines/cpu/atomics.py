"""What threads of the CPU engine use to wait for each other inside compiled code."""

import ctypes
import platform
import sys

import numpy as np
from llvmlite import ir

from numbarnn.compile import native, types
from numbarnn.compile.calls import intrinsic
from numbarnn.compile.plain import plain

_I64 = ir.IntType(64)
FOR_EVER = np.intp(0)  # to wait for
SLOTS = 8  # int64 words between two threads' counters: one cache line, so that they do not disturb each other
# Some 160 microseconds: waking a thread takes fifty, and in a short call what one thread does alone up to a hundred.
POLLS_BEFORE_SLEEP = 600_000
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}  # the number of Linux' system call, by machine
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # on memory that no other process shares
#: Whether threads can sleep until a number in memory changes; where not, they yield between polls.
SLEEPS = sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in _FUTEX_CALLS


@intrinsic
def load_in_order(typingctx, address):
    """The int64 at an address; what the thread that stored it wrote before is visible afterwards.

    All threads see all of these loads, stores and additions in one order.
    """

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.intp), codegen


@intrinsic
def store_in_order(typingctx, address, value):
    """Store an int64 at an address; what this thread wrote before becomes visible with it."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def add_in_order(typingctx, address, value):
    """Add to the int64 at an address, as one step that no other thread comes between."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.atomic_rmw("add", pointer, args[1], "seq_cst")
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def exchange_if(typingctx, address, expected, value):
    """Write the int64 at an address if it is the expected one, and whether it was: as one step, likewise."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.extract_value(builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst"), 1)

    return types.boolean(types.intp, types.int64, types.int64), codegen


# ------------------------------------------------------------------------------------------ the operating system
def _register(name, function):
    """Make a function of the operating system's callable from compiled code, also from code of the disk cache."""
    native.offer_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return name


if SLEEPS:
    _system_call = types.ExternalFunction(
        _register("numbarnn_system_call", ctypes.CDLL(None).syscall), types.int64(*[types.int64] * 5)
    )
    _FUTEX = np.int64(_FUTEX_CALLS[platform.machine()])

    @plain
    def sleep_while(address, value, patience):
        """Sleep until another thread calls `wake`, unless the int64 at an address is another one than `value` already.

        May also return without a reason. Linux compares the lower 32 bits, which come first in memory.

        Args:
            patience: address of how long at most, seconds and nanoseconds, int64 both; 0: without an end.

        Returns:
            whether it slept for so long, or got a signal.
        """
        call, value = np.int64(_FUTEX_WAIT), value & 0xFFFFFFFF
        return _system_call(_FUTEX, address, call, value, patience) < 0 and load_in_order(address) == value

    @plain
    def wake(address):
        """Wake all threads that sleep on an address."""
        _system_call(_FUTEX, address, np.int64(_FUTEX_WAKE), np.int64(2**31 - 1), np.int64(0))

else:
    _yield = types.ExternalFunction(
        _register(
            "numbarnn_yield",
            ctypes.WinDLL("kernel32").SwitchToThread if sys.platform == "win32" else ctypes.CDLL(None).sched_yield,
        ),
        types.int32(),
    )

    @plain
    def sleep_while(address, value, patience):
        """Let another thread run."""
        _yield()
        return False

    @plain
    def wake(address):
        """Nobody sleeps."""


@plain
def wait_until(place, turn, patience):
    """Wait until the int64 at an address is at least `turn`; in the next one stands how many sleep until it changes,
    and in the one after it the last turn for which a thread had to wait longer than its `patience` (`sleep_while`).

    Polls for a while, as it often comes soon. Then sleeps: beside other programs the thread that is waited for may have
    no processor, and one that polls would use up its own share of them in vain, to be without one when the other has
    come. It does not yield in between: that gives away a turn of the scheduler's, milliseconds, to whoever wants it,
    and one wait had 25 of them. A thread that is going to sleep adds itself before it looks a last time, one that
    writes looks for sleepers afterwards (`announce`): one of the two sees the other.
    """
    polls = 0
    while load_in_order(place) < turn:
        polls += 1
        if polls > POLLS_BEFORE_SLEEP:
            add_in_order(place + 8, 1)
            seen = load_in_order(place)
            if seen < turn and sleep_while(place, seen, patience):
                store_in_order(place + 16, turn)
            add_in_order(place + 8, -1)


@plain
def announce(place, turn):
    """Write the int64 that others wait for, and wake those that sleep."""
    store_in_order(place, turn)
    if load_in_order(place + 8) > 0:
        wake(place)


@plain
def barrier(counters, thread, threads):
    """Wait until all `threads` have called this as often as thread `thread` has.

    Args:
        counters: address of int64 (threads * SLOTS,), zero before the first call: of each thread how often it came
            here, and how many sleep until it comes.
    """
    if threads > 1:
        own = counters + thread * SLOTS * 8
        turn = load_in_order(own) + 1
        announce(own, turn)
        for other in range(threads):
            wait_until(counters + other * SLOTS * 8, turn, FOR_EVER)
