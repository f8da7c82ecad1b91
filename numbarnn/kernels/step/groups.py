"""The arrays of a step in named groups: the same names from a pass to its engine, to a kernel, to a cell's functions.

What a cell or a call does not have is None; the matrices, which no kernel reads, are None in the groups that kernels
get (`forward_arguments`, `backward_arguments`). All arrays are those of one layer and direction; T, B, H, ... as in
`numbarnn`; G gates of ax, A gates of ah, K values saved, N private states, S further products, Q sums over units, V
parameters per unit. Slot t + 1 of a state is the one after time t; slots 0 and T + 1 hold the initial states of the
forward and the backward direction.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbarnn.cells import Cell
from numbarnn.compile.storage import stored_group


class Parameters(NamedTuple):
    """What is learnt.

    Attributes:
        R: (A * H, H), of a layer with projection (A * H, P); what steps multiply with.
        b_w: (G * H,). b_r: (A * H,).
        W: (G * H, I), for engines that multiply x themselves (`Engine.fuses_input`).
        W_hr: (P, H), with projection: h = m W_hrᵀ.
        per_unit: (V * H,), the cell's parameters per unit.
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
        c: (T + 2, B, D * N * H), private states in the dtype that states accumulate in; in inference (2, B, D * N * H),
            slots modulo 2.
        m: (T + 2, B, D * H), with projection the cell's outputs before it; h is then D * P wide.
    """

    h: Any
    c: Any
    m: Any = None


class Saved(NamedTuple):
    """What forward keeps of every step for backward.

    Attributes:
        gates: (T, B, K * H), what the cell saves; in training alone. Rows may be longer.
        v: (T, B, S * H), what the rows of R of S further products multiply; in inference (1, B, S * H).
        sums: (T, B, Q), the sums over units of stages, of the dtype of c; in inference (1, B, Q).
    """

    gates: Any = None
    v: Any = None
    sums: Any = None


class Scratch(NamedTuple):
    """What steps write for each other and nobody reads afterwards.

    Attributes:
        ax: (T, B, G * H), x Wᵀ. Rows may be longer; it may be the memory of `Saved.gates`.
        ah: (B, A * H), h Rᵀ of one step.
        dm: (B, H), with projection the gradient of m of one step.
        d_v: (B, S * H), the gradient of v of one step. d_sums: (B, Q), that of the sums.
    """

    ax: Any = None
    ah: Any = None
    dm: Any = None
    d_v: Any = None
    d_sums: Any = None


class Options(NamedTuple):
    """What is out of the ordinary in a call.

    Attributes:
        step_mask: (T + 2, B) uint8, slots as in h, which steps are skipped or begin anew (`numbarnn.common.order`).
        noise: (6,) uint64, a row of `numbarnn.common.philox.noise_words`; None in inference too.
        chances: of the cell's random numbers, `numbarnn.cells.definition.Chances`; in inference too.
    """

    step_mask: Any = None
    noise: Any = None
    chances: Any = None


class Gradients(NamedTuple):
    """What the backward pass computes.

    Attributes:
        dh, dc: (B, H) and (B, N * H), the gradient of the state: at first of the final one, at last of the initial one.
        dax: (T, B, G * H), the gradient of x Wᵀ. Rows may be longer; it may be the memory of `Saved.gates`.
        dah: (T, B, A * H), the gradient of h Rᵀ; is dax if the cell's two gradients are the same.
        dy: (T, B, D * H), the gradient of the layer's output, which is read.
        dht: (T, B, P), with projection: all of the gradient of h.
        d_per_unit: (T, B, V * H), the gradient of the parameters per unit in each step.
        d_states: (T, B, D * N * H), the gradient of the private states of each step, which is read.
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
        cell: the cell.
        direction: 0, or 1 for the one that goes through time backward.
        save: keep what backward needs (training).
        x: (T, B, I), for engines that multiply it themselves (`Engine.fuses_input`); else None.
        from_zero: h before the first step is zero, for all sequences: its product with R may be left out.
        allow_tf32: see `Problem`.
        call_steps: number of steps of the call, of which these may be a segment, to be rounded as in the whole call.
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
    """The `Parameters` that the cell's functions read, a number or more for each unit: all but matrices."""
    return parameters._replace(R=None, W=None, W_hr=None)


def states_of_cell(states):
    """The `States` that the cell computes: with projection its output is m."""
    return states if states.m is None else states._replace(h=states.m, m=None)


def gradients_of_cell(buffers):
    """The `Gradients` of those states: with projection dh is dm, which dy is part of."""
    gradients = buffers.gradients
    return gradients if buffers.states.m is None else gradients._replace(dh=buffers.scratch.dm, dy=None, dht=None)


def forward_arguments(buffers):
    """The groups of `ForwardBuffers` as kernels take them, and the direction."""
    groups = (
        of_units(buffers.parameters), states_of_cell(buffers.states), buffers.saved, buffers.scratch, buffers.options,
    )  # fmt: skip
    return *map(stored_group, groups), np.int32(buffers.direction)


def backward_arguments(buffers):
    """The groups of `BackwardBuffers` as kernels take them, and the direction."""
    groups = (
        of_units(buffers.parameters), states_of_cell(buffers.states), buffers.saved, gradients_of_cell(buffers),
        buffers.scratch._replace(dm=None), buffers.options,
    )  # fmt: skip
    return *map(stored_group, groups), np.int32(buffers.direction)
