"""Every shipped kernel, compiled for the devices of three generations: no spills, no stray float64.

What the kernels compute is tested in the simulator (tests/simulated) and on a GPU (tests/layers/test_gpu.py).
"""

from dataclasses import replace

import pytest

import ptx_checks
import real_sizes
from general_cells import WRITTEN
from numbarnn.bench import planned
from numbarnn.bench.kernels import compile_row
from numbarnn.kernels import catalog
from numbarnn.kernels.step import pointwise, stages, unit_sums
from numbarnn.schedules.persistent import planner
from planned_problems import shipped_kernels

DEVICES = [(8, 0), (9, 0), (10, 0)]
KERNELS = list(catalog.shipped_kernels())
REGISTERS = 65536  # of a multiprocessor
THREADS = 512  # of its 2048, that should at least fit


pytestmark = pytest.mark.usefixtures("toolchain")


def least_threads(shipped, compiled):
    """How many a multiprocessor should hold: one block of those whose threads work together all along."""
    adds_up = shipped.function.__module__ in (pointwise.__name__, stages.__name__) and compiled.shared_bytes > 0
    return shipped.threads if adds_up or shipped.function.__module__ in ptx_checks.PERSISTENT else THREADS


def everything():
    """Every kernel for every device with `full`; else one of each kind for one device, in dtypes in turn: of persistent
    ones a backward kernel, for the oldest device (test_machine_code.py has a forward one)."""
    for cc in DEVICES:
        kinds = {}
        for shipped in shipped_kernels(cc):
            kinds.setdefault(shipped.function.__qualname__, []).append(shipped)
        for place, (kind, of_kind) in enumerate(kinds.items()):
            device = None if "persistent_forward" in kind else (8, 0) if "persistent" in kind else (9, 0)
            usual = of_kind[place % len(of_kind)] if cc == device else None
            for shipped in of_kind:
                marks = [] if shipped is usual else [pytest.mark.full]
                yield pytest.param(shipped, cc, id=f"{shipped}-sm_{cc[0]}{cc[1]}", marks=marks)


@pytest.mark.parametrize("shipped, cc", list(everything()))
def test_compiles_without_spills_and_without_stray_float64(written_ptx, shipped, cc):
    compiled = shipped.compile(cc)
    assert compiled.cc == cc and compiled.cubin[:4] == b"\x7fELF"
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    resident = REGISTERS // (compiled.registers * shipped.threads) * shipped.threads
    assert resident >= least_threads(shipped, compiled), f"{compiled.registers} registers: {resident} threads"
    assert compiled.shared_bytes + shipped.dynamic_shared_bytes <= planned.profile_for(cc).shared_bytes
    (text,) = written_ptx
    assert f".target sm_{cc[0]}{cc[1]}" in text
    ptx_checks.require_all(text, shipped)


def general_kernels():
    """Of hand-written general cells: what a user's own cell brings with it."""
    few = {"blend": ("float32", "float16"), "chain": ("float32",), "peephole": ("bfloat16",), "noisy": ("float32",)}
    few |= {"normed": ("bfloat16",), "ladder": ("float32",), "noisy_mean": ("float16",), "drawn": ("float32",)}
    for name, dtypes in few.items():
        cell = WRITTEN[name]
        for dtype in dtypes:
            yield from catalog.stage_kernels_of(cell, dtype)
            for masked in (False, True):
                yield from catalog.pointwise_kernels_of(cell, dtype, masked)


@pytest.mark.parametrize("shipped", [pytest.param(shipped, marks=[pytest.mark.full] if number % 23 else [])
                                     for number, shipped in enumerate(general_kernels())], ids=str)  # fmt: skip
def test_kernels_of_general_cells_compile_likewise(written_ptx, shipped):
    compiled = shipped.compile((9, 0))
    assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    assert compiled.registers * least_threads(shipped, compiled) <= REGISTERS
    assert compiled.shared_bytes <= unit_sums.SHARED_BYTES
    ptx_checks.require_no_double(*written_ptx)


@pytest.mark.full  # the largest take half a minute and a gigabyte to compile
@pytest.mark.parametrize("problem", real_sizes.PROBLEMS, ids=real_sizes.name_of)
def test_kernels_of_all_recorded_sizes_spill_no_register(problem):
    """`numbarnn kernels` compiles a choice of problems. GRU's backward of (25, 64, 1024) spilled."""
    cell, dtype, shape = problem
    sizes = planned.problem(cell, dtype, (shape.H,) * shape.L, shape.B)
    sizes = replace(sizes, profile=planned.profile_for((9, 0)), steps=shape.T, input_size=shape.I)
    for way in (False, True):
        for launch in planner.plan_launches(sizes, sizes.profile, way):
            row = compile_row(planned.persistent_kernel(sizes, launch), "sm_90")
            assert row["spill_bytes"] == 0, row
