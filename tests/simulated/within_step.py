"""What tests of exchanges within a step share: wrong tables, warps that are late, a block that keeps silent."""

import pytest
from test_persistent_mutants import RIGHT, WRONG, replaced, symptom_of

from comparing import assert_close
from kernel_mutants import mutant
from numbarnn.cuda import ptx, simulator
from numbarnn.kernels.persistent import within
from numbarnn.kernels.persistent.columns import STAGE, WARP
from numbarnn.passes import launches
from problems import make_problem
from running import infer

BARRIER = "        cuda.syncthreads()\n        return True"
MULTIPLIES = "        if share.stage == product:\n"
LATE = "        for _ in range(60 * (share.stage == product)):\n            ptx.sleep(0)\n"


def mutants_of_late_warps(case):
    """Of `within.make_multiply`: what these warps give is waited for, by a barrier alone."""
    late = replaced(MULTIPLIES, LATE + MULTIPLIES)
    no_barrier = replaced(BARRIER, "        return True")
    return {
        "warps of a stage that are late": (case, within, "make_multiply", RIGHT, late),
        "what they give added before it is there": (
            case, within, "make_multiply", WRONG, lambda source: no_barrier(late(source))
        ),
    }  # fmt: skip


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
    """A block that does not publish at a step what others wait for within it is reported; later calls are right.

    Args:
        store: in place of `ptx.store`.
    """
    problem, layer = make_problem(case), case.layer("sim", schedule="persistent")
    monkeypatch.setattr(launches, "POLLS", 400)
    monkeypatch.setattr(launches, "POLLS_PER_STEP", 0)
    message = rf"layer 0, direction 0, .* in this very step .* at step {step} of the "
    tape = layer.forward(problem.x)[2] if backward else None
    with simulator.schedule(0, 1000), mutant(ptx, "store", store):
        if backward:
            with pytest.raises(RuntimeError, match=message + "backward pass"):
                layer.backward(tape, problem.dy)
        else:
            with pytest.raises(RuntimeError, match=message + "forward pass"):
                layer.forward(problem.x)
    assert_close(case, infer(layer, problem), infer(case.layer("sim", schedule="stepwise"), problem))
