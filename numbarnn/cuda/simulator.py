"""Kernels without a GPU: the whole grid on NumPy arrays, under NUMBA_ENABLE_CUDASIM=1.

Numba's own simulator runs one block after another, an OS thread for each CUDA thread: kernels whose blocks wait for
each other hang in it. Here all threads of all blocks take turns (`interleaving`), so that such kernels run, races
show, and a wait that never ends is reported. What Numba's simulator has of device functions (`cuda.popc`, atomics, ...)
is used; all that reaches into it is in this module. Of shuffles and barriers there is what our kernels use.

    with simulator.schedule(seed=3):
        Kernel(wavefront_kernel).bind(LaunchConfig(4, 32, cooperative=True), x, flags)(100)

Who is next is random, by a seed: that of `schedule`, else of the environment's NUMBARNN_SIM_SEED, else 0. The same seed
and the same launches are the same order, and errors name the seed.

Turns change at barriers, exchanges between lanes, atomics and `pause()`, nowhere else, so:
- a loop that polls memory must call `pause()` (cuda.nanosleep does), else it never ends;
- between these points a thread's loads and stores are one step, seen by all at once and in program order: missing
  fences, and races within such a step, do not show;
- an atomic that changes nothing counts as a poll: many of them and nothing else are taken for a livelock.
Shared and local memory starts as NaN (all bits set), as what nobody wrote has no value.
"""

import os
import sys
import threading
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from random import Random

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel as numba_launcher
from numba.cuda.simulator import kernelapi

from numbarnn.cuda import watching
from numbarnn.cuda.compiler import simulated
from numbarnn.cuda.interleaving import OF_BLOCK, OF_WARP, WARP_SIZE, Interleaving

PATIENCE = 200  # turns of each thread; with n threads a random order forgets one so long once in e^200 runs

IN_TURN = "in turn"  # instead of a seed: all threads in turn, block by block
SEED_VARIABLE, DEFAULT_SEED = "NUMBARNN_SIM_SEED", 0

_THREAD_NAMES = ("threadIdx", "blockIdx", "laneid")
_ALL_LANES = 0xFFFFFFFF
_lock = threading.RLock()  # the names in numba.cuda are for one launch at a time
_order = None  # the _Order of the launches; None: that of the default seed, made at the first launch
_running = None  # the _Launch under way


class _Order:
    """The order in which threads take turns, in launch after launch: one stream of random numbers for all of them.

    Attributes:
        seed: what it began with, or IN_TURN.
        random: a Random; None: in turn.
        patience: see `schedule`.
        launches: how many there were.
    """

    def __init__(self, seed=None, patience=PATIENCE):
        self.seed = default_seed() if seed is None else seed
        self.random = None if self.seed == IN_TURN else Random(self.seed)
        self.patience, self.launches = patience, 0

    def __str__(self):
        who = "threads in turn" if self.random is None else f"threads in the random order of seed {self.seed!r}"
        return f"{who}, launch {self.launches} of these"


def default_seed():
    """NUMBARNN_SIM_SEED, as an int if it is one, or IN_TURN; where that is not set 0."""
    text = os.environ.get(SEED_VARIABLE) or str(DEFAULT_SEED)
    return int(text) if text.removeprefix("-").isdecimal() else text


@contextmanager
def schedule(seed=None, patience=PATIENCE):
    """Choose the order in which threads take turns, for the launches inside.

    Args:
        seed: of a random order (an int or text); IN_TURN: all threads in turn; None: `default_seed`, as outside.
        patience: turns of each thread in which no memory changes before a livelock is reported. More than a kernel's
            own bound on its waits, if that is to be seen at work.
    """
    global _order
    before = _order
    _order = _Order(seed, patience)
    try:
        yield
    finally:
        _order = before


def launch(function, config, arguments):
    """Run a kernel on NumPy arrays.

    Args:
        function: the kernel's Python function; names of `numba.cuda` in it and in what it calls mean the simulator.
        config: the `launch.LaunchConfig`.
        arguments: NumPy arrays, used in place; NumPy scalars; tuples of these; NamedTuples of these and None.

    Raises:
        RuntimeError: a thread raised (the message names it), or waits for ever; says by which seed threads took turns.
    """
    global _order, _running
    if not simulated():
        raise RuntimeError("kernels are simulated only with NUMBA_ENABLE_CUDASIM=1 set before Python starts")
    with _lock:
        if _running is not None:
            raise RuntimeError("a kernel in the simulator cannot launch another")
        _order = _order or _Order()
        _order.launches += 1
        dims = {"gridDim": kernelapi.Dim3(*config.grid), "blockDim": kernelapi.Dim3(*config.block)}
        with _names_in_numba_cuda({**_NAMES, **dims}) as namespace:
            try:
                _running = _Launch(function, config, arguments, namespace, _order)
                watching.watcher.launched(_running, function, arguments)
                try:
                    _running.run()
                finally:
                    watching.watcher.ended(_running)
            finally:
                _running = None


class _Launch(Interleaving):
    """A launch under way: arguments as of `launch`."""

    def __init__(self, function, config, arguments, namespace, order):
        self.arguments, self.shared_bytes = arguments, config.shared_bytes
        sizes = config.grid, config.block
        super().__init__(function, arguments, sizes, namespace, order.random, order.patience, str(order))

    def names_of(self, thread):
        block, index = kernelapi.Dim3(*thread.block.index), kernelapi.Dim3(*thread.index)
        return dict(zip(_THREAD_NAMES, (index, block, thread.lane), strict=True))

    def memory(self):
        def contents(argument):
            if isinstance(argument, tuple):
                return tuple(map(contents, argument))
            return None if argument is None else argument.tobytes()

        shared = tuple(array.tobytes() for block in self.blocks for array in block.shared.values())
        return hash((contents(self.arguments), shared))


@contextmanager
def _names_in_numba_cuda(names):
    """Give the module numba.cuda, which has no device names in the simulator, these; yields its namespace.

    Numba instead replaces `cuda` in a kernel's globals, and in a device function's at every call: other functions
    would not see it, and with threads interleaved inside such calls, some versions restore it too early. The module
    itself as "kernel context" makes that replacement do nothing.
    """
    namespace = vars(cuda)
    before = {name: namespace[name] for name in (*names, *_THREAD_NAMES) if name in namespace}
    namespace.update(names)
    try:
        with numba_launcher._push_kernel_context(cuda):
            yield namespace
    finally:
        for name in (*names, *_THREAD_NAMES):
            namespace.pop(name, None)
        namespace.update(before)


# ---- switch points -------------------------------------------------------------------------------------------------
def pause(nanoseconds=0):
    """Let other threads run: for loops that poll, and after a store that others poll for. Nothing outside a kernel."""
    if _running is not None:
        _running.pause()


def exchange(mask, value):
    """What every lane brings, when the lanes of a warp meet: for instructions that a whole warp executes together.

    Args:
        mask: bit mask of the lanes that take part; lanes that have ended are not waited for.
        value: this lane's; not to be changed afterwards.

    Returns:
        {lane: value}.
    """
    return _running.meet(OF_WARP, int(mask) & _ALL_LANES, value).values


def collective(mask, value, function):
    """This lane's part of what a warp computes together; `function` is called once, with {lane: value}.

    Args:
        mask, value: as for `exchange`.
        function: of that dict, returns something to be indexed with a lane's number.
    """
    meeting = _running.meet(OF_WARP, int(mask) & _ALL_LANES, value)
    if meeting.result is None:
        meeting.result = function(meeting.values)
    return meeting.result[_running.current.lane]


def syncthreads():
    """Wait for all threads of the block."""
    _running.meet(OF_BLOCK)


def syncwarp(mask=_ALL_LANES):
    """Wait for the lanes in the mask."""
    _running.meet(OF_WARP, int(mask) & _ALL_LANES)


def shfl_sync(mask, value, lane):
    """The value of that lane."""
    values, lane = exchange(mask, value), int(lane) % WARP_SIZE
    if lane not in values:
        raise RuntimeError(f"reads from lane {lane}, which has ended, is not in the mask or does not exist")
    return values[lane]


def shfl_xor_sync(mask, value, lane_mask):
    """The value of the lane whose number is this one's xor `lane_mask`."""
    return shfl_sync(mask, value, _running.current.lane ^ int(lane_mask))


def _atomic(operation):
    """Numba's atomic, after which others may run."""

    @wraps(operation)
    def atomic(*arguments):
        old = operation(*arguments)
        _running.pause()
        return old

    return atomic


class _Atomics:
    """cuda.atomic."""

    def __init__(self):
        atomics = kernelapi.FakeCUDAAtomic()
        for name in _public_names(atomics):
            setattr(self, name, _atomic(getattr(atomics, name)))


# ---- memory --------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _all_bits_set(shape, dtype):
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


@lru_cache(maxsize=256)
def _numpy_dtype(dtype):
    """np.dtype of a NumPy or Numba type."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype))


class _Local:
    """cuda.local: arrays with all bits set, NaN in every float format."""

    def array(self, shape, dtype, alignment=None):
        return _all_bits_set(shape, _numpy_dtype(dtype)).copy()


class _Shared:
    """cuda.shared: an array per block and place in the program; shape 0 is the dynamic shared memory."""

    def array(self, shape, dtype, alignment=None):
        shared, dtype = _running.current.block.shared, _numpy_dtype(dtype)
        if shape == 0:
            if None not in shared:
                shared[None] = _all_bits_set(_running.shared_bytes, np.dtype(np.uint8)).copy()
            return shared[None][: _running.shared_bytes // dtype.itemsize * dtype.itemsize].view(dtype)
        caller = sys._getframe(1)
        key = (id(caller.f_code), caller.f_lasti, shape, dtype)
        if key not in shared:
            shared[key] = _all_bits_set(shape, dtype).copy()
        return shared[key]


# ---- all names -----------------------------------------------------------------------------------------------------
def _public_names(thing):
    return [name for name in dir(type(thing)) if not name.startswith("_")]


def _all_names():
    """What kernels find in `cuda`, besides the names of the thread and of the launch: Numba's, and ours over them."""
    numbas = kernelapi.FakeCUDAModule((1, 1, 1), (1, 1, 1), 0)
    names = [name for name in _public_names(numbas) if name not in _THREAD_NAMES]
    ours = {function.__name__: function for function in (syncthreads, syncwarp, shfl_sync, shfl_xor_sync)}
    # These two read threadIdx and the like from their `self`, for which the module serves.
    indices = {name: partial(getattr(kernelapi.FakeCUDAModule, name), cuda) for name in ("grid", "gridsize")}
    ours |= {"atomic": _Atomics(), "local": _Local(), "shared": _Shared(), "warpsize": WARP_SIZE, "nanosleep": pause}
    return {name: getattr(numbas, name) for name in names if name not in ours} | ours | indices


_NAMES = _all_names()
