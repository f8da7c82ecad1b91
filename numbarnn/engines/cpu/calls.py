"""From a pass's groups of arrays to the numbers that the CPU engine's loops read (`records.CALL`)."""

import ctypes

import numpy as np

from numbarnn.engines.cpu import cell_steps
from numbarnn.engines.cpu.cell_tag import CellTag
from numbarnn.engines.cpu.records import STAGE, address_of

_address_of_buffer, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer


def address(array):
    """Where an array's first element stands; 0 for None."""
    if array is None:
        return 0
    try:
        return _address_of_buffer(_byte_of(array))  # a tenth of the time of what works for all arrays
    except (BufferError, ValueError, TypeError):  # read-only, not contiguous, or empty
        return array.ctypes.data


def _row(array):
    """Bytes from one sequence to the next of an array (..., B, columns); 0 for None."""
    return 0 if array is None else array.strides[-2]


class CompiledCell:
    """A cell's functions for a dtype, compiled when they are asked for.

    Args:
        cell: the `Cell`. dtype: "float32" or "float64".
    """

    def __init__(self, cell, dtype):
        self.cell, self.tag, self._known = cell, CellTag(cell, dtype)._numba_type_, {}

    def numbers(self, kind):
        """What a `CALL` has of the cell.

        Args:
            kind: "infer", "train" or "backward".
        """
        if kind not in self._known:
            self._known[kind] = self._make(kind)
        return self._known[kind][0]

    def _make(self, kind):
        cell, back = self.cell, kind == "backward"
        function = getattr(cell_steps, f"{kind}_units")
        stages = np.zeros(len(cell.stages), STAGE)
        for number, stage in enumerate(cell.stages):
            of_stage = (
                cell_steps.stage_units,
                cell_steps.stage_units_back,
                cell_steps.stage_sums,
                cell_steps.stage_sums_back,
            )
            stages[number] = (
                bool(stage.sums), cell.first_of_stage(number), cell.first_of_stage(number + 1),
                cell.first_sum(number), cell.first_sum(number + 1), 0 if stage.sums else cell.product_number(number),
                address_of(of_stage[2 * bool(stage.sums) + back], self.tag.stage(number)),
            )  # fmt: skip
        numbers = dict(
            gates=cell.num_gates, recurrent=cell.num_recurrent, ah_gates=cell.num_ah, private=cell.num_private,
            per_unit_values=len(cell.per_unit), sums_count=cell.num_sums, same_gradient=cell.same_gradient,
            step=address_of(function, self.tag), stages=stages.ctypes.data, stages_count=len(stages),
        )  # fmt: skip
        return numbers, stages  # which must stay where they are


def _sizes(buffers, cell):
    """What both loops are told: sizes, parameters, states, options."""
    p, states, saved = buffers.parameters, buffers.states, buffers.saved
    slots, B, _ = states.h.shape
    H, item, direction = p.b_w.shape[0] // cell.num_gates, states.h.itemsize, buffers.direction
    P = p.R.shape[1]
    own_h = states.h if states.m is None else states.m
    return dict(
        hidden=H, outputs=P, steps=slots - 2, batch=B, direction=direction,
        R=address(p.R), b_w=address(p.b_w), b_r=address(p.b_r), W_hr=address(p.W_hr), per_unit=address(p.per_unit),
        h=address(states.h) + direction * P * item, h_row=states.h.strides[1], h_slot=states.h.strides[0],
        own_h=address(own_h) + direction * H * item, own_h_row=own_h.strides[1], own_h_slot=own_h.strides[0],
        c=address(states.c) + direction * H * cell.num_private * item, c_row=states.c.strides[1],
        c_slot=states.c.strides[0], c_slots=states.c.shape[0],
        all_sums=address(saved.sums), step_mask=address(buffers.options.step_mask), noise=address(buffers.options.noise),
    )  # fmt: skip


def forward_numbers(buffers, cell):
    """The numbers of a `ForwardBuffers`."""
    saved, scratch, x = buffers.saved, buffers.scratch, buffers.x
    return _sizes(buffers, cell) | dict(
        save=buffers.save, x=address(x), x_row=_row(x),
        inputs=0 if x is None else x.shape[2], W=address(buffers.parameters.W),
        ax=address(scratch.ax), ax_row=_row(scratch.ax), ah=address(scratch.ah), ah_row=_row(scratch.ah),
        saved=address(saved.gates), saved_row=_row(saved.gates),
        v=address(saved.v), v_row=_row(saved.v),
    )  # fmt: skip


def backward_numbers(buffers, cell):
    """The numbers of a `BackwardBuffers`."""
    g, scratch, item = buffers.gradients, buffers.scratch, buffers.states.h.itemsize
    own_dh = g.dh if scratch.dm is None else scratch.dm
    P = buffers.parameters.R.shape[1]
    return _sizes(buffers, cell) | dict(
        backward=True, saved=address(buffers.saved.gates), saved_row=_row(buffers.saved.gates),
        dh=address(g.dh), dh_row=_row(g.dh), own_dh=address(own_dh), own_dh_row=own_dh.strides[0],
        dc=address(g.dc), dc_row=_row(g.dc), dax=address(g.dax), dax_row=_row(g.dax),
        dah=address(g.dah), dah_row=_row(g.dah),
        dy=address(g.dy) + buffers.direction * P * item, dy_row=_row(g.dy), dht=address(g.dht),
        d_per_unit=address(g.d_per_unit), d_per_unit_row=_row(g.d_per_unit),
        d_v=address(scratch.d_v), d_v_row=_row(scratch.d_v),
    )  # fmt: skip
