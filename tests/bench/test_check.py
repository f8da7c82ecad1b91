"""`numbarnn check`: passes what is right, fails what is wrong, and swallows nothing."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from numbarnn import cli, engines
from numbarnn.bench import accuracy, cases, check, console, spreads
from numbarnn.common import precision
from stub_layer import use_stub

KEYS = {"cell", "options", "engine", "schedule", "quantity", "error", "limit", "ok", "cudnn_error", "ratio", "uses"}
OUTPUTS = {"lstm": {"y", "hy", "cy", "dx", "dhx", "dcx"}, "gru": {"y", "hy", "dx", "dhx"}}
OUTPUTS |= {"traced_lstm": OUTPUTS["lstm"], "layer_norm_rnn": OUTPUTS["gru"]}


@pytest.fixture
def run_check(command):
    return partial(command, "check", "--device", "cpu")


# Quick cases of every cell; all cases with -m full.
CASES = [(cell, "quick") for cell in cases.ALL_CELLS]
CASES += [pytest.param(cell, "full", marks=pytest.mark.full) for cell in cases.ALL_CELLS]


@pytest.mark.parametrize("cell, size", CASES)
def test_right_results_pass_in_every_case(cell, size, run_check, stub, capsys):
    rows = run_check("--cell", cell, "--schedule", "stepwise", *["--quick"] * (size == "quick"))
    assert all(row["ok"] and row.keys() >= KEYS for row in rows)
    wanted = spreads.all_cases(cell, size)
    assert {row["options"] for row in rows} == {case.options for case in wanted}
    assert {row["mode"] for row in rows} - {"single steps"} == {"inference", "training"}
    assert cell == "traced_lstm" or "single steps" in {row["mode"] for row in rows}  # its quick cases have none
    assert f"all {len(rows)} passed" in capsys.readouterr().out


def quantities(cell):
    return [*sorted(OUTPUTS[cell]), "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0_reverse"]


@pytest.mark.parametrize("quantity", quantities("lstm"))
def test_a_wrong_result_fails(quantity, run_check, monkeypatch, capsys):
    use_stub(monkeypatch, lambda name, array: array + 1e-3 if name == quantity else array)
    rows = run_check("--quick", "--cell", "lstm", "--schedule", "stepwise", code=1)
    failed = [row for row in rows if not row["ok"]]
    # a step by step run carries the wrong state on into other quantities
    assert {row["quantity"] for row in failed if row["mode"] != "single steps"} == {quantity}
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("spoil, words", [
    (lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array), "NaN"),
    (lambda array: array.astype(np.float64 if array.dtype == np.float32 else np.float32), "dtype"),
    (lambda array: array[:-1], "shape"),
])  # fmt: skip
def test_what_is_no_number_or_has_the_wrong_shape_or_dtype_fails(spoil, words):
    comparer = check.Comparer(cases.Case("gru", 2, 3, 4, (5,)), "cpu", "stepwise")
    truth = {"y": np.ones((2, 3, 5))}
    comparer.compare("training", {"y": spoil(np.ones((2, 3, 5), np.float32))}, {"truth": truth})
    (row,) = comparer.rows
    assert not row["ok"] and words in row["message"]


def test_a_missing_or_unexpected_result_fails():
    comparer = check.Comparer(cases.Case("gru", 2, 3, 4, (5,)), "cpu", "stepwise")
    comparer.compare("training", {"z": np.ones(3)}, {"truth": {"y": np.ones(3)}}, needed=("y",))
    assert [(row["quantity"], row["ok"]) for row in comparer.rows] == [("y", False), ("z", False)]


@pytest.mark.parametrize("least, code", [(2, 0), (99, 1)])
def test_cases_that_a_schedule_refuses_are_counted(least, code, run_check, monkeypatch, stub, capsys):
    """They are no failures; but a check that compares nothing does not pass."""

    def explain(self, shape):
        if self.case.T < least:
            raise RuntimeError(f"T={self.case.T} is too short")
        return "a stub\nstepwise"

    monkeypatch.setattr("stub_layer.StubLayer.explain", explain)
    rows = run_check("--quick", "--cell", "rnn_tanh", "--schedule", "stepwise", code=code)
    refused = [row for row in rows if row["mode"] == check.REFUSED]
    assert refused and all(row["ok"] and row["message"].endswith("too short") for row in refused)
    said = capsys.readouterr().out
    assert f"stepwise refuses {len(refused)} cases" in said and f"all {len(rows) - len(refused)} passed" in said


@pytest.mark.parametrize("method, mode", [("__call__", "inference"), ("backward", "training")])
def test_an_exception_is_a_failed_row_that_names_it(method, mode, run_check, monkeypatch, stub, capsys):
    def broken(*arguments, **options):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(f"stub_layer.StubLayer.{method}", broken)
    rows = run_check("--quick", "--cell", "gru", "--schedule", "stepwise", code=1)
    failed = [row for row in rows if not row["ok"]]
    assert mode in {row["mode"] for row in failed}
    assert all("ZeroDivisionError: on purpose" in row["message"] for row in failed)
    assert "ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    "ulps", [{"float32": (10, 12)}, {"float64": (10, 12)}, {"float16": (3, 4)}, {"bfloat16": (3, 4)}]
)
def test_how_large_an_error_fails(ulps):
    """In numbers of its own: limits that grow let a wrong constant of a gate's derivative pass."""
    ((dtype, (passing, failing)),) = ulps.items()
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    case, eps = cases.Case("gru", 2, 3, 4, (60,), dtype=dtype), 2.0 ** -accuracy.FRACTION_BITS[dtype]
    truth = {"y": np.ones((2, 3, 60))}
    for times, ok in ((passing, True), (failing, False)):
        comparer = check.Comparer(case, "cpu", "stepwise")
        wrong = (truth["y"] + times * eps * (np.arange(60) == 7)).astype(precision.numpy_dtype(dtype))
        comparer.compare("training", {"y": wrong}, {"truth": truth, "torch": truth})
        assert [row["ok"] for row in comparer.rows] == [ok], times


def test_the_limit_is_twice_pytorchs_error_and_at_least_the_floor():
    case = cases.Case("gru", 2, 3, 4, (60,))
    floor = np.finfo(np.float32).eps * (accuracy.FUNCTION_ULPS + 8)
    assert accuracy.floor(case) == pytest.approx(floor)
    assert accuracy.limit(case) == accuracy.limit(case, 0.0) == accuracy.floor(case)
    assert accuracy.limit(case, 3 * floor) == pytest.approx(6 * floor)
    beyond = accuracy.limit(case, 1.0), accuracy.limit(case, 5 * floor)  # no peer errs like that
    assert beyond == (accuracy.floor(case),) * 2
    assert accuracy.floor(replace(case, dtype="float64")) == pytest.approx(floor * 2**-29)
    half = accuracy.floor(replace(case, dtype="bfloat16"))  # stored in bfloat16, summed in float32
    assert half == pytest.approx(2**-7 * accuracy.FUNCTION_ULPS + 8 * np.finfo(np.float32).eps)
    assert accuracy.error(np.array([1.0, 30.0]), np.array([1.5, 20.0])) == 0.5
    assert accuracy.error(np.array([0.1]), np.array([0.2])) == pytest.approx(0.1)


def test_an_engine_that_does_not_start_is_a_failure(monkeypatch, capsys):
    def get(device="auto"):
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(engines, "available", lambda: ["cpu"], raising=False)
    monkeypatch.setattr(engines, "get", get, raising=False)
    assert cli.main(["check", "--device", "cuda"]) == 1
    assert "no GPU here" in capsys.readouterr().out


# ---- what is run ----


# ---- the real engine ----


@pytest.mark.parametrize(
    "names", ["gru,layer_norm_rnn", pytest.param(",".join(cases.ALL_CELLS), marks=pytest.mark.full)]
)
def test_the_cpu_engine_passes(run_check, names):
    assert {row["cell"] for row in run_check("--quick", "--cell", names)} == set(names.split(","))


def child_that(monkeypatch, code):
    """Replaces `python -m numbarnn` in the child process by Python code; `sys.argv[1:]` are its arguments."""
    popen = console.subprocess.Popen
    monkeypatch.setattr(
        console.subprocess, "Popen", lambda command, **options: popen([command[0], "-c", code, *command[3:]], **options)
    )
    return check.check_simulated(["gru"], ["stepwise"], True)


def test_the_simulators_rows_are_merged(monkeypatch):
    row = check.engine_failure("sim", "none") | {"ok": True}
    code = (
        "import sys, json;"
        f"json.dump([json.loads('''{json.dumps(row)}''')], open(sys.argv[sys.argv.index('--json') + 1], 'w'))"
    )
    (found,) = child_that(monkeypatch, code)
    assert found["ok"] and found["engine"] == "sim"


@pytest.mark.parametrize("code, words", [
    ("raise SystemExit('no simulator')", "no simulator"), ("import os; os.abort()", "exit code -6"),
    ("import time; time.sleep(600)", "more than 0.5 s"),
])  # fmt: skip
def test_a_simulator_that_does_not_start_or_hangs_is_a_failure(code, words, monkeypatch):
    if "sleep" in code:
        monkeypatch.setattr(check, "TIMEOUT_S", 0.5)
    (row,) = child_that(monkeypatch, code)
    assert not row["ok"] and row["engine"] == "sim" and words in row["message"]
