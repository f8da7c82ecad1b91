"""The interface of all engines: arrays, and a method for each kind of a program's operations."""

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


class Job(NamedTuple):
    """A piece of work for `Engine.run_jobs`.

    Attributes:
        lane: hashable; jobs of one lane run in the order of the list.
        needs: positions in the list of the jobs that must be done before.
        bind: gets everything ready (compiles, packs arguments; makes no arrays) and returns the function, without
            arguments, that does the job.
    """

    lane: Any
    needs: tuple[int, ...]
    bind: Callable[[], Callable[[], None]]


class Engine(ABC):
    """Where arrays live and kernels run.

    Attributes:
        name: "cpu", "cuda" or "sim".
        array_module: numpy or cupy.
        device: what the engine runs on, for people.
        fuses_input: `forward_steps` multiplies x by W too, so that plans have no "input" tasks.
        has_halves: it takes float16 and bfloat16.
        records_jobs: `run_jobs` records the jobs of a call and replays them when it comes again, so every plan runs by
            it, also one that is not concurrent.
        prepares_calls: the functions that a program became may be called again, on the same arrays with other contents:
            so small calls are prepared once (`numbarnn.engines.runs.Prepared`).
        profile: what planners know of the device, hashable; None if there is nothing to know.
        identity: a GPU, its compute capability and driver, as text; None where persistent kernels need no proof.
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
        """An array with unspecified contents."""
        return self.array_module.empty(shape, dtype)

    def zeros(self, shape, dtype):
        """An array of zeros."""
        return self.array_module.zeros(shape, dtype)

    def allocate(self, weights, *kind):
        """A function (name, shape, dtype) that allocates the arrays of a call, with unspecified contents.

        Args:
            weights, kind: the array of all weights, and something hashable. In calls with the same two, an array of a
                name has the same shape and dtype; an engine that records jobs gives it the memory that it had in an
                earlier call, so that recordings can be replayed.
        """
        empty = self.empty
        return lambda name, shape, dtype: empty(shape, dtype)

    @abstractmethod
    def array_at(self, view, array):
        """Return the part of an array that a `numbarnn.programs.views.View` of its buffer is."""

    def compile(self, operations):
        """Functions without arguments that do operations one after another, perhaps fewer than these.

        Args:
            operations: `numbarnn.programs.program.Operation`s with arrays in place of views; "call" is a function and
                its arguments.
        """
        return [self.function_of(*operation) for operation in operations]

    def function_of(self, kind, operands, options):
        """The function that does an operation."""
        if kind == "call":
            return partial(*operands)
        return partial(getattr(self, kind), *operands, **options)

    def constant(self, array):
        """A copy of a NumPy array on this engine that nobody may change; one for all equal arrays, kept for good."""
        key = (array.shape, array.dtype, array.tobytes())
        with _lock:  # a second one would be forgotten, but recorded graphs know it
            if key not in self._constants:
                self._constants[key] = self.from_host(array)
                self._arrived()
            return self._constants[key]

    @cached_property
    def _constants(self):
        return {}

    def _arrived(self):  # noqa: B027 - most engines copy at once
        """Wait until copies from the host are there for every stream."""

    def from_host_into(self, allocate, name, array):
        """A copy of a NumPy array on this engine, in memory of that name; `allocate` as the method returns it."""
        return self.from_host(array)

    def follow(self):  # noqa: B027 - most engines do one thing after another
        """Let what this thread writes come after what an earlier call, of another thread or stream, still reads."""

    def settled(self, allocate, name, array, own=False):
        """A caller's array as a call's jobs work on it, asked for by engines that record jobs: a contiguous one.

        An engine that records jobs returns a copy in memory of that name, so that no recording holds an address of the
        caller's. Others return the array itself.

        Args:
            own: copy it even if it stands in that memory already, as it is read later than the caller may write to it.
        """
        return array

    def handed_over(self, allocate, name, array):
        """A result, in memory of that name, as its caller gets it. It is a copy where callers keep so many results that
        calls would hardly ever find memory of that name free, and so replay nothing."""
        return array

    @abstractmethod
    def asarray(self, value, name):
        """`value` as this engine's array, not copied; TypeError naming `name` if it lives elsewhere."""

    @abstractmethod
    def from_host(self, array):
        """A copy of a NumPy array on this engine."""

    @abstractmethod
    def to_host(self, array):
        """A NumPy copy of this engine's array."""

    @abstractmethod
    def address(self, array):
        """Where the array's first element stands in memory."""

    def activate(self):
        """A context in which this engine's device is the current one."""
        return nullcontext()

    def require_no_capture(self):  # noqa: B027 - most engines have nothing like it
        """Raise RuntimeError if what a call does would become part of a CUDA graph of the caller's."""

    def synchronize(self):  # noqa: B027 - most engines have nothing to wait for
        """Wait until all work that this stream was given is done; then as `raise_if_failed`."""

    def give_back_memory(self):  # noqa: B027 - most engines keep nothing
        """Give back the memory that is kept for later calls, and that no array uses now."""

    def check(self):
        """Wait until all work that the device was given is done, by any thread; then as `raise_if_failed`."""
        self.raise_if_failed()

    def raise_if_failed(self):  # noqa: B027 - on the CPU calls fail where they are made
        """Raise RuntimeError if a call that is over failed on the device, once for each; waits for none.

        It names the layer that made the call, and what to do. Of several such calls that nobody asked about in between
        the first is named.
        """

    @abstractmethod
    def copy(self, out, x):
        """out = x, arrays of one shape with up to 3 axes, any strides."""

    def zero(self, out):
        """out = 0, a contiguous array."""
        out[...] = 0

    @abstractmethod
    def dropout(self, out, x, mask, scale, position=0):
        """out = dropout of x, contiguous, any shape.

        Args:
            mask, scale: a row of what `numbarnn.common.philox.dropout_masks` returns, as this engine's array;
                its scale.
            position: number of the first element in the whole array, of which x may be a part.
        """

    @abstractmethod
    def fill_step_mask(self, step_mask, lengths, resets):
        """step_mask (D, T + 2, B) = what each step is, see `numbarnn.common.order.mask_of_step`.

        Args:
            lengths: (B,) int32. resets: (T, B) uint8, any strides, or (0, B).
        """

    @abstractmethod
    def select(self, out, x, step_mask, dropped, fill):
        """out = x (X, Y, Z), any strides, but `fill` where step_mask (X, Y) has a bit of `dropped`."""

    @abstractmethod
    def gather(self, out, x, index, fill):
        """out (N, Z) = the rows of x (M, Z) that index (N,) int64 names; `fill` where it is negative."""

    @abstractmethod
    def spread(self, out, x, gates):
        """out (M, G * H) = x (M, H) for each of G gates; rows at any stride."""

    @abstractmethod
    def sum_gates(self, out, x, gates, accumulate):
        """out (M, H) = the sum over G gates of x (M, G * H), rows at any stride, or += with `accumulate`."""

    @abstractmethod
    def spread_blocks(self, out, x, gates):
        """out (G * H, P) = the dense matrix of x (G * H, P/n), contiguous: row g H + j of x stands in the columns of
        head k = j div (H/n), which are k P/n to (k + 1) P/n - 1; the others are zero."""

    @abstractmethod
    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        """out = op(a) op(b), or +=: matrices as in `numbarnn.cuda.gemm.matmul`."""

    def each(self, kind, count, operands, options):
        """Do an operation `count` times: on every entry along the first axes of its operands."""
        for number in range(count):
            getattr(self, kind)(*entry_of(operands, number), **options)

    @abstractmethod
    def add_column_sums(self, out, x):
        """out (N,) += x.sum(axis=0), x (M, N) with rows at any stride; a fixed order of summation."""

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False, rows_of_h=EVERY_ROW):
        """dW (+)= daxᵀ x, dR (+)= dahᵀ h_before, db_w (+)= Σ dax, db_r (+)= Σ dah: those that dw has.

        Args:
            dw: {"W": (G * H, I), "R": (A * H, H), "b_w": (G * H,), "b_r": (A * H,)}, some may be missing.
            dax: (T * B, G * H). dah: (T * B, A * H), of which those that W and R have rows for are multiplied.
            x: (T * B, I). h_before: (T * B, H). Rows at any stride.
            accumulate: add to dw instead of writing over it.
            rows_of_h: a slice, of the rows of h_before that are not zero.
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
        """Whether two views are of the same elements."""
        return self.address(a) == self.address(b) and (a.shape, a.strides) == (b.shape, b.strides)

    @abstractmethod
    def forward_steps(self, buffers: ForwardBuffers):
        """A function f(first, last) that runs steps [first, last) of a direction, in the order of the direction."""

    @abstractmethod
    def backward_steps(self, buffers: BackwardBuffers):
        """A function f(first, last) that runs steps [first, last) of the backward pass: step 0 is forward's last."""

    def launch(self, about):
        """A function without arguments that runs a persistent kernel, `numbarnn.programs.launches.LaunchArrays`."""
        raise NotImplementedError(f"{self.name} has no persistent kernels")

    def run_jobs(self, make_jobs, key, arrays):
        """Do jobs, those that do not wait for each other at the same time where the engine can.

        Args:
            make_jobs: function without arguments that makes the list of `Job`s, in an order in which they may run.
            key: hashable; of two calls with equal keys whose arrays have the same addresses the second does the very
                same work, so that an engine may replay what it recorded.
            arrays: all that the jobs work on, made for the caller's stream; kept until their work is done.
        """
        for job in make_jobs():
            job.bind()()


def entry_of(operands, number):
    """Return the operands of one operation of `Engine.each`: arrays without their first axis."""
    if isinstance(operands, dict):
        return {name: entry_of(one, number) for name, one in operands.items()}
    if isinstance(operands, tuple):
        return tuple(entry_of(one, number) for one in operands)
    return operands[number] if hasattr(operands, "strides") else operands


def as_code(name):
    """Return an argument as one would write it in code: state[0] of "state[0] (h)"."""
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
