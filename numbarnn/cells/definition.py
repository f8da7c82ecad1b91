"""Define a cell as data: the equations of one unit at one step, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import isfunction
from typing import Any, NamedTuple

from numbarnn.cells.layout import STACKED, Layout, usual


class Given(NamedTuple):
    """Further inputs of a general cell's equations for one unit: per-unit parameters, random numbers of this step, and
    `sums`, the number of units followed by the sums of all stages (empty for a cell without sums)."""

    per_unit: tuple = ()
    sums: tuple = ()
    noise: tuple = ()


@dataclass(frozen=True, eq=False)
class Stage:
    """Work within a step for which all units of a sequence must wait: a further product, or sums over units.

    In a product, some rows of R multiply a vector v, computed in the step, instead of h'.

        forward(ax, ah, state, given)                                    -> v
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> d_ah of its gates

    Sums add up one term per unit, and all units of the sequence see the totals.

        forward(ax, ah, state, given)                                    -> the terms, a tuple with one per sum
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> the terms of the sums' gradients

    With `largest`, units see the maximum of the terms. No gradient flows through it, and engines skip its backward.

    forward may only read the gates of ah and the sums of earlier stages; backward may only read the d_v and d_sums of
    later stages.

    Attributes:
        gates: names of a product's gates of ah. sums: names of the sums. Each is empty for the other kind of stage.
    """

    gates: tuple[str, ...]
    forward: Callable
    backward: Callable
    sums: tuple[str, ...] = ()
    largest: bool = False


@dataclass(frozen=True)
class Noise:
    """A random number per unit and sequence: 0 with probability `rate`, else `kept`; in inference always `mean`.

    A `uniform` number is (k + 1/2) 2^-24 with a random int k below 2^24. With `each_step` each step draws a new number,
    without it all steps of a sequence in a direction share one. Random words of 32 bits below `threshold` become 0.
    """

    rate: float
    kept: float = 1.0
    mean: float = 1.0
    each_step: bool = True
    uniform: bool = False

    threshold = property(lambda self: round(self.rate * 2**32))
    form = property(lambda self: NoiseForm(self.each_step, self.kept == 1.0, self.mean == 1.0, self.uniform))


class NoiseForm(NamedTuple):
    """The part of a `Noise` that is compiled in: a factor `kept` or `mean` of 1 needs no multiplication.

    Rates are arguments (`Chances`), so that all rates share compiled code."""

    each_step: bool
    kept_is_one: bool
    mean_is_one: bool
    uniform: bool


class Chances(NamedTuple):
    """The numbers of a cell's `Noise`s as arguments of compiled code.

    In training, thresholds (uint64) and the values `kept`; in inference, None and the values `mean`, in the dtype of c.
    """

    thresholds: tuple | None
    values: tuple


@dataclass(frozen=True, eq=False)
class Cell:
    """One recurrent cell: the equations of one unit at one step, forward and backward, as scalar functions.

    A cell sees its unit's pre-activations ax = W x + b_w and ah = R h' + b_r (h' the previous h), one number per
    gate, and its unit's state (h, ...), one number per state:

        forward(ax, ah, state)                       -> new_state, saved
        backward(saved, state, new_state, d_state)   -> d_ax, d_ah, d_state_before

    All arguments and results are tuples of scalars. `saved` has the values that backward needs besides the states,
    `d_state` is the gradient of `new_state`, and `d_state_before` is the part of the gradient of `state` that does not
    come through R.

    A `general` cell may have per-unit parameters, other gates of ah than of ax, random numbers, and `stages`:

        forward(ax, ah, state, given)                                    -> new_state, saved
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> d_ax, d_ah, d_state_before, d_per_unit

    `given` is a `Given`, `d_v` has the gradient of each product's vector and `d_sums` that of each sum. `d_ah` has the
    gates that multiply h' only; those of further products follow them in ah.

    Attributes:
        gates: names of the gates of ax, in the order of the rows of W. states: names; the first state is the output h.
        saved: names of the values saved per step and unit for backward.
        same_gradient: whether d_ah equals d_ax, so that it is stored once.
        recurrent: names of the gates of ah that multiply h'. Default: the gates of ax.
        stages: further products and sums, in their order. per_unit: names of the per-unit parameters.
        noise: the `Noise` of each random number of a unit.
        heads: number of blocks on the diagonal of R's matrices; units see the units of their block only.
        drop_connect: for each gate of ah the rate of `numbarnn.drop_connect`; empty without it.
        initial: (name of a parameter in the equations, initial value, see `numbarnn.cells.begin`) of some parameters.
        projected: whether h is a product W_hr m, where m is the first state of the functions.
        bias: one of `BIAS_MODES`; None if the layer's user chooses it.
        general: whether the functions have the longer signatures.
        source: the text of generated functions, which identifies compiled code.
        layout: the parameters' names and derived weights. Default: `layout.usual`.
        varied_by: (name, value) of each option, such as `cell_clip`, that changed a built-in cell into this one.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    saved: tuple[str, ...]
    forward: Callable
    backward: Callable
    same_gradient: bool = True
    recurrent: tuple[str, ...] | None = None
    stages: tuple[Stage, ...] = ()
    per_unit: tuple[str, ...] = ()
    noise: tuple[Noise, ...] = ()
    heads: int = 1
    drop_connect: tuple[float, ...] = ()
    initial: tuple[tuple[str, Any], ...] = ()
    projected: bool = False
    bias: str | None = None
    general: bool = False
    source: str = ""
    layout: Layout | None = None
    varied_by: tuple[tuple[str, Any], ...] = ()

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):  # cells are immutable, and compiled code is cached by the object
        return self

    def __reduce__(self):
        """Pickle built-in cells by name, others by their fields."""
        if CELLS.get(self.name) is self:
            return get, (self.name,)
        return type(self), tuple(getattr(self, item.name) for item in fields(self))

    recurrent_gates = cached_property(lambda self: self.gates if self.recurrent is None else self.recurrent)
    gates_of_ah = cached_property(lambda self: (*self.recurrent_gates, *(g for one in self.stages for g in one.gates)))
    num_gates = cached_property(lambda self: len(self.gates))  # of ax: G
    num_recurrent = cached_property(lambda self: len(self.recurrent_gates))
    num_ah = cached_property(lambda self: len(self.gates_of_ah))  # the rows of R, in units of H
    num_states = cached_property(lambda self: len(self.states))
    num_private = cached_property(lambda self: len(self.states) - 1)  # states besides h
    num_saved = cached_property(lambda self: len(self.saved))
    num_per_unit = cached_property(lambda self: len(self.per_unit))
    num_products = cached_property(lambda self: len(self.product_stages))  # further products per step: S
    num_sums = cached_property(lambda self: self.first_sum(len(self.stages)))  # sums over units per step: Q
    noise_forms = cached_property(lambda self: tuple(one.form for one in self.noise))

    @cached_property
    def parameters(self):
        """The `Layout` of its parameters."""
        return usual(self) if self.layout is None else self.layout

    @cached_property
    def rows(self):
        """Name of an array, such as "weight_ih" -> names of the parameters that it holds, in their order."""
        return {STACKED[kind]: names for kind, names in self.parameters.rows.items()}

    # In the methods below, `stage` is a number; len(stages) stands for the cell's own functions, which come last.
    def first_of_stage(self, stage):
        """Return the number of a stage's first gate of ah."""
        return self.num_recurrent + sum(len(one.gates) for one in self.stages[:stage])

    def rows_of_stage(self, stage, H):
        """Return the slice of a stage's rows of R, or columns of ah."""
        return slice(self.first_of_stage(stage) * H, self.first_of_stage(stage + 1) * H)

    @cached_property
    def product_stages(self):
        """Numbers of the stages that are products."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.gates)

    def product_number(self, stage):
        """Return the number of a stage among the product stages, which selects its columns of v."""
        return sum(1 for one in self.product_stages if one < stage)

    def first_sum(self, stage):
        """Return the number of a stage's first sum."""
        return sum(len(one.sums) for one in self.stages[:stage])

    def sums_before(self, stage):
        """Return the numbers of the consecutive stages of sums right before a stage."""
        first = stage
        while first > 0 and self.stages[first - 1].sums:
            first -= 1
        return tuple(range(first, stage))

    def sums_after(self, stage):
        """Return the numbers of the stages of sums right after a stage, last first, without stages of maxima.

        The stage's backward needs their gradients. For stage -1 these are the sums of the first stages."""
        last = stage + 1
        while last < len(self.stages) and self.stages[last].sums:
            last += 1
        return tuple(number for number in range(last - 1, stage, -1) if not self.stages[number].largest)


CELLS = {}  #: name -> built-in `Cell`, filled by `numbarnn.cells`
CELL_OPTIONS = {}  #: name of an option -> (its cell's name, function that makes the variant, default); filled there too


def get(cell: str | Cell) -> Cell:
    """Return the built-in `Cell` with a name; a `Cell` is returned unchanged.

    Raises:
        ValueError: no built-in cell has the name.
        TypeError: cell is a function of equations.
    """
    if isinstance(cell, Cell):
        return cell
    if isfunction(cell):
        name = cell.__name__
        raise TypeError(
            f"{name} is no cell: a function of equations becomes one by numbarnn.cell({name}), or @numbarnn.cell above"
        )
    if not isinstance(cell, str) or cell not in CELLS:
        raise ValueError(f"cell must be one of {', '.join(CELLS)} or a Cell, not {cell!r}")
    return CELLS[cell]


def with_options(cell: str | Cell, options: dict[str, Any]) -> Cell:
    """Return the variant of a cell with options; `cell` itself if none of them changes it.

    Raises:
        ValueError, TypeError: an option has a wrong value, or the cell does not have it.
    """
    cell, own, make = get(cell), {}, None
    for name, value in options.items():
        if name not in CELL_OPTIONS:
            raise TypeError(f"there is no argument {name!r}")
        owner, maker, default = CELL_OPTIONS[name]
        if CELLS[owner] is cell:
            own[name], make = value, maker
        elif value != default:
            raise ValueError(f"{name} is for the {owner.upper()}, not for a {cell.name}: leave it out")
    return make(**own) if make else cell
