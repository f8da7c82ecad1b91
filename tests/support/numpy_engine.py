"""An engine of NumPy alone, which interprets programs: all that `numbarnn.engines.base.Engine` asks of one. No kernel,
no packing, no thread; a cell's functions work on all units of a batch at once."""

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET, SKIP, mask_of_step, step_time
from numbarnn.common.philox import philox
from numbarnn.engines.base import HostEngine


class NumpyEngine(HostEngine):
    """`numbarnn.LSTM(..., device=NumpyEngine())`: float32 and float64, cells without random numbers."""

    name, device, has_halves = "numpy", "NumPy", False

    copy = staticmethod(np.copyto)

    def dropout(self, out, x, mask, scale, position=0):
        numbers = np.arange(x.size, dtype=np.uint64) + np.uint64(position) + mask[5]
        counter = numbers // np.uint64(4)
        low, high = counter & np.uint64(0xFFFFFFFF), counter >> np.uint64(32)
        words = np.choose((numbers % np.uint64(4)).astype(int), philox(low, high, mask[3], mask[4], mask[1], mask[2]))
        out[...] = np.where(words.reshape(x.shape) >= mask[0], x * x.dtype.type(scale), 0)

    def fill_step_mask(self, step_mask, lengths, resets):
        step_mask[...] = 0
        for direction, t, b in np.ndindex(len(step_mask), step_mask.shape[1] - 2, step_mask.shape[2]):
            step_mask[direction, t + 1, b] = mask_of_step(t, direction, lengths[b], resets, b)

    def select(self, out, x, step_mask, dropped, fill):
        out[...] = np.where((step_mask & dropped)[..., None] != 0, fill, x)

    def gather(self, out, x, index, fill):
        out[...] = np.where(index[:, None] < 0, fill, x[np.maximum(index, 0)])

    def spread(self, out, x, gates):
        out[...] = np.tile(x, gates)

    def sum_gates(self, out, x, gates, accumulate):
        out[...] = x.reshape(len(x), gates, -1).sum(axis=1) + (out if accumulate else 0)

    def spread_blocks(self, out, x, gates):
        (rows, width), heads = x.shape, out.shape[1] // x.shape[1]
        out[...] = 0
        for gate, head in np.ndindex(gates, heads):
            size = rows // gates // heads
            own = slice((gate * heads + head) * size, (gate * heads + head + 1) * size)
            out[own, head * width : (head + 1) * width] = x[own]

    def multiply(self, out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
        product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
        out[...] = out + product if accumulate else product

    def add_column_sums(self, out, x):
        out += x.sum(axis=0)[: len(out)]

    def forward_steps(self, buffers):
        return Steps(buffers).forward

    def backward_steps(self, buffers):
        return Steps(buffers).backward


def split(array, count):
    """The parts of a row, for each unit one number of each."""
    return tuple(np.split(array, count, axis=-1)) if count else ()


class Steps:
    """The steps of a layer and direction on NumPy arrays."""

    def __init__(self, buffers):
        self.b, self.cell, p = buffers, buffers.cell, buffers.parameters
        self.R, self.W_hr, cell = p.R, p.W_hr, buffers.cell
        self.H, self.P = len(p.b_w) // cell.num_gates, p.R.shape[1]
        self.steps, d = len(buffers.states.h) - 2, buffers.direction
        part = slice(d * self.P, (d + 1) * self.P)
        self.h, self.part, self.own = buffers.states.h[:, :, part], part, slice(d * self.H, (d + 1) * self.H)
        self.m = self.h if buffers.states.m is None else buffers.states.m[:, :, self.own]
        self.privates = slice(d * cell.num_private * self.H, (d + 1) * cell.num_private * self.H)
        self.c = buffers.states.c[:, :, self.privates]
        self.per_unit = split(p.per_unit, cell.num_per_unit) if cell.num_per_unit else ()

    def code(self, slot):
        mask = self.b.options.step_mask
        return np.zeros(self.h.shape[1], np.uint8) if mask is None else mask[slot]

    def state(self, slot):
        return (self.m[slot], *split(self.c[slot % len(self.c)], self.cell.num_private))

    def call(self, function, *arguments, sums=()):
        """A cell's function; without `Given` for cells that are not general."""
        given = Given(self.per_unit, (float(self.H), *sums) if self.cell.num_sums else (), ())
        return function(*arguments, given) if self.cell.general else function(*arguments)

    def forward(self, first, last):
        b, cell = self.b, self.cell
        for step in range(first, last):
            t, before = step_time(step, self.steps, b.direction, False)
            code = self.code(t + 1)[:, None]
            keep = np.where(code == RESET, 0, 1).astype(self.h.dtype)
            state = tuple(part * keep for part in self.state(before))
            ax = split(b.scratch.ax[t][:, : cell.num_gates * self.H] + b.parameters.b_w, cell.num_gates)
            count = cell.num_recurrent * self.H
            ah = np.zeros_like(b.scratch.ah)
            ah[:, :count] = (self.h[before] * keep) @ self.R[:count].T
            ah = list(split(ah + b.parameters.b_r, cell.num_ah))
            sums = [np.zeros((len(keep), 1), self.h.dtype) for _ in range(cell.num_sums)]
            for number, stage in enumerate(cell.stages):
                made = self.call(stage.forward, ax, ah, state, sums=sums)
                if stage.sums:
                    reduce = np.max if stage.largest else np.sum
                    for n, term in enumerate(made, cell.first_sum(number)):
                        sums[n] = reduce(np.broadcast_to(term, ax[0].shape), axis=1, keepdims=True)
                        b.saved.sums[t if b.save else 0][:, n] = sums[n][:, 0]
                else:
                    v, at = np.broadcast_to(made, ax[0].shape), cell.product_number(number) * self.H
                    b.saved.v[t if b.save else 0][:, at : at + self.H] = v
                    rows = cell.rows_of_stage(number, self.H)
                    gates = slice(cell.first_of_stage(number), cell.first_of_stage(number + 1))
                    ah[gates] = split(v @ self.R[rows].T + b.parameters.b_r[rows], gates.stop - gates.start)
            new, saved = self.call(cell.forward, ax, ah, state, sums=sums)
            skip, old = code == SKIP, self.state(before)
            new = [np.where(skip, one, other) for one, other in zip(old, new, strict=True)]
            if b.save and cell.num_saved:
                at = b.saved.gates[t]
                for n, value in enumerate(saved):
                    at[:, n * self.H : (n + 1) * self.H] = value
            self.m[t + 1] = new[0]
            if cell.num_private:
                self.c[(t + 1) % len(self.c)] = np.concatenate(new[1:], axis=1)
            if self.W_hr is not None:
                self.h[t + 1] = np.where(skip, self.h[before], new[0] @ self.W_hr.T)

    def backward(self, first, last):
        b, cell, g = self.b, self.cell, self.b.gradients
        for step in range(first, last):
            t, before = step_time(step, self.steps, b.direction, True)
            code, after = self.code(t + 1)[:, None], self.code(2 * (t + 1) - before)[:, None]
            skip, keep, comes = code == SKIP, code != RESET, after != RESET
            dh, dc = g.dh * comes, g.dc * comes
            dy = g.dy[t][:, self.part] + dh
            d_m, carried = dy, dh
            if self.W_hr is not None:
                g.dht[t] = np.where(skip, 0, dy)
                d_m, carried = g.dht[t] @ self.W_hr, dh
            d_c = dc + (0 if g.d_states is None else g.d_states[t][:, self.privates])
            saved = split(b.saved.gates[t][:, : cell.num_saved * self.H], cell.num_saved) if cell.num_saved else ()
            saved = tuple(part.copy() for part in saved)
            state = tuple(part * keep for part in self.state(before))
            new, d_state = self.state(t + 1), (d_m, *split(d_c, cell.num_private))
            if not cell.general:
                d_ax, d_ah, d_before = cell.backward(saved, state, new, d_state)
                d_own = ()
            else:
                sums = [column[:, None] for column in b.saved.sums[t].T] if cell.num_sums else []
                d_v = [np.zeros_like(new[0])] * cell.num_products
                d_sums = [np.zeros((len(dh), 1), dh.dtype)] * cell.num_sums
                d_v, d_sums, d_stage = list(d_v), list(d_sums), {}
                for number in reversed(range(len(cell.stages))):
                    stage = cell.stages[number]
                    made = self.call(stage.backward, saved, state, new, d_state, d_v, d_sums, sums=sums)
                    if stage.sums:
                        for n, term in enumerate(made, cell.first_sum(number)):
                            d_sums[n] = np.broadcast_to(term, new[0].shape).sum(axis=1, keepdims=True)
                    else:
                        d_stage[number] = np.concatenate([np.broadcast_to(x, new[0].shape) for x in made], axis=1)
                        d_v[cell.product_number(number)] = d_stage[number] @ self.R[cell.rows_of_stage(number, self.H)]
                d_ax, d_ah, d_before, d_own = self.call(
                    cell.backward, saved, state, new, d_state, d_v, d_sums, sums=sums
                )
                for number, value in d_stage.items():
                    g.dah[t][:, cell.rows_of_stage(number, self.H)] = np.where(skip, 0, value)
            for out, parts in ((g.dax, d_ax), (g.dah, () if cell.same_gradient else d_ah), (g.d_per_unit, d_own)):
                for n, part in enumerate(parts):
                    out[t][:, n * self.H : (n + 1) * self.H] = np.where(skip, 0, part)
            own = np.where(skip, carried if self.W_hr is None else 0, d_before[0])
            count = cell.num_recurrent * self.H
            through = g.dah[t][:, :count] @ self.R[:count]
            if cell.num_private:
                d_private = [np.broadcast_to(part, new[0].shape) for part in d_before[1:]]
                g.dc[...] = np.where(skip, dc, np.concatenate(d_private, axis=1))
            g.dh[...] = (own if self.W_hr is None else np.where(skip, carried, 0)) + through
