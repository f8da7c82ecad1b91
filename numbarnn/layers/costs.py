"""Estimate a training call with and without checkpoints: bytes and time, before it is made."""

import math
from dataclasses import dataclass, replace

from numbarnn.programs.checkpoints import checkpoint_buffers, segments_of
from numbarnn.programs.forward import tape_buffers
from numbarnn.programs.program import ReserveLayout
from numbarnn.schedules.explain import explain, option_of, wider


@dataclass(frozen=True)
class Costs:
    """The estimated costs of a training call with checkpoints.

    Attributes:
        steps: k. segments: number of segments that run one by one.
        kept: bytes that the tape keeps besides x, y and the weights. kept_without: the same bytes without checkpoints.
        at_work: bytes of the segment that is running.
        microseconds, microseconds_without: estimated time of kernel launches with and without checkpoints, or NaN.
    """

    steps: int
    segments: int
    kept: int
    at_work: int
    kept_without: int
    microseconds: float
    microseconds_without: float

    def __str__(self):
        kept, at_work, without = (f"{size / 2**20:,.3g} MiB" for size in (self.kept, self.at_work, self.kept_without))
        time = "about one forward pass more"
        if not math.isnan(self.microseconds + self.microseconds_without):
            time = f"{self.microseconds:,.0f} µs in launches in place of {self.microseconds_without:,.0f}"
        return (
            f"checkpoint_every={self.steps}: {self.segments} segments. The tape keeps {kept}, and a segment at work "
            f"has {at_work}, in place of {without}, of which y is a part. Forward is computed twice: {time}"
        )


def costs_of(schedule, problem):
    """Return the `Costs` of a call. RuntimeError, with the numbers, if the schedule cannot run it."""
    without, parts = replace(problem, checkpoint_every=0), segments_of(problem)
    return Costs(
        problem.checkpoint_every,
        parts.total(),
        ReserveLayout(problem, checkpoint_buffers(problem)).size,
        max(ReserveLayout(part, tape_buffers(part)).size for part in parts),
        ReserveLayout(without, tape_buffers(without)).size,
        sum(count * _microseconds(schedule, part, 2) for part, count in parts.items()),
        _microseconds(schedule, without, 1),
    )


def lines_about(schedule, problem):
    """Return the lines of `numbarnn.LSTM.explain`; with checkpoints also the costs and each kind of segment.
    RuntimeError, with the numbers, if the schedule cannot run the problem."""
    lines, parts = [], [problem]
    if problem.has_checkpoints:
        lines = [str(costs_of(schedule, problem))]
        parts = [part for part in segments_of(problem) if part.steps == problem.checkpoint_every]
    for part in parts:
        lines += [f"a segment of {part.steps} steps:"] if part.is_segment else []
        lines += [str(explain(schedule, part, backward)) for backward in (False, True)]
    return [*lines, *wider(problem)]


def _microseconds(schedule, problem, forwards):
    """Return the estimate for a number of forward passes and one backward pass; NaN if there is none."""
    times = [option_of(schedule.pick(problem)[0], problem, back).microseconds for back in (False, True)]
    return math.nan if None in times else forwards * times[0] + times[1]
