"""The CPU engine: the cells compiled by Numba around OpenBLAS products, on all cores."""

import platform

import numpy as np

from numbarnn.common import notice
from numbarnn.engines.base import HostEngine
from numbarnn.engines.cpu import atomics, backward, cell_units, fingerprints, forward, openblas, products, rows, stages
from numbarnn.engines.cpu.backward import backward_steps
from numbarnn.engines.cpu.cell_tag import WRITTEN, CellTag, what_is_compiled
from numbarnn.engines.cpu.disk_cache import go_by_code
from numbarnn.engines.cpu.forward import forward_steps
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.kernels.step.groups import Saved

for module in (atomics, backward, cell_units, fingerprints, forward, products, rows, stages):
    go_by_code(module, *WRITTEN)

# Multiply-adds below which a call stays on the calling thread: waking the others takes tens of microseconds.
SERIAL_WORK = 3_000_000
# Multiply-adds per step below which steps stay on one thread: at each step the threads wait for each other.
SERIAL_STEP = 800_000


class CpuEngine(HostEngine):
    """The cells compiled for this CPU. One pool of threads runs products and cells alike."""

    name = "cpu"
    fuses_input = True

    def __init__(self):
        notice.listen_to_numba(what_is_compiled)
        openblas.openblas()
        for dtype in ("float32", "float64"):
            for name in ("gemm", "gemv"):
                openblas.blas_function(dtype, name)  # registers the symbol that cached code calls
        self.device = platform.processor() or platform.machine()
        self.thread_pool = ThreadPool()
        self._tags = {}

    @property
    def num_threads(self):
        """Threads a call may use."""
        return self.thread_pool.threads

    def set_num_threads(self, threads):
        """Let calls use this many threads (default: all CPUs this process may run on).

        Raises:
            ValueError: threads is not a positive int.
        """
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a positive int, not {threads!r}")
        self.thread_pool.resize(threads)

    def _tag(self, cell, dtype):
        tag = self._tags.get((cell, dtype))
        if tag is None:
            tag = self._tags[cell, dtype] = CellTag(cell, str(dtype))
        return tag

    def _threads(self, work, parts):
        """Threads for `work` multiply-adds that can be cut into `parts`."""
        if work < SERIAL_WORK:
            return 1
        return max(1, min(self.thread_pool.threads, parts // products.UNITS))

    def _step_threads(self, steps, batch, parameters, x=None):
        """Threads for steps that multiply a batch with R and W_hr, and before, where they have x, with W.

        Like all numbers of threads it depends on sizes alone, so that results do too.
        """
        R, W_hr = parameters.R, parameters.W_hr
        recurrent = R.size if W_hr is None else R.size + W_hr.size
        inputs = 0 if x is None else parameters.W.size
        if batch * max(recurrent, (recurrent + inputs) // 2) < SERIAL_STEP:
            return 1
        return self._threads(steps * batch * (recurrent + inputs), R.shape[1])

    def _parts(self, threads, sums):
        """Scratch (threads, B, Q) for each thread's part of a step's sums (T, B, Q)."""
        return np.empty((threads, *sums.shape[1:]), sums.dtype)

    def copy(self, out, x):
        out[...] = x

    def dropout(self, out, x, mask, scale, position=0):
        out_flat, x_flat = out.reshape(-1), x.reshape(-1)
        threads = self._threads(20 * x.size, x.size)
        self.thread_pool.run(products.dropout, threads, out_flat, x_flat, mask, x.dtype.type(scale), position)

    def fill_step_mask(self, step_mask, lengths, resets):
        self.thread_pool.run(products.fill_step_mask, 1, step_mask, lengths, resets)

    def select(self, out, x, step_mask, dropped, fill):
        np.copyto(out, x)
        out[(step_mask & dropped) != 0] = fill

    def gather(self, out, x, index, fill):
        np.take(x, np.maximum(index, 0), axis=0, out=out)
        out[index < 0] = fill

    def spread(self, out, x, gates):
        for part in np.split(out, gates, axis=1):
            part[...] = x

    def sum_gates(self, out, x, gates, accumulate):
        first, *others = np.split(x, gates, axis=1)
        if accumulate:
            out += first
        else:
            out[...] = first
        for part in others:
            out += part

    def spread_blocks(self, out, x, gates):
        (rows, columns), width = out.shape, x.shape[1]
        heads = columns // width
        blocks, given = (array.reshape(gates, heads, rows // gates // heads, -1) for array in (out, x))
        out[...] = 0
        for head in range(heads):
            blocks[:, head, :, head * width : (head + 1) * width] = given[:, head]

    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        m, n = out.shape
        threads = self._threads(out.size * (a.shape[0] if transpose_a else a.shape[1]), max(m, n))
        self.thread_pool.run(products.multiply, threads, out, a, b, transpose_a, transpose_b, accumulate)

    def add_column_sums(self, out, x):
        threads = self._threads(x.size, x.shape[1])
        self.thread_pool.run(products.add_column_sums, threads, out, x)

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False):
        weights = sum(dw[name].size for name in ("W", "R") if name in dw)
        threads = self._threads(len(x) * weights, dax.shape[1])
        wanted = tuple(map(dw.get, ("W", "R", "b_w", "b_r")))
        self.thread_pool.run(products.weight_gradients, threads, wanted, dax, dah, x, h_before, accumulate)

    def forward_steps(self, buffers):
        b = buffers
        # Without gates, which the loop finds in ax: so training and inference are of one Numba type.
        saved = Saved(v=b.saved.v, sums=b.saved.sums)
        threads = self._step_threads(*b.scratch.ax.shape[:2], b.parameters, b.x)
        groups = tuple(b.parameters), tuple(b.states), tuple(saved), tuple(b.scratch), tuple(b.options), b.x
        return self._steps(forward_steps, b, threads, groups, (b.save,))

    def backward_steps(self, buffers):
        b = buffers
        threads = self._step_threads(*b.gradients.dy.shape[:2], b.parameters)
        groups = b.parameters, b.states, b.saved, b.gradients, b.scratch, b.options
        return self._steps(backward_steps, b, threads, [*map(tuple, groups)], ())

    def _steps(self, compiled, buffers, threads, groups, flags):
        """The function f(first, last) that calls a compiled loop."""
        tag, sums, direction = self._tag(buffers.cell, buffers.states.h.dtype), buffers.saved.sums, buffers.direction

        def run(first, last):
            parts = None if sums is None else self._parts(threads, sums)
            self.thread_pool.run(compiled, threads, tag, *groups, parts, (direction, first, last, *flags))

        return run

    def run_jobs(self, make_jobs, key, arrays):
        self.thread_pool.run_jobs(make_jobs())
