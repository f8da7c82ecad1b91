"""Atomics, barriers and sleeping for the CPU engine's threads inside compiled code."""

import ctypes
import platform
import sys

import numpy as np
from llvmlite import ir

from numbarnn.compile import native, types
from numbarnn.compile.plain import plain
from numbarnn.compile.translate import intrinsic

_I64 = ir.IntType(64)
WORDS_APART = 8  # int64 words from a thread's counters to the next: one cache line, against false sharing
# Some 15 microseconds. Under contention longer spins keep the other thread from running: calls of (100, 1, 256)
# took 14 times as long with 160, and on idle processors 1.4 times as long with 5.
POLLS_BEFORE_SLEEP = 50_000
_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}  # number of Linux' futex system call, by machine
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # on memory that no other process shares
#: Whether threads can sleep until a number in memory changes; where not, they yield between polls.
SLEEPS = sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in _FUTEX_CALLS


@intrinsic
def load_in_order(typingctx, address):
    """Load the int64 at an address; the storing thread's earlier writes are then visible.
    All threads see all of these loads, stores and additions in one order."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.intp), codegen


@intrinsic
def store_in_order(typingctx, address, value):
    """Store an int64 at an address; this thread's earlier writes become visible with it."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.store_atomic(args[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


@intrinsic
def add_in_order(typingctx, address, value):
    """Atomically add `value` to the int64 at `address`, sequentially consistent."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _I64.as_pointer())
        builder.atomic_rmw("add", pointer, args[1], "seq_cst")
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), codegen


# ------------------------------------------------------------------------------------------ the operating system
def _register(name, function):
    """Make a function of the operating system callable from compiled code, including cached code."""
    native.offer_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return name


if SLEEPS:
    _system_call = types.ExternalFunction(
        _register("numbarnn_system_call", ctypes.CDLL(None).syscall), types.int64(*[types.int64] * 5)
    )
    _FUTEX = np.int64(_FUTEX_CALLS[platform.machine()])

    @plain
    def sleep_while(address, value):
        """Sleep until another thread calls `wake`, unless the int64 at an address differs from `value` already.
        May also return without a reason. Linux compares the lower 32 bits, which come first in memory."""
        _system_call(_FUTEX, address, np.int64(_FUTEX_WAIT), value & 0xFFFFFFFF, np.int64(0))

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
    def sleep_while(address, value):
        """Let another thread run."""
        _yield()

    @plain
    def wake(address):
        """Do nothing: no thread sleeps."""


@plain
def wait_until(place, turn):
    """Wait until the int64 at an address is at least `turn`; the next int64 counts the sleepers.
    Polls first, as the value often comes soon. Then sleeps, as under contention the other thread may need this CPU.
    Yielding instead would give away whole time slices. A thread registers as a sleeper before its last look, and a
    writer looks for sleepers after writing (`announce`): one of the two sees the other."""
    polls = 0
    while load_in_order(place) < turn:
        polls += 1
        if polls > POLLS_BEFORE_SLEEP:
            add_in_order(place + 8, 1)
            seen = load_in_order(place)
            if seen < turn:
                sleep_while(place, seen)
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
        counters: address of int64 (threads * WORDS_APART,), zero before the first call. For each thread they hold its
            number of arrivals and of threads that sleep until it arrives.
    """
    if threads > 1:
        counter = counters + thread * WORDS_APART * 8
        turn = load_in_order(counter) + 1
        announce(counter, turn)
        for other in range(threads):
            wait_until(counters + other * WORDS_APART * 8, turn)
