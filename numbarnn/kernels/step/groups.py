"""The arrays of a step in named groups: the same names from a pass to its engine, to a kernel, to a cell's functions.

What a cell or a call does not have is None; what a kernel does not read is None in the groups that it gets (`fields`
of `numbarnn.compile.storage`). All arrays are those of one layer and direction; T, B, H, ... as in `numbarnn`; G gates
of ax, A gates of ah, K values saved, N private states, S further products, Q sums over units, V parameters per unit.
Slot t + 1 of a state is the one after time t; slots 0 and T + 1 hold the initial states of the forward and the backward
direction.
"""

from typing import Any, NamedTuple


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
        noise: (4,) uint64, a row of `numbarnn.common.philox.noise_words`; None in inference too.
    """

    step_mask: Any = None
    noise: Any = None


class Gradients(NamedTuple):
    """What the backward pass computes.

    Attributes:
        dh, dc: (B, H) and (B, N * H), the gradient of the state: at first of the final one, at last of the initial one.
        dax: (T, B, G * H), the gradient of x Wᵀ. Rows may be longer; it may be the memory of `Saved.gates`.
        dah: (T, B, A * H), the gradient of h Rᵀ; is dax if the cell's two gradients are the same.
        dy: (T, B, D * H), the gradient of the layer's output, which is read.
        dht: (T, B, P), with projection: all of the gradient of h.
        d_per_unit: (T, B, V * H), the gradient of the parameters per unit in each step.
    """

    dh: Any
    dc: Any
    dax: Any
    dah: Any
    dy: Any
    dht: Any = None
    d_per_unit: Any = None
