"""Explain a schedule's plan for a problem, and what others would do, for `layer.explain` and `numbarnn plan`."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numbarnn.common.precision import compute_dtype, numpy_dtype
from numbarnn.common.words import counted
from numbarnn.kernels.persistent.columns import GIVEN, INPUT
from numbarnn.schedules import SCHEDULES
from numbarnn.schedules.persistent import shares
from numbarnn.schedules.plan import Plan

FIRST_SHOWN, LAST_SHOWN = 8, 4  # tasks of a long plan


def wider(problem):
    """Yield a line for each layer that has a state of more units than h."""
    for layer, (units, width) in enumerate(zip(problem.units, problem.hidden_sizes, strict=False)):
        if width > units:
            yield f"layer {layer}: kernels have {width} units, as many as its largest state; h has {units}"


class StepPart(NamedTuple):
    """A part of a step that follows others; kind: "recurrent", "product", "sums" or "cell"; what: in words."""

    kind: str
    what: str


def parts_of_step(problem, backward):
    """Return the `StepPart`s of a step in order: those that wait for all units of the layer, and the cell's equations.
    Backward has them in reverse, without the largest of terms: no gradient flows through a maximum."""
    cell, parts = problem.cell, []
    if cell.num_recurrent:
        parts.append(StepPart("recurrent", f"the product of h with R ({counted(cell.num_recurrent, 'gate')})"))
    for stage in cell.stages:
        if stage.gates:
            parts.append(StepPart("product", f"a further product with R ({counted(len(stage.gates), 'gate')})"))
        elif not (backward and stage.largest):
            text = counted(len(stage.sums), "sum") if not stage.largest else f"{len(stage.sums)} of the largest"
            parts.append(StepPart("sums", f"{text} over units"))
    parts.append(StepPart("cell", "the cell's equations"))
    if problem.projection:
        parts.append(StepPart("product", "the product with W_hr"))
    return tuple(reversed(parts)) if backward else tuple(parts)


def step_lines(problem, backward):
    """Yield a line that describes a step if it is more than a product and the cell."""
    parts = parts_of_step(problem, backward)
    if len(parts) > 2:
        yield f"a step {'backward' if backward else 'forward'}: {', '.join(part.what for part in parts)}"


@dataclass(frozen=True)
class Option:
    """A schedule for one pass of a problem.

    Attributes:
        schedule: its name. plan: its plan; None if it cannot run the problem.
        refusal: why it cannot run the problem; None if it can.
    """

    schedule: str
    plan: Plan | None
    refusal: str | None = None

    @property
    def launches(self):
        """The plan's `planner.Launch`es, if it is persistent; else none."""
        return tuple(task.launch for task in self.plan.tasks if task.kind == "launch") if self.plan else ()

    @property
    def microseconds(self):
        """Estimated time of its launches; None if there is no estimate."""
        return sum(launch.microseconds for launch in self.launches) if self.launches else None

    @property
    def reason(self):
        """Its plan's reason, or why it cannot run the problem."""
        return f"cannot run it: {self.refusal}" if self.plan is None else self.plan.reason


@dataclass(frozen=True)
class Explanation:
    """Which schedule runs a pass, and why.

    Attributes:
        problem, backward: the pass. taken: the `Option` that runs.
        why: it was taken; None if it was asked for by name. others: the options of all other schedules.
    """

    problem: object
    backward: bool
    taken: Option
    why: str | None
    others: tuple[Option, ...]

    @property
    def head(self):
        """The schedule and why, as one line."""
        why = "" if self.why is None else f" (auto: {self.why})"
        direction = "backward" if self.backward else "forward"
        return f"{self.taken.schedule} {direction}: {self.taken.plan.reason}{why}"

    def __str__(self):
        lines = [self.head, *(f"  {line}" for line in step_lines(self.problem, self.backward))]
        for launch in self.taken.launches:
            lines.append(f"  {launch.layers}: {launch.details}")
            lines += [f"    {residence}" for residence in residences(self.problem, launch)]
        for option in self.others:
            if option.plan is None and self.problem.engine == "cpu":  # nothing is amiss
                lines.append(f"  {option.schedule} is for GPUs: `numbarnn plan` shows what one would do")
            else:
                lines.append(f"  instead, {option.schedule}: {option.reason}")
        return "\n".join([*lines, *task_lines(self.taken.plan)])


class Residence(NamedTuple):
    """The weights that the blocks of one layer multiply at each step of a launch.

    Attributes:
        layer: its number. blocks: per direction; blocks with the same units share the batch. units: per block, at most.
        R: (rows, columns) of a block's tile of the recurrent weights; None if it multiplies none.
        W: (rows, columns) of the input's weights, backward of the layer above; None too if one product over all steps
            replaces them.
        W_hr: (rows, columns) of a projection's weights, for a block that has outputs.
        block_bytes, total_bytes: of one block, and of all blocks of the layer, rows of zeros included.
        home: where they are: "registers", "shared memory", or several places with how much is in each.
    """

    layer: int
    blocks: int
    units: int
    R: tuple[int, int] | None
    W: tuple[int, int] | None
    W_hr: tuple[int, int] | None
    block_bytes: int
    total_bytes: int
    home: str

    def __str__(self):
        matrices = ("R", self.R), ("W", self.W), ("W_hr", self.W_hr)
        tiles = [f"{shape[0]} x {shape[1]} of {name}" for name, shape in matrices if shape]
        return (
            f"layer {self.layer}: {counted(self.blocks, 'block')} per direction, {self.units} units each; "
            f"{' and '.join(tiles) or 'no weights'}, "
            f"{self.block_bytes / 1024:.3g} KiB per block, in {self.home}; {self.total_bytes / 2**20:.3g} MiB in all"
        )


def residences(problem, launch):
    """Return a `Residence` for each layer of a launch, in order."""
    tile, cell, result, projects = launch.tile, problem.cell, [], shares.projection_kind(problem.cell)
    stored = np.dtype(compute_dtype(tile.dtype)) if tile.math == "fma" else numpy_dtype(tile.dtype)
    for layer in range(launch.first, launch.last):
        sources = shares.sources(problem, launch.first, layer, launch.last, launch.backward, tile)
        of_hr = [source.columns for source in sources if problem.projection and source.kind == projects]
        of_W = [source.columns for source in sources if source.kind in (INPUT, GIVEN)]
        of_R = [source.columns for source in sources if source.kind not in (INPUT, GIVEN)][: -1 if of_hr else None]
        rows, hidden = tile.rows_per_unit * tile.units, problem.hidden_sizes[layer]
        R, W, W_hr = (
            _shape_of_tile(launch, gates, columns)
            for gates, columns in ((cell.num_ah, of_R), (cell.num_gates, of_W), (1, of_hr))
        )
        blocks = -(-hidden // tile.units) * launch.slices
        row_bytes = sum(of_R + of_W + of_hr) * stored.itemsize
        result.append(
            Residence(
                layer, blocks, tile.units, R, W, W_hr,
                rows * row_bytes, problem.directions * launch.slices * rows // tile.units * hidden * row_bytes,
                launch.home,
            )
        )  # fmt: skip
    return result


def _shape_of_tile(launch, gates, columns):
    """Return `Residence.R`, `.W` or `.W_hr`.

    Forward the products with a matrix have different rows of it, and the same columns. Backward they have different
    columns.

    Args:
        gates: rows per unit, of all products. columns: of each product.
    """
    if not columns:
        return None
    tile = launch.tile
    if launch.backward:
        return tile.units, sum(columns)
    return gates * tile.units, columns[0]


def task_lines(plan):
    """Return the plan's tasks as numbered lines; of a long plan the first and the last."""
    lines = [f"  {number:3d}  {task}" for number, task in enumerate(plan.tasks)]
    left_out = len(lines) - FIRST_SHOWN - LAST_SHOWN
    return lines if left_out <= 1 else [*lines[:FIRST_SHOWN], f"  ... {left_out} more", *lines[-LAST_SHOWN:]]


def explain(schedule, problem, backward):
    """Return the `Explanation` of a pass.

    Args:
        schedule: a `Schedule`, as `numbarnn.schedules.choose` returns it.

    Raises:
        RuntimeError: the schedule cannot run the problem; says why, with the numbers.
    """
    chosen, why = schedule.pick(problem)
    option = option_of(chosen, problem, backward)
    others = tuple(_try(other, problem, backward) for other in SCHEDULES.values() if other.name != chosen.name)
    return Explanation(problem, backward, option, why, others)


def option_of(schedule, problem, backward):
    """Return a schedule's `Option` for a pass.

    Raises:
        RuntimeError: the schedule cannot run the problem; says why, with the numbers.
    """
    plan = schedule.plan_backward(problem) if backward else schedule.plan_forward(problem)
    return Option(schedule.name, plan)


def _try(schedule, problem, backward):
    """Return a schedule's `Option` for a pass, also if it cannot run it."""
    try:
        return option_of(schedule, problem, backward)
    except RuntimeError as reason:
        return Option(schedule.name, None, refusal=str(reason))
