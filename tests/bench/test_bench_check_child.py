"""`numbarnn check`: the simulator's part, in processes of its own."""

import json
from contextlib import nullcontext

import pytest

from numbarnn.bench import console
from numbarnn.bench.cases import cases
from numbarnn.bench.check import accuracy, child
from numbarnn.bench.check import command as check
from numbarnn.schedules import SCHEDULES


def child_that(monkeypatch, code):
    """Replaces `python -m numbarnn` in the child process by Python code; `sys.argv[1:]` are its arguments."""
    popen = child.subprocess.Popen

    def start(command, **options):
        return popen([command[0], "-c", code, *command[3:]], **options)

    monkeypatch.setattr(child.subprocess, "Popen", start)
    with child.simulator_check(["gru"], ["stepwise"], True, console.Progress("none").__enter__()) as result:
        return result()


def test_the_simulators_rows_are_merged(monkeypatch):
    row = accuracy.Comparison("gru", "T=1", "sim", "stepwise", "training", "y", 0.0, 1e-6, True).as_row()
    code = (
        "import sys, os, json; assert os.environ['NUMBA_ENABLE_CUDASIM'] == '1';"
        "print('progress 1 2', file=sys.stderr);"
        f"json.dump([json.loads('''{json.dumps(row)}''')], open(sys.argv[sys.argv.index('--json') + 1], 'w'))"
    )
    (comparison,) = child_that(monkeypatch, code)
    assert comparison.ok and comparison.engine == "sim"


@pytest.mark.parametrize(
    "code, words", [("raise SystemExit('no simulator')", "no simulator"), ("import os; os.abort()", "exit code -6")]
)
def test_a_simulator_that_does_not_start_is_a_failure(code, words, monkeypatch):
    (comparison,) = child_that(monkeypatch, code)
    assert not comparison.ok and comparison.engine == "sim"
    assert words in comparison.message


def test_a_simulator_that_hangs_is_stopped(monkeypatch):
    monkeypatch.setattr(child, "TIMEOUT_S", 0.5)
    (comparison,) = child_that(monkeypatch, "import time; time.sleep(600)")
    assert not comparison.ok and "more than 0.5 s" in comparison.message


@pytest.mark.parametrize("count", (1, 2, 3, 50))
def test_processes_share_the_simulators_work(count):
    cells, schedules = list(cases.ALL_CELLS), list(SCHEDULES)
    shares = check.shares_of_cells(cells, schedules, count)
    assert sorted(cell for share in shares for cell in share) == sorted(cells)
    assert len(shares) == min(count, len(cells)) and all(shares)
    work = {cell: sum(len(own) for _, own in check.plan_cases("sim", [cell], schedules, False)) for cell in cells}
    sums = [sum(map(work.get, share)) for share in shares]
    assert max(sums) - min(sums) <= max(work.values())


def test_results_of_all_processes_are_there(monkeypatch):
    of_cells = lambda cells, *_: nullcontext(lambda: [f"of {cell}" for cell in cells])  # noqa: E731
    monkeypatch.setattr(child, "simulator_check", of_cells)
    with child.simulator_checks([["gru"], ["lstm", "rnn_relu"]], ["stepwise"], True, None) as result:
        assert result() == ["of gru", "of lstm", "of rnn_relu"]
