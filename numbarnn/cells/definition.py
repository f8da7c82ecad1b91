"""Define a cell as data: the equations of one unit at one step, and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import isfunction
from typing import Any, NamedTuple

from numbarnn.cells.layout import STACKED, Layout, usual


class Given(NamedTuple):
    """Inputs of a general cell's equations for one unit, besides its pre-activations and states; all are tuples.

    Attributes:
        per_unit: the unit's own parameters.
        sums: empty without sums, else the number of units, then all stages' sums in their order.
        noise: the unit's random numbers in this step.
    """

    per_unit: tuple = ()
    sums: tuple = ()
    noise: tuple = ()


@dataclass(frozen=True, eq=False)
class Stage:
    """Work on all units of a sequence before a step can go on: a further product, or sums over units.

    A product: some rows of R multiply not h' but a vector v, made of what is known by then.

        forward(ax, ah, state, given)                                    -> v
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> d_ah of its gates

    Sums: numbers of all units of one sequence are added up, and all its units see the totals.

        forward(ax, ah, state, given)                                    -> its sums' terms, a tuple
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> terms of their gradients

    Or in place of their sum the largest of the terms (`largest`), through which no gradient flows: backward's terms are
    0, and engines leave them out.

    forward must read those gates of ah and those sums only that come before this stage's; backward those of d_v (one
    per product) and of d_sums only that come after it.

    Attributes:
        gates: of a product: names of its gates of ah.
        sums: of sums: their names.
        largest: of sums: the largest terms stand in their place.
    """

    gates: tuple[str, ...]
    forward: Callable
    backward: Callable
    sums: tuple[str, ...] = ()
    largest: bool = False


@dataclass(frozen=True)
class Noise:
    """A random number per unit, sequence and step: 0 with probability `rate`, else `kept`; in inference always `mean`.
    If it is `uniform`, it is one of 2^24 numbers from 0 to 1, in equal distances.

    With `each_step` there is another one in each step; else one for all steps of a sequence in a direction. Random
    words of 32 bits below `threshold` make 0.
    """

    rate: float
    kept: float = 1.0
    mean: float = 1.0
    each_step: bool = True
    uniform: bool = False

    threshold = property(lambda self: round(self.rate * 2**32))
    form = property(lambda self: NoiseForm(self.each_step, self.kept == 1.0, self.mean == 1.0, self.uniform))


class NoiseForm(NamedTuple):
    """The part of a `Noise` that is compiled in; all else are arguments (`Chances`), the same code for all rates.
    Where `kept` or `mean` is 1, as zoneout's and dropout's, nothing is multiplied."""

    each_step: bool
    kept_is_one: bool
    mean_is_one: bool
    uniform: bool


class Chances(NamedTuple):
    """The numbers of a cell's `Noise`, in their order, as arguments of compiled code.

    Attributes:
        thresholds: in training each one's threshold, uint64; in inference None, as nothing is drawn.
        values: in training what each is where it is not 0; in inference its mean. Of the dtype of c.
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

    All arguments and results are tuples of scalars. `saved` is what backward needs beyond the states; `d_state` is the
    gradient of `new_state`; `d_state_before` is the part of the previous state's gradient that does not go through R.

    A `general` cell may have parameters per unit, `per_unit`, other gates of ah than of ax, random numbers, `noise`,
    and `stages`: further products, whose gates of ah come after those that multiply h', and sums over units:

        forward(ax, ah, state, given)                                    -> new_state, saved
        backward(saved, state, new_state, d_state, d_v, d_sums, given)   -> d_ax, d_ah, d_state_before, d_per_unit

    `given` is a `Given`; `d_v` is the gradient of each product's vector, `d_sums` that of each sum; `d_ah` is that of
    the gates that multiply h' itself.

    Attributes:
        name: such as "lstm"; one of `numbarnn.cells.CELLS`, or a variant's own.
        gates: names of the gates of ax, in the order of the rows of W.
        states: state names; the first is h, which is the output.
        saved: names of the values kept per step and unit for backward.
        same_gradient: d_ah equals d_ax for every gate, so that it is stored once.
        recurrent: names of the gates of ah that multiply h' itself; None: those of ax.
        stages: further products and sums, in their order.
        per_unit: names of the parameters per unit.
        noise: the `Noise` of each random number that a unit gets in each step.
        heads: R's matrices are this many blocks on the diagonal: units see those of their own block alone.
        drop_connect: for each gate of ah the probability with which a training call takes a weight of R as 0, the same
            for all steps, the others times 1 / (1 - p); empty: no weight.
        initial: (name of a parameter in the equations; what it begins with in a new layer, as `numbarnn.cells.begin`
            has it).
        projected: h is a product W_hr m of what the functions call their first state; a layer says how wide.
        bias: the biases it has, one of `numbarnn.weights.BIAS_MODES`; None: as the layer's user wants.
        general: the wider signatures.
        source: of generated functions, all their text: what was compiled from it is known by that.
        layout: the names of its parameters, and how what kernels read is made of them; None: as `layout.usual` says.
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

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):  # nothing in it changes, and what was compiled is known by the object
        return self

    def __reduce__(self):
        """Cells are pickled by name; one made of functions of one's own as `Cell(...)` as the names of these."""
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
    num_products = cached_property(lambda self: len(self.product_stages))  # further ones per step: S
    num_sums = cached_property(lambda self: self.first_sum(len(self.stages)))  # over units, per step: Q
    noise_forms = cached_property(lambda self: tuple(one.form for one in self.noise))

    @cached_property
    def parameters(self):
        """Its parameters by name, a `Layout`."""
        return usual(self) if self.layout is None else self.layout

    @cached_property
    def rows(self):
        """Name of an array of parameters, such as "weight_ih" -> the names of the parameters that stand in it, one
        after another. All others are arrays of their own."""
        return {STACKED[kind]: names for kind, names in self.parameters.rows.items()}

    # Of a stage: its number; the number of stages stands for the cell's own functions, which come last.
    def first_of_stage(self, stage):
        """Number of the first gate of ah of a stage."""
        return self.num_recurrent + sum(len(one.gates) for one in self.stages[:stage])

    def rows_of_stage(self, stage, H):
        """The slice of R's rows that are a stage's; of ah's columns too."""
        return slice(self.first_of_stage(stage) * H, self.first_of_stage(stage + 1) * H)

    @cached_property
    def product_stages(self):
        """Numbers of the stages that are products."""
        return tuple(number for number, stage in enumerate(self.stages) if stage.gates)

    def product_number(self, stage):
        """Number of a product stage among those: which columns of v are its own."""
        return sum(1 for one in self.product_stages if one < stage)

    def first_sum(self, stage):
        """Number of the first sum of a stage."""
        return sum(len(one.sums) for one in self.stages[:stage])

    def sums_before(self, stage):
        """Numbers of the stages of sums right before a stage, in their order."""
        first = stage
        while first > 0 and self.stages[first - 1].sums:
            first -= 1
        return tuple(range(first, stage))

    def sums_after(self, stage):
        """Numbers of the stages of sums right after a stage, the last one first: those whose gradients its backward
        waits for; of stage -1, those that the cell's own backward waits for. Stages of the largest have none."""
        last = stage + 1
        while last < len(self.stages) and self.stages[last].sums:
            last += 1
        return tuple(number for number in range(last - 1, stage, -1) if not self.stages[number].largest)


CELLS = {}  #: name -> `Cell`, of those that are known by a name alone; `numbarnn.cells` fills it


def get(cell: str | Cell) -> Cell:
    """The `Cell` of that name; a `Cell` is returned as it is.

    Raises:
        ValueError: no cell has the name.
        TypeError: it is a function.
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
