"""The CPU engine: the cells compiled by Numba around OpenBLAS products, on all cores."""

import platform
from functools import cache

import numpy as np

from numbarnn.common import notice
from numbarnn.engines.base import HostEngine
from numbarnn.engines.cpu import loops, openblas, products
from numbarnn.engines.cpu.cell_tag import CellTag, what_is_compiled
from numbarnn.engines.cpu.thread_pool import ThreadPool

# Multiply-adds below which a call stays on the calling thread: waking the others takes tens of microseconds.
SERIAL_WORK = 3_000_000
# Multiply-adds per step below which steps stay on one thread: at each step the threads wait for each other.
SERIAL_STEP = 800_000


@cache
def _nothing(dtype):
    """Arrays without elements, of two and of three axes, for arguments that a call does without."""
    return np.zeros((0, 0), dtype), np.zeros((0, 0, 0), dtype)


@cache
def _no_vector(dtype):
    """Likewise, of one axis."""
    return np.zeros(0, dtype)


_NO_CODES = np.zeros((0, 0), np.uint8)
_NO_WORDS = np.zeros(0, np.uint64)


def _optional(buffers):
    """step_mask, m, W_hr, per_unit, sums, noise of a pass' buffers, without elements where they are None; and matrices
    without any."""
    no_matrix, no_matrices = _nothing(buffers.states.h.dtype)
    step_mask = _NO_CODES if buffers.options.step_mask is None else buffers.options.step_mask
    m, W_hr = (no_matrices, no_matrix) if buffers.states.m is None else (buffers.states.m, buffers.parameters.W_hr)
    per_unit = (
        _no_vector(buffers.states.h.dtype) if buffers.parameters.per_unit is None else buffers.parameters.per_unit
    )
    sums = no_matrices if buffers.saved.sums is None else buffers.saved.sums
    noise = _NO_WORDS if buffers.options.noise is None else buffers.options.noise
    return step_mask, m, W_hr, per_unit, sums, noise, no_matrices


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

    def _tag(self, cell):
        if cell not in self._tags:
            self._tags[cell] = CellTag(cell)
        return self._tags[cell]

    def _threads(self, work, parts):
        """Threads for `work` multiply-adds that can be cut into `parts`."""
        if work < SERIAL_WORK:
            return 1
        return max(1, min(self.thread_pool.threads, parts // products.UNITS))

    def _step_threads(self, steps, batch, R, W_hr, inputs=0):
        """Threads for steps that multiply a batch with R and W_hr, and with `inputs` weights before.

        Like all numbers of threads it depends on sizes alone, so that results do too.
        """
        recurrent = R.size + W_hr.size
        if batch * max(recurrent, (recurrent + inputs) // 2) < SERIAL_STEP:
            return 1
        return self._threads(steps * batch * (recurrent + inputs), R.shape[1])

    def _parts(self, threads, sums, nothing):
        """Scratch for each thread's part of a step's sums (T, B, Q); `nothing` if there are none."""
        return np.empty((threads, *sums.shape[1:]), sums.dtype) if sums.size else nothing

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
        # What is missing is an array without elements.
        (no_matrix, _), no_vector = _nothing(dax.dtype), _no_vector(dax.dtype)
        dW, dR = dw.get("W", no_matrix), dw.get("R", no_matrix)
        threads = self._threads(len(x) * (dW.size + dR.size), dax.shape[1])
        self.thread_pool.run(
            products.weight_gradients, threads, dW, dR, dw.get("b_w", no_vector), dw.get("b_r", no_vector),
            dax, dah, x, h_before, accumulate,
        )  # fmt: skip

    def forward_steps(self, buffers):
        b, tag = buffers, self._tag(buffers.cell)
        steps, batch = b.scratch.ax.shape[:2]
        x, W = (
            (b.x, b.parameters.W) if b.x is not None else (b.states.h[:0], b.parameters.R)
        )  # without x, ax is there already
        step_mask, m, W_hr, per_unit, sums, noise, no_matrices = _optional(b)
        v = no_matrices if b.saved.v is None else b.saved.v
        threads = self._step_threads(steps, batch, b.parameters.R, W_hr, W.size if len(x) else 0)

        def run(first, last):
            parts = self._parts(threads, sums, no_matrices)
            self.thread_pool.run(
                loops.forward_steps,
                threads,
                tag,
                b.states.h,
                b.states.c,
                b.scratch.ax,
                b.scratch.ah,
                x,
                W,
                b.parameters.R,
                b.parameters.b_w,
                b.parameters.b_r,
                step_mask,
                m,
                W_hr,
                per_unit,
                v,
                sums,
                parts,
                noise,
                b.direction,
                first,
                last,
                b.save,
            )

        return run

    def backward_steps(self, buffers):
        b, tag = buffers, self._tag(buffers.cell)
        steps, batch = b.gradients.dy.shape[:2]
        step_mask, m, W_hr, per_unit, sums, noise, no_matrices = _optional(b)
        dht, dm = (no_matrices, b.gradients.dh) if b.gradients.dht is None else (b.gradients.dht, b.scratch.dm)
        d_v, d_per_unit = (
            b.gradients.dh if b.scratch.d_v is None else b.scratch.d_v,
            no_matrices if b.gradients.d_per_unit is None else b.gradients.d_per_unit,
        )
        threads = self._step_threads(steps, batch, b.parameters.R, W_hr)

        def run(first, last):
            parts = self._parts(threads, sums, no_matrices)
            self.thread_pool.run(
                loops.backward_steps,
                threads,
                tag,
                b.gradients.dh,
                b.gradients.dc,
                b.gradients.dax,
                b.gradients.dah,
                b.gradients.dy,
                b.states.h,
                b.states.c,
                b.parameters.R,
                step_mask,
                dht,
                dm,
                m,
                W_hr,
                per_unit,
                d_per_unit,
                d_v,
                sums,
                parts,
                noise,
                b.direction,
                first,
                last,
            )

        return run

    def run_jobs(self, make_jobs, key, arrays):
        self.thread_pool.run_jobs(make_jobs())
