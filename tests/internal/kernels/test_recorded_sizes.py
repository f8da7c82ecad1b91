"""The persistent kernels of the recorded benchmark sizes keep their numbers in registers.

`numbarnn kernels` compiles a choice of problems; here are all recorded ones. GRU's backward of (25, 64, 1024) spilled.
"""

from dataclasses import replace

import pytest

import real_sizes
from numbarnn.bench import kernels, planned
from numbarnn.schedules.persistent import planner


@pytest.mark.full  # the largest take half a minute and a gigabyte to compile
@pytest.mark.parametrize("problem", real_sizes.PROBLEMS, ids=real_sizes.name_of)
def test_no_register_is_spilled(problem):
    cell, dtype, shape = problem
    sizes = planned.problem(cell, dtype, (shape.H,) * shape.L, shape.B)
    sizes = replace(sizes, profile=planned.profile_for((9, 0)), steps=shape.T, input_size=shape.I)
    for backward in (False, True):
        for launch in planner.plan_launches(sizes, sizes.profile, backward):
            row = kernels.compile_row(planned.persistent_kernel(sizes, launch), "sm_90")
            assert row["spill_bytes"] == 0, row
