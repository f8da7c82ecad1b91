"""What tests of exchanges within a step share: wrong tables, warps that are late, a block that keeps silent."""

import test_persistent_mutants
from test_persistent_mutants import RIGHT, WRONG, replaced, symptom_of

from numbarnn.kernels.persistent import within
from numbarnn.kernels.persistent.columns import STAGE, WARP
from numbarnn.passes import launches

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
    """A block that does not publish at a step what others wait for within it is reported; see
    `test_persistent_mutants.check_silence`."""
    message = rf"layer 0, direction 0, .* in this very step .* at step {step} of the "
    test_persistent_mutants.check_silence(monkeypatch, case, message, backward, store)
