"""The loops over a direction's steps on a GPU, with products by cuBLAS and the kernels of `numbarnn.kernels.step`.

A forward step is h Rᵀ, the cell's further products (each after a kernel that computes its vector), the cell, and the
projection. A backward step is the reverse. All kernels and products are bound to their arrays before the first step,
so that a step is launches only.
"""

from numbarnn.common.order import step_time
from numbarnn.cuda import gemm
from numbarnn.kernels.step import pointwise, projection, stages


def forward_steps(buffers):
    """Return a function f(first, last) that runs steps (see `Engine.forward_steps`).

    Args:
        buffers: a `ForwardBuffers`.
    """
    b, cell, parameters, ah = buffers, buffers.cell, buffers.parameters, buffers.scratch.ah
    h = _of_direction(b.states.h, b.direction, parameters.R.shape[1])
    rows = cell.num_recurrent * (len(parameters.b_w) // cell.num_gates)  # of R, that multiply h
    product = gemm.step_product(ah[:, :rows], h, parameters.R[:rows], transpose_b=True, allow_tf32=b.allow_tf32)
    parts = [_stage(b, stage) for stage in cell.product_stages]  # sums are computed by the kernels that need them
    parts.append(pointwise.bind_forward(b))
    if b.states.m is not None:
        parts.append(_projection(b, h))

    def run(first, last):
        for step in range(first, last):
            t, before = step_time(step, len(b.scratch.ax), b.direction, False)
            if rows:
                product(before)
            for part in parts:
                part(t, before)

    return run


def backward_steps(buffers):
    """Return a function f(first, last) that runs steps (see `Engine.backward_steps`).

    Args:
        buffers: a `BackwardBuffers`.
    """
    b, cell, gradients, R = buffers, buffers.cell, buffers.gradients, buffers.parameters.R
    H = len(buffers.parameters.b_w) // cell.num_gates
    rows = cell.num_recurrent * H  # of R, that multiplied h
    options = {"accumulate": True, "allow_tf32": b.allow_tf32}
    product = gemm.step_product(gradients.dh, gradients.dah[:, :, :rows], R[:rows], **options)
    parts = [_stage_backward(b, stage, H) for stage in reversed(cell.product_stages)]
    parts.append(pointwise.bind_backward(b))
    if b.states.m is not None:
        parts.insert(0, _projection_backward(b))

    def run(first, last):
        for step in range(first, last):
            t, before = step_time(step, len(gradients.dy), b.direction, True)
            for part in parts:
                part(t, before)
            if rows:
                product(t)

    return run


def _stage(buffers, stage):
    """Return a function f(t, before) that computes a stage's vector and multiplies it by the stage's rows of R."""
    b, cell, R = buffers, buffers.cell, buffers.parameters.R
    H = len(buffers.parameters.b_w) // cell.num_gates
    rows, first = cell.rows_of_stage(stage, H), cell.product_number(stage) * H
    make, v = stages.bind_forward(b, stage), b.saved.v[:, :, first : first + H]
    product = gemm.step_product(b.scratch.ah[:, rows], v, R[rows], transpose_b=True, allow_tf32=b.allow_tf32)

    def run(t, before):
        make(t, before)
        product(t if b.save else 0)

    return run


def _stage_backward(buffers, stage, H):
    """Return a function f(t, before) that computes the gradients of a stage's gates and of its vector."""
    b, rows, first = buffers, buffers.cell.rows_of_stage(stage, H), buffers.cell.product_number(stage) * H
    gates, d_v = stages.bind_backward(b, stage), b.scratch.d_v[:, first : first + H]
    product = gemm.step_product(d_v, b.gradients.dah[:, :, rows], b.parameters.R[rows], allow_tf32=b.allow_tf32)

    def run(t, before):
        gates(t, before)
        product(t)

    return run


def _projection(buffers, h):
    """Return a function f(t, before) that computes h[t + 1] = m[t + 1] W_hrᵀ, or h[before] if the step is skipped.

    Args:
        h: (T + 2, B, P), the direction's columns.
    """
    b, W_hr, step_mask = buffers, buffers.parameters.W_hr, buffers.options.step_mask
    m = _of_direction(b.states.m, b.direction, W_hr.shape[1])
    product = gemm.step_product(h, m, W_hr, transpose_b=True, allow_tf32=b.allow_tf32)
    carry = None if step_mask is None else projection.bind_carry(h, step_mask)

    def run(t, before):
        product(t + 1)
        if carry is not None:
            carry(t, before)

    return run


def _projection_backward(buffers):
    """Return a function f(t, before) that computes dht[t] = dy[t] + dh, dm = dht[t] W_hr."""
    b, W_hr = buffers, buffers.parameters.W_hr
    dy = _of_direction(b.gradients.dy, b.direction, W_hr.shape[0])
    join = projection.bind_join(b.gradients._replace(dy=dy), b.options)
    product = gemm.step_product(b.scratch.dm, b.gradients.dht, W_hr, allow_tf32=b.allow_tf32)

    def run(t, before):
        join(t, before)
        product(t)

    return run


def _of_direction(array, direction, width):
    """Return the columns of one direction in an array of both, (T, B, D * width)."""
    return array[:, :, direction * width :][:, :, :width]
