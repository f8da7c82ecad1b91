"""What must hold of the launches that the planner of the persistent schedule makes, whatever they are for."""

from typing import NamedTuple

import pytest

from numbarnn.schedules.persistent import planner, tilings


def check_launches(problem, backward):
    """The launches, after everything that must hold for them."""
    profile = problem.profile
    launches = planner.plan_launches(problem, profile, backward)
    ordered = launches[::-1] if backward else launches
    layers = [layer for launch in ordered for layer in range(launch.first, launch.last)]
    assert layers == list(range(problem.layers)), "each layer once, in order"
    for launch in launches:
        tile, hidden = launch.tile, problem.hidden_sizes[launch.first : launch.last]
        assert launch.blocks == launch.slices * sum(problem.directions * -(-size // tile.units) for size in hidden)
        assert 0 <= launch.slices * launch.sequences - problem.batch < launch.sequences
        assert launch.blocks <= profile.multiprocessors
        assert launch.shared_bytes == tile.shared_bytes(launch.sequences, problem.cell.num_states)
        assert launch.shared_bytes + tilings.STATIC_SHARED_BYTES <= profile.shared_bytes
        assert tile.threads <= 1024 and tile.chunks % tile.gathered == 0
        assert (tile.math == "fma") or profile.tensor_cores
        step = launch.estimate
        parts = {name: getattr(step, name) for name in ("exchange", "within", "read", "multiply", "add")}
        exchanges = len(problem.cell.stages) > 0 or problem.projection > 0
        assert (step.within > 0) == (step.rounds > 0) <= exchanges
        assert min(tile.register_chunks, tile.shared_chunks) >= 0
        assert tile.math != "fma" or tile.register_chunks in (0, tile.chunks)
        assert min(parts.values()) >= 0 and parts[step.bound] == max(parts.values())
        assert step.step == pytest.approx(sum(parts.values()))
        assert launch.microseconds > problem.steps * step.step
    return launches


class Sized(NamedTuple):
    """A `tables.WeightOffsets`, and how many elements stand there."""

    W: int
    R: int
    b_w: int = 0
    b_r: int = 0
    per_unit: int = -1
    W_size: int = 0
    R_size: int = 0
