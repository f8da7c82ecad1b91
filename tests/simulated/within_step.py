"""What tests of exchanges within a step share: wrong tables, warps that are late, a block that keeps silent."""

import pytest
import test_persistent_mutants
from test_persistent_mutants import RIGHT, WRONG, replaced, symptom_of, written_anew
from test_persistent_simulated import check

from comparing import assert_close
from grouped_tiles import launches_of
from kernel_mutants import mutant
from numbarnn import engines
from numbarnn.cuda import simulator
from numbarnn.engines.gpu import launches
from numbarnn.kernels.persistent import within
from numbarnn.kernels.persistent.columns import STAGE, WARP
from problems import make_problem
from running import infer

BARRIER = "        cuda.syncthreads()\n"
MULTIPLIES = "        if role.warp.kind == kind:\n"
LATE = "        for _ in range(60 * (role.warp.kind == kind)):\n            products.mma.ptx.sleep(0)\n"


def mutants_of_late_warps(case):
    """Of `within.make_multiply`: what these warps give is waited for, by a barrier alone."""
    late = replaced(MULTIPLIES, LATE + MULTIPLIES)
    no_barrier = replaced(BARRIER, "")
    return {
        "warps of a stage that are late": (case, within, "make_multiply", RIGHT, late),
        "what they give added before it is there": (
            case, within, "make_multiply", WRONG, lambda source: no_barrier(late(source))
        ),
    }  # fmt: skip


def check_slices(change, case):
    """Blocks wait for those that have the same sequences, and agree with float64; change: see `persistent_setup`."""
    change(multiprocessors=6, SLICES=(2,))
    assert {launch.slices for launch in launches_of(case)} == {2}
    check(case)


def check_mutant(change, case, module, factory, shows, edit):
    """How it shows that a kernel's factory has been edited so."""
    change(warps=(4,))
    with mutant(module, factory, written_anew(module, factory, edit)):
        assert str(symptom_of(case)) == str(shows)


def check_leftovers(monkeypatch, case, is_exchanged, left=0.5):
    """What an earlier call left in arrays that is_exchanged(array) names is found, where it is not marked."""
    engine, layer, problem = engines.get("sim"), case.layer("sim", schedule="persistent"), make_problem(case)
    mark, first = engine.mark_unwritten, infer(layer, problem)
    leave = lambda array: array.fill(left) if is_exchanged(array) else mark(array)  # noqa: E731
    monkeypatch.setattr(engine, "mark_unwritten", leave, raising=False)
    with simulator.schedule(0), pytest.raises(AssertionError):
        assert_close(case, infer(layer, problem), first, "inference")


def check_wrong_table(monkeypatch, case, column, by, shows):
    """How it shows that in the rows of warps that multiply within a step a column is wrong by so much."""
    make_tables = launches.make_tables

    def wrong(*arguments):
        blocks, warps = (table.copy() for table in make_tables(*arguments))
        warps[..., getattr(WARP, column)][(warps[..., WARP.kind] >= STAGE)] += by
        return blocks, warps

    monkeypatch.setattr(launches, "make_tables", wrong)
    assert str(symptom_of(case)) == str(shows)


def check_silence(monkeypatch, case, step, backward, store):
    """A block that does not publish at a step what others wait for within it is reported; see
    `test_persistent_mutants.check_silence`."""
    message = rf"layer 0, direction 0, .* in this very step .* at step {step} of the "
    test_persistent_mutants.check_silence(monkeypatch, case, message, backward, store)
