"""Tables of numbers for the CPU engine: what a call's loop reads, and what a cell's compiled functions read.

Every array is an address; an absent one is 0. Strides are in bytes. All rows belong to one layer and direction;
letters as in `numbarnn.kernels.step.groups`. Compiled code reads a table by the names of its fields.
"""

import ctypes

import numpy as np
from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.plain import Entry, FromPython, plain
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.vectors import own_memory

_CALL = (
    # The cell, the problem, and the steps to do. `pack`: products read panels. `packs`: this call fills them; otherwise
    # an earlier call of the same loop did. `by_rows`: threads share the sequences, not the units.
    "hidden gates recurrent ah_gates private per_unit_values sums_count same_gradient",
    # `input_gates`: gates with a product x Wᵀ; the others take x itself
    "steps batch outputs inputs input_gates direction first last save backward from_zero pack packs by_rows",
    # parameters; memory for panels; `panel_row` holds for R and W_hr, panels of W have PANEL_ROW
    "W R b_w b_r W_hr per_unit R_panels W_panels W_hr_panels panel_row",
    # states; own_h is h before a projection. x is multiplied for `chunk` steps at a time; else ax is given. Each thread
    # has a part of the memory for x of these steps, for their x Wᵀ, and for h Rᵀ of one step, see
    # `sharing.own_products`.
    "h h_row h_slot own_h own_h_row own_h_slot c c_row c_slot c_slots zeros",
    "x x_row chunk ax ax_row own_x own_ax own_ah",
    "saved saved_row v v_row all_sums lanes parts totals step_mask",
    "noise noise_thresholds noise_values",
    # gradients; own_dh is the gradient of own_h
    "d_states d_states_row",
    "dh dh_row own_dh own_dh_row dc dc_row dax dax_row dah dah_row dy dy_row dht d_per_unit d_per_unit_row d_v d_v_row",
    # addresses of functions: the cell's, the product's, the packing's; of a `Stage` for each stage
    "step stages stages_count product pack_panels",
)


def _table(name, *fields):
    """Return a type of records: in Python `record = Name(field=number)`, `record.field`; unset fields are 0."""
    fields = " ".join(fields).split()
    return type(name, (ctypes.Structure,), {"_fields_": [(field, ctypes.c_int64) for field in fields]})


# A call of a loop. Addresses of states and gradients point at the direction's first column.
LoopCall = _table("LoopCall", *_CALL)

# A stage of a cell: its gates, or its sums; `step` is the compiled function, forward or backward. `is_sums` is LARGEST
# if the stage takes the largest term instead of the sum.
LARGEST = 2
Stage = _table("Stage", "is_sums first_gate end_gate first_sum end_sum product step")

# Arguments of a cell's function: some sequences in one step, units [first, last) of H. Addresses point at unit 0 of
# the first sequence; `.._row` is the distance between sequences. `.._units` is the distance between two gates, and
# `.._first` the address for the thread's first sequence.
Rows = _table(
    "Rows",
    "rows first last H t position noise noise_thresholds noise_values",
    "ax ax_row ax_units ax_first ah ah_row ah_units ah_first b_w b_r per_unit sums sums_row",
    "h h_row c c_row new_h new_h_row new_c new_c_row saved saved_row",
    "dy dy_row dh dh_row dc dc_row dax dax_row dah dah_row d_per_unit d_per_unit_row d_v d_v_row d_sums d_sums_row",
    "out out_row",
)

# out (rows, columns) = a b, or +=, over `terms` terms. With panels, `b_row` is the distance between panels, and
# `panel_row` between two terms of one. Packing takes `units` rows of each gate's part of b, see `panels.pack_rows`. In
# a set of such products, the matrices of the n-th are n * `.._next` bytes after those of the first. OpenBLAS gets
# `call_rows` rows at a time.
Product = _table(
    "Product",
    "rows columns terms a a_row b b_row panel_row out out_row transpose_a transpose_b add",
    "units first_column a_next b_next out_next call_rows",
)

# out (columns,) = column sums of x (rows, columns), or +=; `also` receives them too, unless it is 0.
Sums = _table("Sums", "rows columns x x_row out also add x_next out_next")

# Consecutive products and sums, cut into `pieces`; and the same for `others` further sets of matrices.
Work = _table("Work", "products products_count sums sums_count has_small pieces others")

# out = dropout of x, `size` numbers; see `Engine.dropout`. `scale` is the address of a number.
Dropout = _table("Dropout", "out x size mask scale position")

# out = x: `rows` rows of that many numbers.
Copy = _table("Copy", "rows numbers out out_row x x_row")

# One step of a fused call: a function of (zero, address of a ThreadJob), its record, and its number of threads.
FusedStep = _table("FusedStep", "function record threads")

# A thread's part of shared work: a function of (zero, address of its ThreadJob) does `record`.
ThreadJob = _table("ThreadJob", "thread threads counters record")

# What each thread of a parallel region of OpenMP does, see `openmp.take_part`.
Region = _table("Region", "item function threads counters record")

STAGE_BYTES, PRODUCT_BYTES, SUMS_BYTES, FUSED_STEP_BYTES, JOB_BYTES = map(
    ctypes.sizeof, (Stage, Product, Sums, FusedStep, ThreadJob)
)

_WHAT = "the CPU engine's loops and products"  # its name in notices


def by_address(function):
    """Make a plain function of (zero, address of a record) callable by its address (`run_at`)."""
    return Entry(function, _WHAT)


def from_python(function):
    """Make a plain function of integers callable from Python."""
    return FromPython(function, _WHAT)


def of_cell(function):
    """Make a plain function of (`cell_parts.CellParts`, address of a `Rows`) callable by its address.
    exp and division have a latency of fifty cycles, so a loop over single vectors mostly waits. Several vectors at a
    time take 0.6 to 0.8 of the time, although they need more registers than there are."""
    return Entry(
        function,
        lambda parts: f"the cell {parts.cell.name} for the CPU engine, {parts.dtype}",
        lambda parts: parts.interleaved,
    )


def _viewer(kind):
    """Return a function for compiled code: an address -> the record there."""
    record = types.Record(kind)

    @intrinsic
    def view(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(record))

        return record(types.intp), generate

    return view


def _maker(kind):
    """Return a function for compiled code: () -> the address of a zeroed record on the stack."""

    @intrinsic
    def make(typing_context):
        def generate(context, builder, signature, arguments):
            place = own_memory(builder, ir.IntType(64), ctypes.sizeof(kind) // 8)
            cgutils.memset(builder, place, ir.IntType(64)(ctypes.sizeof(kind)))
            return builder.ptrtoint(place, ir.IntType(64))

        return types.intp(), generate

    return make


call_at, stage_at, rows_at, product_at, sums_at = map(_viewer, (LoopCall, Stage, Rows, Product, Sums))
work_at, dropout_at, copy_at, fused_step_at, job_at, region_at = map(
    _viewer, (Work, Dropout, Copy, FusedStep, ThreadJob, Region)
)
new_rows, new_product, new_job = map(_maker, (Rows, Product, ThreadJob))


@intrinsic
def run_at(typing_context, zero, function, record):
    """Call a compiled function by its address.

    Args:
        zero: the first argument, a number, or None for a cell's function, which takes only the record.
        record: the last argument, an address.
    """

    def generate(context, builder, signature, arguments):
        values = arguments[2:] if zero == types.none else [arguments[0], arguments[2]]
        kind = ir.FunctionType(ir.VoidType(), [one.type for one in values])
        builder.call(builder.inttoptr(arguments[1], kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(zero, types.intp, types.intp), generate


@plain
def run_job(item, function, job):
    """Call a function of (zero, address of a `ThreadJob`).

    Args:
        item: bytes of a number of the dtype.
    """
    if item == 4:
        run_at(np.float32(0), function, job)
    else:
        run_at(np.float64(0), function, job)
