"""Define the interface of all engines: arrays, and one method for each kind of operation in a program."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from numbarnn.common.forks import freed_in_forks
from numbarnn.kernels.step.groups import BackwardBuffers, ForwardBuffers
from numbarnn.programs.backward import EVERY_ROW

BINDS = ("forward_steps", "backward_steps", "launch")  # operations that are bound to their arrays before they run
_lock = freed_in_forks(threading.RLock())  # of all engines' constants


class EngineJob(NamedTuple):
    """A piece of work for `Engine.run_jobs`.

    Attributes:
        lane: hashable; jobs with equal lanes run in the order of the list.
        needs: positions in the list of the jobs that must finish first.
        bind: function that prepares the job (compiles, packs arguments; allocates no arrays) and returns the function
            without arguments that runs it.
    """

    lane: Any
    needs: tuple[int, ...]
    bind: Callable[[], Callable[[], None]]


class Engine(ABC):
    """A device on which arrays live and kernels run.

    Attributes:
        name: "cpu", "cuda" or "sim".
        array_module: numpy or cupy.
        device: description of the device, for people.
        fuses_input: whether `forward_steps` also multiplies x by W, so that forward plans have no "input" tasks for W.
        has_halves: whether it has arrays of float16 and bfloat16.
        records_jobs: whether `run_jobs` records a call's jobs and replays them. Every plan then runs through it, even
            one that is not concurrent.
        prepares_calls: whether the functions of a program can run again on the same arrays with new contents, so that
            small calls are prepared once (`numbarnn.engines.runs.Prepared`).
        profile: the planners' description of the device, hashable; None if planners need none.
        identity: a GPU with its compute capability and driver, as text; None if persistent kernels need no test.
    """

    name: str
    array_module: Any
    device: str
    fuses_input = False
    has_halves = True
    records_jobs = False
    prepares_calls = False
    profile: Any = None
    identity: str | None = None

    def empty(self, shape, dtype):
        """Return an array with unspecified contents."""
        return self.array_module.empty(shape, dtype)

    def zeros(self, shape, dtype):
        """Return an array of zeros."""
        return self.array_module.zeros(shape, dtype)

    def allocate(self, weights, *kind):
        """Return a function (name, shape, dtype) that allocates a call's arrays, with unspecified contents.

        Args:
            weights, kind: the array of all weights, and a hashable key. In calls with equal keys, an array of a name
                always has the same shape and dtype. An engine that records jobs then reuses the memory of an earlier
                call, so that recordings can be replayed.
        """
        empty = self.empty
        return lambda name, shape, dtype: empty(shape, dtype)

    @abstractmethod
    def array_at(self, view, array):
        """Return the part of an array that a `numbarnn.programs.views.View` describes."""

    def compile(self, operations):
        """Return functions without arguments that do the operations in order; one function may do several.

        Args:
            operations: `numbarnn.programs.program.Operation`s with arrays in place of views. "call" is a function and
                its arguments.
        """
        return [self.function_of(*operation) for operation in operations]

    def function_of(self, kind, operands, options):
        """Return the function that does one operation."""
        if kind == "call":
            return partial(*operands)
        return partial(getattr(self, kind), *operands, **options)

    def constant(self, array):
        """Copy a NumPy array to this engine, once for all equal arrays; it is kept forever and must not change."""
        key = (array.shape, array.dtype, array.tobytes())
        with _lock:  # recorded graphs may hold the address of an array: a second one must not replace it
            if key not in self._constants:
                self._constants[key] = self.from_host(array)
                self._arrived()
            return self._constants[key]

    @cached_property
    def _constants(self):
        return {}

    def _arrived(self):  # noqa: B027 - most engines copy at once
        """Wait until copies from the host are visible to every stream."""

    def from_host_into(self, allocate, name, array):
        """Copy a NumPy array to this engine, into memory of that name; `allocate` as returned by the method of that
        name."""
        return self.from_host(array)

    def follow(self):  # noqa: B027 - most engines do one thing after another
        """Order this thread's writes of derived weights after earlier reads by other threads or streams."""

    def settled(self, allocate, name, array, own=False):
        """Return a caller's array in the form that recorded jobs need: contiguous, at an address that later calls
        share.

        An engine that records jobs copies it to memory of that name, because recordings must not hold callers'
        addresses. Other engines return the array itself. own: copy it even if it is in that memory already, because it
        is read after the caller may write to it.
        """
        return array

    def handed_over(self, allocate, name, array):
        """Return a result for the caller. It is a copy if callers keep so many results that the memory of that name
        would rarely be free, and recordings could not be replayed."""
        return array

    @abstractmethod
    def asarray(self, value, name):
        """Return `value` as this engine's array, not copied; TypeError naming `name` if it is on another device."""

    @abstractmethod
    def from_host(self, array):
        """Copy a NumPy array to this engine."""

    @abstractmethod
    def to_host(self, array):
        """Copy this engine's array to a NumPy array."""

    @abstractmethod
    def address(self, array):
        """Return the memory address of the array's first element."""

    def activate(self):
        """Return a context in which this engine's device is the current one."""
        return nullcontext()

    def require_no_capture(self):  # noqa: B027 - most engines have nothing like it
        """Raise RuntimeError if the caller is capturing a CUDA graph, which would include this call."""

    def synchronize(self):  # noqa: B027 - most engines have nothing to wait for
        """Wait until all work on this stream is done, then `raise_if_failed`."""

    def give_back_memory(self):  # noqa: B027 - most engines keep nothing
        """Free the memory that is kept for later calls and that no array uses."""

    def check(self):
        """Wait until all work on the device is done, from any thread, then `raise_if_failed`."""
        self.raise_if_failed()

    def raise_if_failed(self):  # noqa: B027 - on the CPU calls fail where they are made
        """Raise RuntimeError, without waiting, if a finished call failed on the device; each failure raises once. The
        message names the layer and the cure. If several calls failed since the last check, it names the first."""

    @abstractmethod
    def copy(self, out, x):
        """Compute out = x for arrays of one shape with up to 3 axes and any strides."""

    def zero(self, out):
        """Compute out = 0 for a contiguous array."""
        out[...] = 0

    @abstractmethod
    def dropout(self, out, x, mask, scale, position=0):
        """Compute out = dropout of x, contiguous arrays of any shape.

        Args:
            mask: one row of the words of `numbarnn.common.philox.dropout_masks`, as this engine's array. scale: its
                scale.
            position: index of the first element in the whole array, if x is a part of it.
        """

    @abstractmethod
    def fill_step_mask(self, step_mask, lengths, resets):
        """Set step_mask (D, T + 2, B) to the kind of each step, see `numbarnn.common.order.mask_of_step`.

        Args:
            lengths: (B,) int32. resets: (T, B) uint8, any strides, or (0, B).
        """

    @abstractmethod
    def select(self, out, x, step_mask, dropped, fill):
        """Compute out = x (X, Y, Z), any strides, with `fill` where step_mask (X, Y) has a bit of `dropped`."""

    @abstractmethod
    def gather(self, out, x, index, fill):
        """Copy rows of x (M, Z) to out (N, Z): row n is row index[n] of x, or `fill` if index[n] is negative. index:
        (N,) int64."""

    @abstractmethod
    def spread(self, out, x, gates):
        """Fill out (M, G*H) with G copies of x (M, H) side by side; rows at any stride."""

    @abstractmethod
    def sum_gates(self, out, x, gates, accumulate):
        """Write the sum over G gates of x (M, G*H) to out (M, H), or add it with `accumulate`; rows at any stride."""

    @abstractmethod
    def spread_blocks(self, out, x, gates):
        """Write the dense form of x (G*H, P/n) to out (G*H, P), contiguous arrays, for n heads. Row g H + j of x
        belongs to head k = j div (H/n): it goes to columns k P/n to (k + 1) P/n - 1. All other columns are zero."""

    @abstractmethod
    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        """Compute out = op(a) op(b), or +=, for matrices as in `numbarnn.cuda.gemm.matmul`."""

    def each(self, kind, count, operands, options):
        """Do an operation `count` times, on each entry along its operands' first axes."""
        for number in range(count):
            getattr(self, kind)(*entry_of(operands, number), **options)

    @abstractmethod
    def add_column_sums(self, out, x):
        """Add the column sums of x (M, N), rows at any stride, to out (N,), in a fixed order of summation."""

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False, rows_of_h=EVERY_ROW):
        """Compute dW (+)= daxᵀ x, dR (+)= dahᵀ h_before, db_w (+)= Σ dax and db_r (+)= Σ dah for the entries of dw.

        Args:
            dw: some of {"W": (G*H, I), "R": (A*H, H), "b_w": (G*H,), "b_r": (A*H,)}. W and R may have fewer rows n;
                they then use only the first n columns of dax and dah.
            dax, dah: gradients of the gates' inputs, (T*B, G*H) and (T*B, A*H).
            x: (T*B, I). h_before: (T*B, H). Rows at any stride.
            accumulate: add to dw instead of overwriting it.
            rows_of_h: slice of the rows of h_before that can be nonzero.
        """
        options = {"transpose_a": True, "accumulate": accumulate, "allow_tf32": allow_tf32}
        if "W" in dw:
            self.multiply(dw["W"], dax[:, : len(dw["W"])], x, **options)
        if "R" in dw and len(h_before[rows_of_h]):
            self.multiply(dw["R"], dah[rows_of_h, : len(dw["R"])], h_before[rows_of_h], **options)
        elif "R" in dw and not accumulate:
            self.zero(dw["R"])
        biases = [(dw[bias], gradient) for bias, gradient in (("b_w", dax), ("b_r", dah)) if bias in dw]
        once = len(biases) == 2 and not accumulate and self._are_one(dax, dah)
        for bias, gradient in biases[:1] if once else biases:
            if not accumulate:
                self.zero(bias)
            self.add_column_sums(bias, gradient)
        if once:
            self.copy(dw["b_r"], dw["b_w"])

    def _are_one(self, a, b):
        """Return whether two views cover the same elements."""
        return self.address(a) == self.address(b) and (a.shape, a.strides) == (b.shape, b.strides)

    @abstractmethod
    def forward_steps(self, buffers: ForwardBuffers):
        """Return a function f(first, last) that runs steps [first, last) of a direction, in the direction's order."""

    @abstractmethod
    def backward_steps(self, buffers: BackwardBuffers):
        """Return a function f(first, last) that runs steps [first, last) of the backward pass; its step 0 is forward's
        last."""

    def launch(self, launch_arrays):
        """Return a function without arguments that launches a persistent kernel, for a `LaunchArrays`."""
        raise NotImplementedError(f"{self.name} has no persistent kernels")

    def run_jobs(self, make_jobs, key, arrays):
        """Run jobs, concurrently where their needs allow. Only engines that record jobs have it.

        Args:
            make_jobs: function without arguments that lists the `EngineJob`s, in an order in which they may run.
            key: hashable. Two calls with equal keys and equal addresses of arrays do the same work, so that the engine
                may replay a recording.
            arrays: all arrays that the jobs use, made for the caller's stream; kept until the work is done.
        """
        raise NotImplementedError(f"{self.name} records no jobs")


def entry_of(operands, number):
    """Return the operands of one entry in `Engine.each`: arrays without their first axis."""
    if isinstance(operands, dict):
        return {name: entry_of(one, number) for name, one in operands.items()}
    if isinstance(operands, tuple):
        return tuple(entry_of(one, number) for one in operands)
    return operands[number] if hasattr(operands, "strides") else operands


def as_code(name):
    """Return the part of an argument's name that is code: state[0] of "state[0] (h)"."""
    return name.split(" (")[0]


class HostEngine(Engine):
    """An engine whose arrays are NumPy arrays."""

    array_module = np

    def asarray(self, value, name):
        if isinstance(value, np.ndarray):
            return value
        if hasattr(value, "__cuda_array_interface__"):
            raise TypeError(
                f"{name} is on a GPU, this layer is not (device={self.name!r}): copy it with "
                f"cupy.asnumpy({as_code(name)}), or make the layer with device='cuda'"
            )
        if hasattr(value, "__array__"):
            try:
                return np.asarray(value)
            except (TypeError, ValueError, RuntimeError) as error:  # such as PyTorch's bfloat16
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise TypeError(f"{name} must be a NumPy array, and NumPy cannot take this {kind}: {error}") from error
        raise TypeError(f"{name} must be a NumPy array, not {type(value).__module__}.{type(value).__qualname__}")

    def array_at(self, view, array):
        if 0 in view.shape:
            return np.empty(view.shape, view.dtype)
        memory = array if array.dtype.isbuiltin == 1 else array.view(np.uint8)  # bfloat16 has no buffer of Python's
        return np.ndarray(view.shape, view.dtype, memory, view.offset, view.strides)

    def address(self, array):
        return array.ctypes.data

    def from_host(self, array):
        return np.array(array)

    def to_host(self, array):
        return np.array(array)
