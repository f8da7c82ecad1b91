"""From a pass's groups of arrays to the numbers that the CPU engine's loops read (`records.LoopCall`)."""

import ctypes

from numbarnn.engines.cpu import cell_steps
from numbarnn.engines.cpu.cell_parts import CellParts, StageParts
from numbarnn.engines.cpu.records import LARGEST, LoopCall, Stage

# Arrays of a `LoopCall` whose rows stand apart by a field of its own.
_WITH_ROWS = {"x", "ax", "saved", "v", "dh", "own_dh", "dc", "dax", "dah", "dy", "d_per_unit", "d_states", "d_v"}
_address_of_buffer, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer


def address(array):
    """Return the address of an array's first element; 0 for None."""
    if array is None:
        return 0
    try:
        return _address_of_buffer(_byte_of(array))  # a tenth of the time of `ctypes.data`, which works for all arrays
    except (BufferError, ValueError, TypeError):  # read-only, not contiguous, or empty
        return array.ctypes.data


def row_bytes(array):
    """Return the bytes between two rows of an array (..., B, columns); 0 for None. Rows must be contiguous.
    For one sequence that is the distance between two steps, as NumPy may give an axis of size 1 any stride. It is at
    least a row's width, which BLAS demands for a single row too."""
    if array is None:
        return 0
    apart = array.strides[-3 if array.ndim > 2 and array.shape[-2] == 1 else -2]
    return max(apart, array.shape[-1] * array.itemsize)


class CompiledCell:
    """A cell's functions for a dtype, compiled on first use.

    Args:
        cell: the `Cell`. dtype: "float32" or "float64".
    """

    def __init__(self, cell, dtype):
        self.cell, self._parts, self._known = cell, CellParts(cell, dtype), {}

    def new_call(self, kind):
        """Return a `LoopCall` with the cell's fields set.

        Args:
            kind: "infer", "train" or "backward".
        """
        known = self._known.get(kind)
        if known is None:  # another thread may have made it; its stages must stay alive
            known = self._known.setdefault(kind, self._make(kind))
        return LoopCall.from_buffer_copy(known[0])

    def _make(self, kind):
        cell, back = self.cell, kind == "backward"
        stages = (Stage * len(cell.stages))()
        for number, stage in enumerate(cell.stages):
            of_sums, of_gates = cell_steps.stage_terms, cell_steps.stage_units
            if back:
                of_sums, of_gates = cell_steps.stage_terms_back, cell_steps.stage_units_back
            stages[number] = Stage(
                is_sums=LARGEST if stage.largest else bool(stage.sums),
                first_gate=cell.first_of_stage(number),
                end_gate=cell.first_of_stage(number + 1),
                first_sum=cell.first_sum(number),
                end_sum=cell.first_sum(number + 1),
                product=0 if stage.sums else cell.product_number(number),
                step=(of_sums if stage.sums else of_gates).address(StageParts(self._parts, number)),
            )
        call = LoopCall(
            gates=cell.num_gates,
            recurrent=cell.num_recurrent,
            ah_gates=cell.num_ah,
            private=cell.num_private,
            per_unit_values=len(cell.per_unit),
            sums_count=cell.num_sums,
            same_gradient=cell.same_gradient,
            backward=back,
            save=kind == "train",
            step=getattr(cell_steps, f"{kind}_units").address(self._parts),
            stages=ctypes.addressof(stages),
            stages_count=len(stages),
        )
        return call, stages  # stages must stay alive and in place


def _point(call, **arrays):
    """Set a `LoopCall`'s fields to the addresses of arrays, and those that end in _row to the bytes between their rows.
    Fields of arrays that there are not stay zero."""
    for name, array in arrays.items():
        if array is not None:
            setattr(call, name, address(array))
            if name in _WITH_ROWS:
                setattr(call, f"{name}_row", row_bytes(array))


def _fill(call, buffers):
    """Set the fields that both loops read: sizes, parameters, states, options."""
    p, states, direction, options = buffers.parameters, buffers.states, buffers.direction, buffers.options
    h, c, own_h, item = states.h, states.c, states.h if states.m is None else states.m, states.h.itemsize
    call.hidden = H = len(p.b_w) // call.gates
    call.outputs = P = p.R.shape[1]
    slots, call.batch, _ = h.shape
    call.steps, call.direction = slots - 2, direction
    _point(
        call, R=p.R, b_w=p.b_w, b_r=p.b_r, W_hr=p.W_hr, per_unit=p.per_unit, h=h, own_h=own_h, c=c,
        step_mask=options.step_mask, noise=options.noise,
    )  # fmt: skip
    call.h_slot, call.h_row, _ = h.strides
    call.own_h_slot, call.own_h_row, _ = own_h.strides
    call.c_slot, call.c_row, _ = c.strides
    call.c_slots = len(c)
    if direction:
        call.h += P * item
        call.own_h += H * item
        call.c += H * call.private * item
    if call.sums_count:
        call.all_sums = address(buffers.saved.sums)


def forward_call(call, buffers):
    """Set a `LoopCall`'s fields from a `ForwardBuffers`."""
    _fill(call, buffers)
    saved, x = buffers.saved, buffers.x
    call.from_zero = buffers.from_zero
    if x is not None:
        W = buffers.parameters.W
        _point(call, x=x, W=W, saved=saved.gates, v=saved.v)
        call.inputs, call.input_gates = x.shape[2], len(W) // call.hidden
    else:
        _point(call, ax=buffers.scratch.ax, saved=saved.gates, v=saved.v)


def backward_call(call, buffers):
    """Set a `LoopCall`'s fields from a `BackwardBuffers`."""
    _fill(call, buffers)
    g, scratch, item = buffers.gradients, buffers.scratch, buffers.states.h.itemsize
    own_dh = g.dh if scratch.dm is None else scratch.dm
    _point(
        call, saved=buffers.saved.gates, dh=g.dh, own_dh=own_dh, dc=g.dc, dax=g.dax, dah=g.dah, dht=g.dht, dy=g.dy,
        d_per_unit=g.d_per_unit, d_states=g.d_states, d_v=scratch.d_v,
    )  # fmt: skip
    if buffers.direction:
        call.dy += call.outputs * item
        if g.d_states is not None:
            call.d_states += call.private * call.hidden * item
