"""Named groups of a step's arrays, passed from a pass to its engine, its kernels and the cell's functions.

Fields that a cell or call lacks are None. So are matrices, which no kernel reads, in the groups that kernels get
(`forward_arguments`, `backward_arguments`). All arrays belong to one layer and direction. Sizes are T, B, H, ... as
in `numbarnn`, and G gates of ax, A gates of ah, K saved values, N cell states besides h, S further products, Q sums
over units, V per-unit parameters. Slot t + 1 of a state follows time t. Slots 0 and T + 1 hold the initial states of
the forward and the backward direction.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbarnn.cells import Cell
from numbarnn.compile.storage import stored_group


class Parameters(NamedTuple):
    """The learned parameters.

    Attributes:
        R: (A * H, H), with projection (A * H, P); the recurrent weights. b_w: (G * H,). b_r: (A * H,).
        W: (G * H, I), for engines that multiply x themselves (`Engine.fuses_input`).
        W_hr: (P, H), with projection: h = m W_hrᵀ. per_unit: (V * H,), the cell's per-unit parameters.
    """

    R: Any
    b_w: Any
    b_r: Any
    W: Any = None
    W_hr: Any = None
    per_unit: Any = None


class States(NamedTuple):
    """The states of both directions, side by side.

    Attributes:
        h: (T + 2, B, D * H).
        c: (T + 2, B, D * N * H), the other states, in the dtype in which states accumulate. In inference
            (2, B, D * N * H), slots modulo 2, unless states of all steps are results.
        m: (T + 2, B, D * H), with projection the cell's outputs; h is then D * P wide.
    """

    h: Any
    c: Any
    m: Any = None


class Saved(NamedTuple):
    """What forward keeps of every step for backward.

    Attributes:
        gates: (T, B, K * H), what the cell saves, in training only. Rows may be longer.
        v: (T, B, S * H), the vectors of S further products with R; in inference (1, B, S * H).
        sums: (T, B, Q), the stages' sums over units, in the dtype of c; in inference (1, B, Q).
    """

    gates: Any = None
    v: Any = None
    sums: Any = None


class Scratch(NamedTuple):
    """Scratch memory of the steps.

    Attributes:
        ax: (T, B, G * H), x Wᵀ. Rows may be longer; it may be the memory of `Saved.gates`.
        ah: (B, A * H), h Rᵀ of one step. dm: (B, H), with projection the gradient of m of one step.
        d_v: (B, S * H), the gradient of v of one step. d_sums: (B, Q), the gradient of the sums of one step.
    """

    ax: Any = None
    ah: Any = None
    dm: Any = None
    d_v: Any = None
    d_sums: Any = None


class Options(NamedTuple):
    """Options of a call.

    Attributes:
        step_mask: (T + 2, B) uint8, slots as for h: skipped and reset steps (`numbarnn.common.order`).
        noise: (6,) uint64, a row of `numbarnn.common.philox.noise_words`; None in inference.
        chances: of the cell's random numbers, `numbarnn.cells.definition.Chances`, also in inference.
    """

    step_mask: Any = None
    noise: Any = None
    chances: Any = None


class Gradients(NamedTuple):
    """The gradients of the backward pass.

    Attributes:
        dh, dc: (B, H) and (B, N * H), the gradient of the state: first of the final state, last of the initial state.
        dax: (T, B, G * H), the gradient of x Wᵀ. Rows may be longer; it may be the memory of `Saved.gates`.
        dah: (T, B, A * H), the gradient of h Rᵀ; is dax if the cell's two gradients are equal.
        dy: (T, B, D * H), the gradient of the layer's output, an input.
        dht: (T, B, P), with projection: the complete gradient of h.
        d_per_unit: (T, B, V * H), the gradient of the per-unit parameters in each step.
        d_states: (T, B, D * N * H), the gradient of each step's cell states, an input.
    """

    dh: Any
    dc: Any
    dax: Any
    dah: Any
    dy: Any
    dht: Any = None
    d_per_unit: Any = None
    d_states: Any = None


@dataclass
class ForwardBuffers:
    """The arrays of one layer and direction in the forward pass.

    Attributes:
        cell: the cell. direction: 0, or 1 for backward in time. save: keep what backward needs (training).
        x: (T, B, I), for engines that multiply it themselves (`Engine.fuses_input`); else None.
        from_zero: whether the initial h is zero for all sequences, so that its product with R may be left out.
        allow_tf32: see `Problem`.
        call_steps: number of steps of the call, as a segment of it must round like the whole call.
    """

    has_views: ClassVar = True  # see `numbarnn.programs.views.with_views`

    cell: Cell
    direction: int
    save: bool
    parameters: Parameters
    states: States
    saved: Saved
    scratch: Scratch
    options: Options
    x: Any = None
    from_zero: bool = False
    allow_tf32: bool = False
    call_steps: int = 0


@dataclass
class BackwardBuffers:
    """The arrays of one layer and direction in the backward pass, after the forward pass; see `ForwardBuffers`."""

    has_views: ClassVar = True

    cell: Cell
    direction: int
    parameters: Parameters
    states: States
    saved: Saved
    gradients: Gradients
    scratch: Scratch
    options: Options
    allow_tf32: bool = False
    call_steps: int = 0


# ------------------------------------------------------------ what the cell's functions read, as step kernels get it
def of_units(parameters):
    """Return the `Parameters` that the cell's functions read: per-unit parameters and biases, without matrices."""
    return parameters._replace(R=None, W=None, W_hr=None)


def states_of_cell(states):
    """Return the `States` that the cell computes, in which m takes the place of h with projection."""
    return states if states.m is None else states._replace(h=states.m, m=None)


def gradients_of_cell(buffers):
    """Return the `Gradients` of `states_of_cell`; with projection dh is dm, which includes dy."""
    gradients = buffers.gradients
    return gradients if buffers.states.m is None else gradients._replace(dh=buffers.scratch.dm, dy=None, dht=None)


def forward_arguments(buffers):
    """Return the groups of `ForwardBuffers` and the direction as kernels take them."""
    groups = (
        of_units(buffers.parameters), states_of_cell(buffers.states), buffers.saved, buffers.scratch, buffers.options,
    )  # fmt: skip
    return *map(stored_group, groups), np.int32(buffers.direction)


def backward_arguments(buffers):
    """Return the groups of `BackwardBuffers` and the direction as kernels take them."""
    groups = (
        of_units(buffers.parameters), states_of_cell(buffers.states), buffers.saved, gradients_of_cell(buffers),
        buffers.scratch._replace(dm=None), buffers.options,
    )  # fmt: skip
    return *map(stored_group, groups), np.int32(buffers.direction)
