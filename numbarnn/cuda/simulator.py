"""Kernels without a GPU and without a compiler: the whole grid on NumPy arrays.

All threads of all blocks take turns (`interleaving`), so that kernels run whose blocks wait for each other, races show,
and a wait that never ends is reported. (Numba's own simulator runs one block after another.) Kernels find CUDA's names
in `language.cuda`: those that our kernels, the course's and its students use.

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
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from numbarnn.cuda import watching
from numbarnn.cuda.interleaving import OF_BLOCK, OF_WARP, WARP_SIZE, Interleaving
from numbarnn.cuda.language import cuda

PATIENCE = 200  # turns of each thread; with n threads a random order forgets one so long once in e^200 runs

IN_TURN = "in turn"  # instead of a seed: all threads in turn, block by block
SEED_VARIABLE, DEFAULT_SEED = "NUMBARNN_SIM_SEED", 0

_THREAD_NAMES = ("threadIdx", "blockIdx", "laneid")
_LAUNCH_NAMES = ("gridDim", "blockDim", *_THREAD_NAMES)
_ALL_LANES = 0xFFFFFFFF
_lock = threading.RLock()  # the names of threads and blocks are for one launch at a time
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
        function: the kernel's Python function, see `language.as_python`.
        config: the `launch.LaunchConfig`.
        arguments: NumPy arrays, used in place; NumPy scalars; tuples of these; NamedTuples of these and None.

    Raises:
        RuntimeError: a thread raised (the message names it), or waits for ever; says by which seed threads took turns.
    """
    global _order, _running
    with _lock:
        if _running is not None:
            raise RuntimeError("a kernel in the simulator cannot launch another")
        _order = _order or _Order()
        _order.launches += 1
        namespace = vars(cuda)
        namespace.update(gridDim=Dim3(*config.grid), blockDim=Dim3(*config.block))
        try:
            _running = _Launch(function, config, arguments, namespace, _order)
            watching.watcher.launched(_running, function, arguments)
            try:
                _running.run()
            finally:
                watching.watcher.ended(_running)
        finally:
            _running = None
            for name in _LAUNCH_NAMES:
                namespace.pop(name, None)


class Dim3(NamedTuple):
    """A place or a size in three dimensions."""

    x: int
    y: int
    z: int


class _Launch(Interleaving):
    """A launch under way: arguments as of `launch`."""

    def __init__(self, function, config, arguments, namespace, order):
        self.arguments, self.shared_bytes = arguments, config.shared_bytes
        sizes = config.grid, config.block
        super().__init__(function, arguments, sizes, namespace, order.random, order.patience, str(order))

    def names_of(self, thread):
        block, index = Dim3(*thread.block.index), Dim3(*thread.index)
        return dict(zip(_THREAD_NAMES, (index, block, thread.lane), strict=True))

    def memory(self):
        def contents(argument):
            if isinstance(argument, tuple):
                return tuple(map(contents, argument))
            return None if argument is None else argument.tobytes()

        shared = tuple(array.tobytes() for block in self.blocks for array in block.shared.values())
        return hash((contents(self.arguments), shared))


# ---- switch points -------------------------------------------------------------------------------------------------
def pause(nanoseconds=0):
    """Let other threads run: for loops that poll, and after a store that others poll for. Nothing outside a kernel."""
    if _running is not None:
        _running.pause()


def exchange(mask, value):
    """Return the values of all lanes of a warp when they meet: for instructions of a whole warp.

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


def grid(ndim):
    """The place of this thread in the whole grid: a number, or with 2 or 3 dimensions a tuple."""
    place = tuple(
        block * size + thread for block, size, thread in zip(cuda.blockIdx, cuda.blockDim, cuda.threadIdx, strict=True)
    )
    return place[0] if ndim == 1 else place[:ndim]


def gridsize(ndim):
    """How many threads the grid has along each dimension, as of `grid`."""
    sizes = tuple(blocks * size for blocks, size in zip(cuda.gridDim, cuda.blockDim, strict=True))
    return sizes[0] if ndim == 1 else sizes[:ndim]


class _Atomics:
    """cuda.atomic: each returns what was there before, and others may run after it."""


def _atomic(name, of):
    """Give `_Atomics` a method of that name; of(old, *values): what comes to stand there."""

    def atomic(self, array, index, *values):
        old = array[index]
        array[index] = of(old, *values)
        _running.pause()
        return old

    setattr(_Atomics, name, atomic)


for _name, _of in {
    "add": lambda old, value: old + value, "sub": lambda old, value: old - value,
    "and_": lambda old, value: old & value, "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, most: 0 if old >= most else old + 1, "exch": lambda old, value: value,
    "dec": lambda old, most: most if old == 0 or old > most else old - 1,
    "max": lambda old, value: max(old, value), "min": lambda old, value: min(old, value),
    "cas": lambda old, expected, value: value if old == expected else old,
}.items():  # fmt: skip
    _atomic(_name, _of)


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
def _fence():
    """Nothing: threads see each other's stores at once."""


NAMES = {function.__name__: function for function in (grid, gridsize, syncthreads, syncwarp, shfl_sync, shfl_xor_sync)}
NAMES |= {"atomic": _Atomics(), "local": _Local(), "shared": _Shared(), "warpsize": WARP_SIZE, "nanosleep": pause}
NAMES |= dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), _fence)
vars(cuda).update(NAMES)
