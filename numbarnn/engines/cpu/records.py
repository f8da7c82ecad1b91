"""The CPU engine's tables of numbers: what a call's loop reads, and what a cell's compiled functions read.

Every array is an address; what a cell or call does not have is 0. Strides are in bytes. All rows are those of one layer
and direction; letters as in `numbarnn.kernels.step.groups`. Compiled code reads a table by the names of its fields, and
knows nothing of arrays.
"""

import ctypes

import numpy as np
from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.plain import Entry, FromPython, plain
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.vectors import own_memory

_CALL = (
    # the cell, the problem, and what of it is to do; `pack`: weights in panels, which this call `packs`, or an earlier
    # one of the same loop has; `by_rows`: threads share the sequences,
    # not the units
    "hidden gates recurrent ah_gates private per_unit_values sums_count same_gradient",
    # `input_gates`: those of x Wᵀ that are products, the others are x itself
    "steps batch outputs inputs input_gates direction first last save backward from_zero pack packs by_rows",
    # parameters; places for panels; `panel_row` is that of R's and W_hr's panels, those of W have PANEL_ROW
    "W R b_w b_r W_hr per_unit R_panels W_panels W_hr_panels panel_row",
    # states; own_h is h as the cell computes it, ahead of a projection; `x_by_steps`: each step multiplies its own x;
    # `ax_slot` is from one time to the next, 0 where all times have the same memory
    "h h_row h_slot own_h own_h_row own_h_slot c c_row c_slot c_slots zeros",
    "x x_row x_by_steps ax ax_row ax_slot ah ah_row saved saved_row v v_row all_sums lanes parts totals step_mask",
    "noise noise_thresholds noise_values",
    # gradients; own_dh is that of own_h
    "d_states d_states_row",
    "dh dh_row own_dh own_dh_row dc dc_row dax dax_row dah dah_row dy dy_row dht d_per_unit d_per_unit_row d_v d_v_row",
    # addresses of functions: the cell's, that which multiplies by weights, and packs; of a `Stage` for each stage
    "step stages stages_count product pack_panel",
)


def _table(name, *fields):
    """A type of records: in Python `record = Name(field=number)`, `record.field`; others are 0."""
    fields = " ".join(fields).split()
    return type(name, (ctypes.Structure,), {"_fields_": [(field, ctypes.c_int64) for field in fields]})


# A call of a loop. Addresses of states and gradients are where the direction's columns begin.
Call = _table("Call", *_CALL)

# A stage of a cell: its gates, or its sums; `step` is the compiled function, forward or backward. Where the
# largest terms stand in place of their sums, `is_sums` is this.
LARGEST = 2
Stage = _table("Stage", "is_sums first_gate end_gate first_sum end_sum product step")

# What a cell's function works on: some sequences in one step, units [first, last) of H. Addresses are those of unit 0
# of the first sequence, `.._row` is from one sequence to the next.
Rows = _table(
    "Rows",
    "rows first last H t position noise noise_thresholds noise_values",
    "ax ax_row ah ah_row b_w b_r per_unit sums sums_row",
    "h h_row c c_row new_h new_h_row new_c new_c_row saved saved_row",
    "dy dy_row dh dh_row dc dc_row dax dax_row dah dah_row d_per_unit d_per_unit_row d_v d_v_row d_sums d_sums_row",
    "out out_row",
)

# out (rows, columns) = a b, `terms` each, or +=. Of panels, `b_row` is what is between two, and `panel_row` between two
# terms of one; sums of `chain` terms are added up, or of few rows and wide panels several side by side, which take
# `turns`. With panels and few rows (`few_rows.multiply_by_rows`) there may be `more` matrices b, such as R's of further
# gates, and as many parts of out; `.._next` is what is between two.
# Columns that are no whole panel are in panels together, those of all b one after another, at `rest_panels` (0: after
# the others); `rest_first` is the number of the first of these b that is multiplied. Such a panel is packed of `rest`
# rows of each b, and begins with row number `rest_first` of all of them.
# `narrow`: `products.choose`.
Product = _table(
    "Product",
    "rows columns terms chain a a_row b b_row panel_row out out_row transpose_a transpose_b add more b_next out_next",
    "rest rest_first rest_panels turns",
    "call_rows call_columns chains narrow",
)

# out (columns,) = the sums of the columns of x (rows, columns), or +=; and the same at `also`, unless it is 0.
Sums = _table("Sums", "rows columns x x_row out also add")

# Products and sums, so many of each, that follow each other in memory; `function` multiplies. Cut into `pieces`.
Work = _table("Work", "products products_count sums sums_count function has_small pieces")

# out = dropout of x, `size` numbers, in `pieces`; see `Engine.dropout`. `scale` is the address of a number.
Dropout = _table("Dropout", "out x size mask scale position pieces")

# out = x: rows of so many numbers.
Copy = _table("Copy", "rows numbers out out_row x x_row")

# One of several things to do after another: a function of (zero, address of a Job), what it does, and on how many
# threads.
Step = _table("Step", "function what threads")

# A thread's part of something that threads do together: a function of (zero, address of its Job) does `what`.
Job = _table("Job", "thread threads counters what")

# The same of threads of OpenMP: addresses of its functions, and of that which each of them calls with this record's.
Region = _table("Region", "gomp_parallel thread_number team_size take_part item function threads counters what")

STAGE_BYTES, PRODUCT_BYTES, SUMS_BYTES, STEP_BYTES, JOB_BYTES = map(ctypes.sizeof, (Stage, Product, Sums, Step, Job))

_WHAT = "the CPU engine's loops and products"  # as `notice` calls them


def by_address(function):
    """A plain function of (zero, address of a record) that others call by its address (`run`)."""
    return Entry(function, _WHAT)


def from_python(function):
    """A plain function of integers that Python calls."""
    return FromPython(function, _WHAT)


def of_cell(function):
    """A plain function of (`cell_parts.CellParts`, address of a `Rows`) that others call by its address.

    exp and a division take fifty cycles from argument to result, so that a loop over single vectors mostly waits for
    them: several at a time take 0.6 to 0.8 of the time, although they need more registers than there are.
    """
    return Entry(
        function,
        lambda parts: f"the cell {parts.cell.name} for the CPU engine, {parts.dtype}",
        lambda parts: parts.interleaved,
    )


def _viewer(kind):
    """A function for compiled code: an address -> the record there."""
    record = types.Record(kind)

    @intrinsic
    def view(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(record))

        return record(types.intp), generate

    return view


def _maker(kind):
    """A function for compiled code: () -> the address of a record of the calling function's own, all 0 at first."""

    @intrinsic
    def make(typing_context):
        def generate(context, builder, signature, arguments):
            place = own_memory(builder, ir.IntType(64), ctypes.sizeof(kind) // 8)
            cgutils.memset(builder, place, ir.IntType(64)(ctypes.sizeof(kind)))
            return builder.ptrtoint(place, ir.IntType(64))

        return types.intp(), generate

    return make


call_at, stage_at, rows_at, product_at, sums_at = map(_viewer, (Call, Stage, Rows, Product, Sums))
work_at, dropout_at, copy_at, step_at, job_at, region_at = map(_viewer, (Work, Dropout, Copy, Step, Job, Region))
new_rows, new_product, new_job = map(_maker, (Rows, Product, Job))


@intrinsic
def run(typing_context, about, function, record):
    """Call a compiled function by its address.

    Args:
        about: its first argument: a number, or None if it is one of a cell, which has none.
        record: its other one, an address.
    """

    def generate(context, builder, signature, arguments):
        given = arguments[2:] if about == types.none else [arguments[0], arguments[2]]
        kind = ir.FunctionType(ir.VoidType(), [one.type for one in given])
        builder.call(builder.inttoptr(arguments[1], kind.as_pointer()), given)
        return context.get_dummy_value()

    return types.void(about, types.intp, types.intp), generate


@plain
def run_job(item, function, job):
    """Call a function of (zero, address of a `Job`).

    Args:
        item: bytes of a number of the dtype.
    """
    if item == 4:
        run(np.float32(0), function, job)
    else:
        run(np.float64(0), function, job)
