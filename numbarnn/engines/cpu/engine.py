"""The CPU engine: cells compiled for this CPU, with its own matrix products and OpenBLAS, on all cores. Most compiled
functions take `zero` first, a zero of the dtype, which decides for which dtype they are compiled."""

import platform
from functools import partial
from weakref import WeakSet

import numpy as np

from numbarnn.compile.types import from_dtype
from numbarnn.engines.base import HostEngine
from numbarnn.engines.cpu import backward, cell_steps, forward, fused, openblas, panels, products
from numbarnn.engines.cpu.calls import CompiledCell, address, backward_call, forward_call
from numbarnn.engines.cpu.memory import MemoryPool, copied, trim
from numbarnn.engines.cpu.records import Dropout
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.engines.cpu.vectors import LINE, VECTOR_BYTES
from numbarnn.programs.backward import EVERY_ROW

# Least multiply-adds of a product on several threads: waking the others takes tens of microseconds.
LEAST_WORK = 3_000_000
# Least multiply-adds of a call, and of a step, whose units threads share: they meet in each step.
LEAST_CALL, LEAST_STEP = 700_000, 180_000
LEAST_STEP_OF_STAGES = 800_000  # the same of a step in which they meet more than once; its call needs LEAST_WORK
PACKED_FROM, PACKED_BACK_FROM = 32, 8  # rows of all steps from which packing weights pays, forward and backward
ROWS_OF_THREAD = 4  # sequences per thread from which threads share sequences, not units
# The same limit if R has fewer bytes: it then fits each thread's L2 cache, and no thread waits in each step.
SMALL_R, ROWS_OF_SMALL = 3 << (18 if VECTOR_BYTES == 64 else 17), 2
# The same limit if R has at least so many numbers: it then lies in the L3 cache, and each thread reads all of it in
# each step.
LARGE_R, ROWS_OF_LARGE = 1 << 20, 24
CHUNK_ROWS = 256  # rows of x to multiply together: for 64 a large W is read so often that calls take 7 % longer


def _by_rows(batch, threads, R):
    """Return whether threads share the sequences, see `sharing.Share`."""
    least = ROWS_OF_THREAD
    if threads > 1 and R.size >= LARGE_R:
        least = ROWS_OF_LARGE
    elif threads > 1 and R.nbytes < SMALL_R:
        least = ROWS_OF_SMALL
    return batch >= threads * least


class CpuEngine(HostEngine):
    """The cells compiled for this CPU. One thread pool runs products and cells.

    Attributes:
        keepers: weak set of objects that keep arrays for later calls; their `clear` forgets them.
    """

    name = "cpu"
    fuses_input = prepares_calls = True
    has_halves = False

    def __init__(self):
        openblas.openblas()
        for dtype in ("float32", "float64"):
            for name in ("gemm", "gemv"):
                openblas.blas_function(dtype, name)  # registers the symbol that cached code calls
        self.device = platform.processor() or platform.machine()
        self.thread_pool, self.keepers = ThreadPool(), WeakSet()
        self._cells, self._functions = {}, {}
        self._memory = MemoryPool(self.give_back_memory)
        self.empty = self._memory.empty
        self._product_parts = products.ProductParts(self._threads, self._function, self._are_one)

    @property
    def num_threads(self):
        """Number of threads a call may use."""
        return self.thread_pool.available()

    def set_num_threads(self, threads):
        """Let calls use this many threads (default: all CPUs this process may run on).

        Raises:
            ValueError: threads is not a positive int.
        """
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a positive int, not {threads!r}")
        self.thread_pool.resize(threads)

    def join_pytorch(self, size):
        """Use PyTorch's threads from now on, see `openmp`; `size` is `torch.get_num_threads`."""
        self.thread_pool.join_pytorch(size)

    def _function(self, function, dtype):
        """Return the address of a compiled function for a dtype."""
        key = function, dtype.char
        if key not in self._functions:
            self._functions[key] = function.address(from_dtype(dtype))
        return self._functions[key]

    def _compiled(self, buffers):
        cell, dtype = buffers.cell, buffers.states.h.dtype
        compiled = self._cells.get((id(cell), dtype.char))  # hashing the cell would take longer than the rest
        if compiled is None:
            compiled = self._cells.setdefault((id(cell), dtype.char), CompiledCell(cell, str(dtype)))
        return compiled

    def _threads(self, work, parts, enough=None):
        """Return the threads for `work` multiply-adds on `parts` units: 1 below `enough`, default LEAST_WORK."""
        if work < (LEAST_WORK if enough is None else enough):
            return 1
        return max(1, min(self.thread_pool.available(), parts // products.UNITS))

    def _share_steps(self, call, parameters, x):
        """Return the number of threads for a call's steps and set how they share them (`call.by_rows`).
        The work is the batch's products with R and W_hr, and with W if the steps have x."""
        R, W_hr, batch = parameters.R, parameters.W_hr, call.batch
        recurrent = R.size if W_hr is None else R.size + W_hr.size
        inputs = 0 if x is None else parameters.W.size
        meets = call.stages_count or call.W_hr  # within a step of some units
        step = batch * max(recurrent, (recurrent + inputs) // 2)
        work = call.steps * batch * (recurrent + inputs) - (batch * recurrent if call.from_zero else 0)
        threads = self._threads(work, max(R.shape[1], batch // ROWS_OF_THREAD * products.UNITS))
        call.by_rows = _by_rows(batch, threads, R)
        if not call.by_rows:
            threads = min(threads, max(1, R.shape[1] // products.UNITS))
            if not meets:
                threads = self._threads(work, R.shape[1], LEAST_CALL)
            if step < (LEAST_STEP_OF_STAGES if meets else LEAST_STEP):
                threads = 1
        return threads

    from_host = staticmethod(copied)
    copy = staticmethod(np.copyto)

    def give_back_memory(self):
        for keeper in tuple(self.keepers):
            keeper.clear()
        self._memory.clear()
        trim()

    def dropout(self, out, x, mask, scale, position=0):
        scale, position = np.array(scale, x.dtype), position + int(mask[5])
        record = Dropout(
            out=address(out), x=address(x), size=x.size, mask=address(mask), scale=address(scale), position=position
        )
        function, threads = self._function(products.apply_dropout, x.dtype), self._threads(20 * x.size, x.size)
        self._fused([fused.FusedPart(x.itemsize, function, record, threads, None)])()

    def fill_step_mask(self, step_mask, lengths, resets):
        directions, times, batch = step_mask.shape
        step_mask[...] = 0
        reset_array = np.array([address(resets), len(resets), *resets.strides], np.int64)
        products.fill_step_mask(
            address(step_mask) + batch, directions, times - 2, batch, address(lengths), address(reset_array)
        )

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
        blocks, x_blocks = (array.reshape(gates, heads, rows // gates // heads, -1) for array in (out, x))
        out[...] = 0
        for head in range(heads):
            blocks[:, head, :, head * width : (head + 1) * width] = x_blocks[:, head]

    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        self._fused([self._product_parts.multiply(out, a, b, transpose_a, transpose_b, accumulate)])()

    def add_column_sums(self, out, x):
        self._fused([self._product_parts.add_column_sums(out, x)])()

    def each(self, kind, count, operands, options):
        part = self._product_parts.each(kind, count, operands, options)
        if part is None:
            super().each(kind, count, operands, options)
        else:
            self._fused([part])()

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False, rows_of_h=EVERY_ROW):
        self._fused(
            [self._product_parts.weight_gradients(dw, dax, dah, x, h_before, accumulate, rows_of_h=rows_of_h)]
        )()

    def forward_steps(self, buffers):
        call = self._compiled(buffers).new_call("train" if buffers.save else "infer")
        forward_call(call, buffers)
        return self._steps(forward.forward_loop, buffers, call, panels.pack_rows, buffers.x)

    def backward_steps(self, buffers):
        call = self._compiled(buffers).new_call("backward")
        backward_call(call, buffers)
        return self._steps(backward.backward_loop, buffers, call, panels.pack_columns)

    def _steps(self, loop, buffers, call, pack_panels, x=None):
        """Return the `fused.Steps` f(first, last) that runs a compiled loop."""
        p, dtype, kept, lent = buffers.parameters, buffers.states.h.dtype, [buffers], []  # kept: must live as long
        threads = self._share_steps(call, p, x)

        def scratch(shape):
            kept.append(self._memory.empty(shape, dtype))
            return address(kept[-1])

        if buffers.options.chances is not None:
            kept.append([None if numbers is None else np.array(numbers) for numbers in buffers.options.chances])
            call.noise_thresholds, call.noise_values = map(address, kept[-1])
        rows = -(-call.batch // threads) if call.by_rows else call.batch  # of a thread
        packed_from = PACKED_BACK_FROM if call.backward else PACKED_FROM
        packs = max(buffers.call_steps, call.steps) * call.batch >= packed_from
        call.panel_row = panels.GEMV_ROW if packs and rows <= panels.FEW_ROWS else panels.PANEL_ROW
        if packs:
            call.pack, call.product = True, self._function(panels.panel_product, dtype)
            call.pack_panels = self._function(pack_panels, dtype)
            lent = self._panels(call, p)
        else:
            by_lines = panels.multiply_by_columns if call.backward else panels.multiply_by_rows
            call.product = self._function(by_lines, dtype)
        if not call.backward:
            call.chunk = min(max(1, call.steps), max(1, CHUNK_ROWS // max(1, rows)))
            width, line, slots = call.panel_row // dtype.itemsize, LINE // dtype.itemsize, call.batch * call.chunk
            apart = -(-call.hidden // width) * width  # see `sharing.own_products`
            call.own_ah = scratch((call.batch, call.ah_gates * apart + threads * line))
            if call.x:
                call.own_ax = scratch((slots, call.gates * apart + threads * line))
                call.own_x = scratch((1 if call.by_rows else threads, slots, call.inputs))
        if call.sums_count:
            call.parts = scratch((-(-call.hidden // cell_steps.TILE), call.batch, call.sums_count))
            call.totals = scratch((threads, call.batch, call.sums_count))
            call.lanes = scratch((threads, call.sums_count, cell_steps.TILE))
        if call.step_mask or call.W_hr:
            call.zeros = scratch((max(1, call.private) * call.hidden,))
            kept[-1][...] = 0
        function = self._function(loop, dtype)
        return fused.Steps(self._fused, fused.FusedPart(dtype.itemsize, function, call, threads, kept, tuple(lent)))

    def _panels(self, call, parameters):
        """Yield the memory for packed weights that a `LoopCall` needs while it runs, as entries of `FusedPart.lent`."""
        for name, units in (("R", call.hidden), ("W", call.hidden), ("W_hr", call.outputs)):
            if getattr(call, name):
                weights, panel_row = getattr(parameters, name), panels.PANEL_ROW if name == "W" else call.panel_row
                (rows, columns), width = weights.shape, panel_row // weights.itemsize
                columns, terms = (columns, rows) if call.backward else (rows, columns)
                if call.stages_count:  # each gate begins a new panel of R
                    columns += columns // max(1, units) * (call.panel_row // weights.itemsize)
                yield (-(-columns // width), terms, width), weights.dtype, f"{name}_panels"

    def _fused(self, parts):
        return fused.Fused(parts, self.thread_pool, self._memory.empty)

    def compile(self, operations):
        """Return functions for the operations; neighbors that compiled code can do in one call become one function."""
        functions, parts = [], []  # parts: of the last operations, not in `functions` yet
        for operation in operations:
            part = self._part_of(*operation)
            if parts and (part is None or part.item != parts[0].item):
                functions.append(self._fused(parts))
                parts = []
            if part is None:
                functions.append(self.function_of(*operation))
            else:
                parts.append(part)
        functions += [self._fused(parts)] if parts else []
        return [one.run if isinstance(one, fused.Fused) and not one.lent else one for one in functions]

    def _part_of(self, kind, operands, options):
        """Return the `fused.FusedPart` that does an operation; None if compiled code alone cannot."""
        if kind == "call":
            run, *arguments = operands
            return run.of(*arguments) if isinstance(run, fused.Steps) else None
        if kind in ("copy", "zero"):
            return fused.copy_part(operands, partial(self._function, fused.copy_rows))
        make = getattr(self._product_parts, kind, None)
        return make and make(*operands, **options)
