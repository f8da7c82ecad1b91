"""Estimate a training call with and without checkpoints: bytes and time, before it is made."""

from dataclasses import dataclass, replace

from numbarnn.programs.checkpoints import checkpoint_buffers, segments_of
from numbarnn.programs.forward import tape_buffers
from numbarnn.programs.program import Places
from numbarnn.schedules.explain import explain, option_of, wider


@dataclass(frozen=True)
class Costs:
    """The costs of a call with checkpoints.

    Attributes:
        steps: k. segments: how many there are, of all layers and directions that are gone through one by one.
        kept: bytes from forward to backward, besides x, y and the weights. at_work: those of a segment, meanwhile.
        kept_without: bytes that the same call keeps without checkpoints.
        microseconds, microseconds_without: the estimate for launches, forward and backward; None where there is none.
    """

    steps: int
    segments: int
    kept: int
    at_work: int
    kept_without: int
    microseconds: float | None
    microseconds_without: float | None

    def __str__(self):
        kept, at_work, without = (f"{size / 2**20:,.3g} MiB" for size in (self.kept, self.at_work, self.kept_without))
        time = "about one forward pass more"
        if self.microseconds is not None:
            time = f"{self.microseconds:,.0f} µs in launches in place of {self.microseconds_without:,.0f}"
        return (
            f"checkpoint_every={self.steps}: {self.segments} segments. The tape keeps {kept}, and a segment at work "
            f"has {at_work}, in place of {without}, of which y is a part. Forward is computed twice: {time}"
        )


def costs_of(schedule, problem):
    """The `Costs` of a call with checkpoints.

    Raises:
        RuntimeError: the schedule cannot run it; says why, with the numbers.
    """
    without, parts = replace(problem, checkpoint_every=0), segments_of(problem)
    of_parts = [_times(count, _microseconds(schedule, part, 2)) for part, count in parts.items()]
    times = [_sum(of_parts), _microseconds(schedule, without, 1)]
    return Costs(
        problem.checkpoint_every,
        parts.total(),
        Places(problem, checkpoint_buffers(problem)).size,
        max(Places(part, tape_buffers(part)).size for part in parts),
        Places(without, tape_buffers(without)).size,
        *(times if None not in times else (None, None)),
    )


def lines_about(schedule, problem):
    """Return the lines of `numbarnn.LSTM.explain` on a training call; with checkpoints also their costs, and the
    lines of each kind of segment.

    Raises:
        RuntimeError: the schedule cannot run it; says why, with the numbers.
    """
    lines, parts = [], [problem]
    if problem.has_checkpoints:
        lines = [str(costs_of(schedule, problem))]
        parts = [part for part in segments_of(problem) if part.steps == problem.checkpoint_every]
    for part in parts:
        lines += [f"a segment of {part.steps} steps:"] if part.is_segment else []
        lines += [str(explain(schedule, part, backward)) for backward in (False, True)]
    return [*lines, *wider(problem)]


def _microseconds(schedule, problem, forwards):
    """The estimate for so many forward passes and one backward pass; None without one."""
    forward, backward = (option_of(schedule.pick(problem)[0], problem, back).microseconds for back in (False, True))
    return None if None in (forward, backward) else forwards * forward + backward


def _times(count, one):
    return None if one is None else count * one


def _sum(parts):
    return None if None in parts else sum(parts)
