"""The CPU engine: the cells compiled for this CPU around products of its own and OpenBLAS's, on all cores."""

import platform
from ctypes import addressof
from functools import partial
from weakref import WeakSet

import numpy as np

from numbarnn.compile.types import from_dtype
from numbarnn.engines.base import EVERY_ROW, HostEngine
from numbarnn.engines.cpu import (
    backward,
    callers,
    cell_steps,
    elementwise,
    few_rows,
    forward,
    joined,
    openblas,
    packing,
    panels,
    products,
    sharing,
)
from numbarnn.engines.cpu.calls import CompiledCell, address, backward_call, forward_call
from numbarnn.engines.cpu.memory import MemoryPool, copied, trim
from numbarnn.engines.cpu.packed import PackedWeights
from numbarnn.engines.cpu.product_parts import ProductParts
from numbarnn.engines.cpu.records import Dropout
from numbarnn.engines.cpu.thread_pool import ThreadPool
from numbarnn.engines.cpu.vectors import KNOWN, VECTOR_BYTES

# Multiply-adds below which a call stays on the calling thread: waking the others takes tens of microseconds.
SERIAL_WORK = 3_000_000
# The same for steps whose threads take pieces, and do not wait for one that comes late; all steps, and one step.
SERIAL_STEPS, SERIAL_STEP = 700_000, 180_000
# Multiply-adds per step below which threads do not share units where each waits for all others, several times per step:
# beside other programs that takes long.
SERIAL_SHARE = 800_000
WATCHED_BY_ALL = 1 << 12  # lines from which several threads take fingerprints: each comes from memory
# Rows of all steps from which forward packs weights, or reads all to see whether packed ones are still theirs: products
# of fewer take less time with weights as they lie. Of an R of so many numbers it is more rows, as reading takes longer.
PACKED_FROM, LARGE_PACKED_FROM, LARGE_FROM = 20, 32, 1 << 16
PACKED_BACK_FROM = 8  # rows from which backward packs them
CHANCES = 256  # of problems that are remembered
ROWS_OF_THREAD = 4  # sequences for each thread from which threads share sequences, not units
# The same where R has fewer bytes: each thread then has all of it in its second cache, and none waits in each step.
SMALL_R, ROWS_OF_SMALL = 3 << (18 if VECTOR_BYTES == 64 else 17), 2
# The same where R has so many numbers that it is in the third cache: each thread then reads all of it in each step.
LARGE_R, ROWS_OF_LARGE = 1 << 20, 24
# Sequences of a step's share from which it multiplies its own x, and bytes of its ax up to which it does: these stay in
# the second cache until the cell reads them. Fewer sequences read W too often; with AVX2 tiles of 6 rows, of which 16
# make 3 low ones, lose more than memory gives.
ROWS_BY_STEPS, AX_BY_STEPS = 16 if VECTOR_BYTES == 64 else 32, 1 << 19
FEW_BY_STEPS = 4  # the same of sequences, where the units are too few for x Wᵀ of all steps to be shared alike


def packed_from(size, backward):
    """Rows of all steps from which an R of so many numbers is packed."""
    if backward:
        return PACKED_BACK_FROM
    return LARGE_PACKED_FROM if size >= LARGE_FROM else PACKED_FROM


def _by_rows(batch, threads, R):
    """Whether threads share the sequences, see `sharing.Share`."""
    least = ROWS_OF_THREAD
    if threads > 1 and R.size >= LARGE_R:
        least = ROWS_OF_LARGE
    elif threads > 1 and R.nbytes < SMALL_R:
        least = ROWS_OF_SMALL
    return batch >= threads * least


def _most_rows(call):
    """Sequences of the largest share."""
    return -(-call.batch // call.pieces) if call.by_rows and call.pieces else call.batch


def _x_by_steps(call, threads, parts):
    """Whether each step multiplies its own x, if threads share it in so many parts. Where these are units, a step reads
    all of W once more, for few sequences: then only if all steps' ax have the same memory, which in training they have
    not."""
    rows, ax = call.batch // parts if call.by_rows else call.batch, call.batch * call.ax_row // parts
    few_units = call.by_rows and 1 < threads and call.hidden < 2 * threads * products.UNITS
    least = FEW_BY_STEPS if few_units else ROWS_BY_STEPS
    return (call.by_rows or not call.save) and rows >= least and ax <= AX_BY_STEPS


def _pieces(call, threads):
    """Pieces of a phase: one for each thread, or of fewer sequences, if only then each step multiplies its own x."""
    if call.by_rows and call.x and threads > 1:
        for pieces in range(threads, sharing.MOST_PIECES + 1, threads):
            if _x_by_steps(call, threads, pieces):
                return pieces
    return threads


class CpuEngine(HostEngine):
    """The cells compiled for this CPU. One pool of threads runs products and cells alike.

    Attributes:
        keepers: objects that keep arrays for later calls, and whose `clear` forgets them; a weak set.
    """

    name = "cpu"
    fuses_input = binds_calls = True
    has_halves = False

    def __init__(self):
        openblas.openblas()
        for dtype in ("float32", "float64"):
            for name in ("gemm", "gemv"):
                openblas.blas_function(dtype, name)  # registers the symbol that cached code calls
        self.device = platform.processor() or platform.machine()
        self.thread_pool, self.keepers = ThreadPool(), WeakSet()
        self._cells, self._functions, self._chances = {}, {}, {}
        self._memory = MemoryPool(self.give_back_memory)
        self._packed = PackedWeights(self._memory)
        self._product_parts = made = ProductParts(self._threads, self._function, self._are_one)
        self._part_makers = {
            self.multiply: made.multiply,
            self.add_column_sums: made.add_column_sums,
            self.weight_gradients: made.weight_gradients,
        }

    @property
    def num_threads(self):
        """Threads a call may use."""
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
        """The address of a compiled function of the engine's for a dtype."""
        key = function, dtype.char
        if key not in self._functions:
            self._functions[key] = function.address(from_dtype(dtype))
        return self._functions[key]

    def _compiled(self, buffers):
        cell, dtype = buffers.cell, buffers.states.h.dtype
        compiled = self._cells.get((id(cell), dtype.char))  # whose hash takes longer than all the rest
        if compiled is None:
            compiled = self._cells.setdefault((id(cell), dtype.char), CompiledCell(cell, str(dtype)))
        return compiled

    def _threads(self, work, parts, enough=None):
        """Threads for `work` multiply-adds that can be cut into `parts`, if it is enough: at least SERIAL_WORK."""
        if work < (SERIAL_WORK if enough is None else enough) or self.thread_pool.in_job():
            return 1
        return max(1, min(self.thread_pool.available(), parts // products.UNITS))

    def _share_steps(self, call, parameters, x):
        """Threads for a call's steps, which multiply its batch with R and W_hr, and before, where they have x, with W;
        the call is told how they share them.

        Like all numbers of threads it depends on sizes alone; but it is one in a job of `run_jobs`, whose threads do
        other jobs (`_threads`).
        """
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
        if not call.by_rows and not meets:
            threads = self._threads(work, R.shape[1], SERIAL_STEPS)
        if not call.by_rows and step < (SERIAL_SHARE if meets else SERIAL_STEP):
            threads = 1
        if not call.by_rows and not meets:
            threads = min(threads, sharing.MOST_PIECES)
        if threads <= sharing.MOST_PIECES and (call.by_rows or not meets):
            call.pieces = _pieces(call, threads)
        return threads

    def empty(self, shape, dtype):
        return self._memory.empty(shape, dtype)

    from_host = staticmethod(copied)
    copy, zero = staticmethod(np.copyto), staticmethod(joined.zero)

    def give_back_memory(self):
        for keeper in tuple(self.keepers):
            keeper.clear()
        self._packed.clear()
        self._memory.clear()
        trim()

    def dropout(self, out, x, mask, scale, position=0):
        scale, position = np.array(scale, x.dtype), position + int(mask[5])
        what = Dropout(
            out=address(out), x=address(x), size=x.size, mask=address(mask), scale=address(scale), position=position,
            pieces=min(self._threads(20 * x.size, x.size), sharing.MOST_PIECES),
        )  # fmt: skip
        self._run(x.itemsize, self._function(products.dropout, x.dtype), what)

    def fill_step_mask(self, step_mask, lengths, resets):
        directions, times, batch = step_mask.shape
        step_mask[...] = 0
        about = np.array([address(resets), len(resets), *resets.strides], np.int64)
        products.fill_step_mask(
            address(step_mask) + batch, directions, times - 2, batch, address(lengths), address(about)
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
        blocks, given = (array.reshape(gates, heads, rows // gates // heads, -1) for array in (out, x))
        out[...] = 0
        for head in range(heads):
            blocks[:, head, :, head * width : (head + 1) * width] = given[:, head]

    def elementwise(self, out, term, value, add=False):
        if out.ndim != 2 or out.size < elementwise.FROM:
            return False
        elementwise.run(out, term, value, add)
        return True

    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        self._do(self._product_parts.multiply(out, a, b, transpose_a, transpose_b, accumulate))

    def add_column_sums(self, out, x):
        self._do(self._product_parts.add_column_sums(out, x))

    def weight_gradients(self, dw, dax, dah, x, h_before, accumulate, allow_tf32=False, rows_of_h=EVERY_ROW):
        self._do(self._product_parts.weight_gradients(dw, dax, dah, x, h_before, accumulate, rows_of_h=rows_of_h))

    def _do(self, part):
        """Do now what a `joined.Part` of products does."""
        if part.scratch is not None:
            scratch = self.empty(*part.scratch)
            part.what.scratch = address(scratch)
        self._run(part.item, part.function, part.what)

    def _run(self, item, function, what):
        """Let threads do what a record says together, by the function at an address: as many as it has pieces."""
        pool, threads = self.thread_pool, what.pieces
        if threads > 1 and pool.pause.lasts():
            threads = 1
        pool.run(item, function, threads, addressof(what), False)  # waits for none

    def watch(self, arrays, places):
        from numbarnn.engines.cpu import fingerprints  # compiled code, which inference does without

        pieces, dtype = self.thread_pool.available(), arrays[0].dtype
        if pieces == 1 or sum(map(len, places)) < WATCHED_BY_ALL or dtype.itemsize == 2:
            return fingerprints.watch(arrays, places)
        pieces = min(pieces, sharing.MOST_PIECES)

        def run(function, what):
            self.thread_pool.run(dtype.itemsize, self._function(function, dtype), pieces, what, False)

        return fingerprints.Watch(arrays, places, run, pieces)

    def forward_steps(self, buffers):
        call = self._compiled(buffers).new_call("train" if buffers.save else "infer")
        forward_call(call, buffers)
        return self._steps(forward.forward_steps, buffers, call, packing.pack_rows, buffers.x)

    def backward_steps(self, buffers):
        call = self._compiled(buffers).new_call("backward")
        backward_call(call, buffers)
        return self._steps(backward.backward_steps, buffers, call, packing.pack_columns)

    def _steps(self, loop, buffers, call, pack_panel, x=None):
        """A `joined.Steps`: the function f(first, last) that calls a compiled loop."""
        p, dtype, kept = buffers.parameters, buffers.states.h.dtype, [buffers]  # what must live as long
        threads = self._share_steps(call, p, x)
        if threads > 1 and call.pieces and not call.by_rows:  # whose steps are phases
            kept.append(sharing.patience(call.batch * p.R.size))
            call.patience = address(kept[-1])

        def scratch(shape):
            kept.append(self._memory.empty(shape, dtype))
            return address(kept[-1])

        if buffers.options.settings is not None:
            kept.append(np.array(buffers.options.settings))
            call.settings = address(kept[-1])
        if buffers.options.chances is not None:
            call.noise_thresholds, call.noise_values = self._addresses_of(buffers.options.chances, kept)
        call.panel_row, own_panels = panels.PANEL_ROW, {}
        packs = max(buffers.call_steps, call.steps) * call.batch >= packed_from(p.R.size, call.backward)
        if packs and not KNOWN and call.batch > panels.FEW_ROWS:
            call.product = self._function(products.blas_steps, dtype)
        elif packs:
            if _most_rows(call) <= panels.FEW_ROWS:
                call.panel_row = panels.WIDE_ROW
            call.pack, call.product = True, self._function(panels.panel_product, dtype)
            call.pack_panel = self._function(pack_panel, dtype)
            own_panels = self._lend_panels(call, p, kept)
        else:
            by_lines = few_rows.multiply_by_columns if call.backward else few_rows.multiply_by_rows
            call.product = self._function(by_lines, dtype)
        if call.x and _x_by_steps(call, threads, max(threads, call.pieces)):
            call.x_by_steps = True
            if not call.save:  # else what the cell saves takes the place of ax
                call.ax_slot = 0
        if call.sums_count:
            call.parts = scratch((-(-call.hidden // cell_steps.TILE), call.batch, call.sums_count))
            call.totals = scratch((threads, call.batch, call.sums_count))
            call.lanes = scratch((threads, call.sums_count, cell_steps.TILE))
        if call.step_mask or call.W_hr:
            call.zeros = scratch((max(1, call.private) * call.hidden,))
            kept[-1][...] = 0
        function = self._function(loop, dtype)
        return joined.Steps(self.thread_pool, dtype.itemsize, function, threads, call, kept, own_panels)

    def _lend_panels(self, call, parameters, kept):
        """Places for packed weights into a `Call`; those of inference know what an earlier call left there. Returns
        those of training, as `joined.Steps` has them."""
        own = {}
        every = ("R", call.hidden), ("W", call.hidden), ("W_hr", call.outputs)
        for name, units in every:
            weights = getattr(parameters, name)
            if getattr(call, name) == 0:
                continue
            panel_row = panels.PANEL_ROW if name == "W" else call.panel_row
            shape = packing.panels_shape(weights.shape, units, call.backward, weights.dtype, panel_row)
            if call.save or call.backward:  # training changes all weights
                own[f"{name}_panels"] = memory = self._memory.empty(shape, weights.dtype)
                setattr(call, f"{name}_panels", address(memory))
                continue
            place = address(weights), weights.shape, units, panel_row
            kept.append(self._packed.lend(weights, place, shape))
            setattr(call, f"{name}_panels", address(kept[-1].panels))
            setattr(call, f"{name}_prints", address(kept[-1].prints))
        return own

    def _addresses_of(self, chances, kept):
        """Where the numbers of a problem's `Chances` stand as rows of compiled code, which are kept in the list."""
        known = self._chances.get(id(chances))  # each training call of the problem asks
        if known is None:
            if len(self._chances) >= CHANCES:
                self._chances = {}
            rows = [None if numbers is None else np.array(numbers) for numbers in chances]
            known = self._chances[id(chances)] = [address(row) for row in rows], rows, chances
        kept.append(known)
        return known[0]

    def joined(self, functions):
        return joined.join(functions, self._part_of, self.thread_pool, self.empty)

    def _part_of(self, function):
        """The `joined.Part` that does what a function without arguments does; None if compiled code alone cannot."""
        make = self._part_makers.get(function.func) if isinstance(function, partial) else None
        if make is None:
            return joined.part_of(function, partial(self._function, joined.copy_rows))
        return make(*function.args, **function.keywords)._replace(kept=function)

    def mover(self, functions, array):
        return joined.mover(functions, array)

    def taker(self, functions, arrays, copies):
        return joined.taker(functions, arrays, copies) if callers.LAID_OUT else None

    def run_jobs(self, make_jobs, key, arrays):
        self.thread_pool.run_jobs(make_jobs())
