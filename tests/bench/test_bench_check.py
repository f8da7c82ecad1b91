"""`numbarnn check`: passes what is right, fails what is wrong, and swallows nothing."""

import importlib.util
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import boundaries
from numbarnn import cli, engines
from numbarnn.bench.cases import cases, spreads
from numbarnn.bench.check import accuracy, expected
from numbarnn.bench.check import command as check
from numbarnn.bench.peers import peers
from numbarnn.common import install, precision
from numbarnn.schedules import SCHEDULES
from stub_layer import StubLayer, use_stub

KEYS = {"cell", "options", "engine", "schedule", "quantity", "error", "limit", "ok", "cudnn_error", "ratio", "uses"}
OUTPUTS = {"lstm": {"y", "hy", "cy", "dx", "dhx", "dcx"}, "gru": {"y", "hy", "dx", "dhx"}}
OUTPUTS |= {"traced_lstm": OUTPUTS["lstm"], "layer_norm_rnn": OUTPUTS["gru"]}


@pytest.fixture
def run_check(command):
    return partial(command, "check", "--device", "cpu")


# All cases of those cells that are no others'; of the others the quick ones, of the LSTM all options once too.
EVERY_CASE = {"traced_lstm", "layer_norm_rnn"}
CASES = [(cell, "quick") for cell in cases.ALL_CELLS if cell not in EVERY_CASE] + [
    pytest.param(cell, "full", marks=[] if cell in EVERY_CASE else pytest.mark.full) for cell in cases.ALL_CELLS
]


@pytest.mark.parametrize("cell, size", CASES)
def test_right_results_pass_in_every_case(cell, size, run_check, stub, capsys):
    rows = run_check("--cell", cell, "--schedule", "stepwise", *["--quick"] * (size == "quick"))
    assert all(row["ok"] and row.keys() >= KEYS for row in rows)
    wanted = spreads.spread(cell, size) + spreads.boundary_cases(cell, "cpu") + spreads.half_precision(cell, size)
    assert {row["options"] for row in rows} == {case.options for case in wanted}
    assert {row["mode"] for row in rows} == {"inference", "single steps", "training"}
    assert f"all {len(rows)} passed" in capsys.readouterr().out


def test_right_results_pass_with_every_option_of_the_lstm(run_check, monkeypatch, stub):
    """The full check's options, in one size and dtype."""
    monkeypatch.setattr(spreads, "TIMES_AND_BATCHES", ((7, 3),))
    monkeypatch.setattr(spreads, "DTYPES", ("float32",))
    monkeypatch.setattr(spreads, "LONGER", ())
    for name in ("boundary_cases", "half_precision"):  # the quick cases have them too
        monkeypatch.setattr(spreads, name, lambda *_: [])
    rows = run_check("--cell", "lstm", "--schedule", "stepwise")
    assert all(row["ok"] for row in rows)
    assert len({row["options"] for row in rows}) == len(spreads.OPTION_SETS) + len(spreads.LSTM_OPTION_SETS)


@pytest.mark.parametrize("cell", OUTPUTS)
def test_rows_cover_every_quantity(cell, stub):
    for case in spreads.spread(cell, "quick"):
        rows = [row for row in check.check_case(case, "cpu") if row.mode == "training"]
        wanted = {"y", "hy", "cy"} if case.forward_only else OUTPUTS[cell] | set(cases.parameter_shapes(case))
        assert {row.quantity for row in rows if not row.quantity.startswith("dropout")} == wanted
        assert len(rows) == len({row.quantity for row in rows})


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
    comparer.compare("training", {"y": spoil(np.ones((2, 3, 5), np.float32))}, expected.Expectation(truth))
    assert [row.ok for row in comparer.comparisons] == [False]
    assert words in comparer.comparisons[0].message


def test_a_missing_or_unexpected_result_fails():
    comparer = check.Comparer(cases.Case("gru", 2, 3, 4, (5,)), "cpu", "stepwise")
    comparer.compare("training", {"z": np.ones(3)}, expected.Expectation({"y": np.ones(3)}), needed=("y",))
    assert [(row.quantity, row.ok) for row in comparer.comparisons] == [("y", False), ("z", False)]


def test_every_schedule_is_checked_and_can_be_chosen(run_check, monkeypatch, stub, refused):
    monkeypatch.setattr(check, "SCHEDULES", {"one": None, "two": None})
    rows = run_check("--quick", "--cell", "gru")
    assert {row["schedule"] for row in rows} == {"one", "two"}
    rows = run_check("--quick", "--cell", "gru", "--schedule", "two")
    assert {row["schedule"] for row in rows} == {"two"}
    assert "expected auto, one, two" in refused("check", "--schedule", "three")


def test_half_precision_is_checked(run_check, stub, capsys):
    rows = run_check("--quick", "--schedule", "stepwise")
    half = [row for row in rows if "float16" in row["options"]]
    assert {row["cell"] for row in half} == set(cases.ALL_CELLS) - {"rnn_relu"}
    words = {word for row in half for word in row["options"].split() if "float16" in word}
    assert words == {"float16", "bfloat16"} if importlib.util.find_spec("ml_dtypes") else {"float16"}


@pytest.mark.parametrize("width", (80, 100))
def test_sentences_wrap_at_the_width_of_the_output(run_check, stub, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    run_check("--quick", "--cell", "gru", "--schedule", "stepwise")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and "numbarnn check without --quick runs them all" in " ".join(lines)


def test_what_a_schedule_refuses_is_one_line_however_many_cases_and_cells(run_check, stub, monkeypatch, capsys):
    def explain(self, shape):
        raise RuntimeError("needs a GPU")

    monkeypatch.setattr("stub_layer.StubLayer.explain", explain)
    run_check("--quick", "--cell", "rnn_tanh,gru,lstm", "--schedule", "persistent", code=1)
    lines = capsys.readouterr().out.splitlines()
    assert sum("refuse" in line for line in lines) == 1
    assert re.search(r"persistent refuses \d+ cases on cpu, such as .*: needs a GPU", " ".join(lines))


@pytest.mark.parametrize("least, code", [(2, 0), (99, 1)])
def test_cases_that_a_schedule_refuses_are_counted(least, code, run_check, monkeypatch, stub, capsys):
    """They are no failures; but a check that compares nothing does not pass."""

    def explain(self, shape):
        if self.case.T < least:
            raise RuntimeError(f"T={self.case.T} is too short")
        return "a stub\nstepwise"

    monkeypatch.setattr("stub_layer.StubLayer.explain", explain)
    rows = run_check("--quick", "--cell", "rnn_tanh", "--schedule", "stepwise", code=code)
    refused = [row for row in rows if row["mode"] == accuracy.REFUSED]
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


@pytest.mark.parametrize("spoil, quantity", [
    (lambda mask: np.ones_like(mask), "dropout mask of call 1"),
    (lambda mask: mask * 1.01, "dropout mask of call 0"),
    (lambda mask: mask[::-1], "dropout mask of call 0"),
    (lambda mask: np.zeros_like(mask), "dropout rate of call 1"),
])  # fmt: skip
def test_wrong_dropout_masks_fail(spoil, quantity, monkeypatch):
    use_stub(monkeypatch, lambda name, array: spoil(array) if name == "dropout mask" else array)
    case = cases.Case("gru", 7, 3, 4, (33, 5), dropout=0.3)
    failed = {row.quantity for row in check.check_case(case, "cpu") if not row.ok}
    assert quantity in failed


@pytest.mark.parametrize("wrong", ("buffer", "names"))
def test_parameters_in_another_order_fail(wrong, monkeypatch, stub):
    make_layer, case = cases.make_layer, cases.Case("gru", 2, 3, 4, (5,))

    def in_another_order(*arguments, **options):
        layer = make_layer(*arguments, **options)
        if wrong == "names":
            layer.parameters = dict(reversed(layer.parameters.items()))
        else:
            layer.weights = np.roll(layer.weights, 15)
        return layer

    assert all(row.ok for row in check.check_case(case, "cpu"))
    monkeypatch.setattr(cases, "make_layer", in_another_order)
    (row,) = [row for row in check.check_case(case, "cpu") if not row.ok]
    assert row.quantity == "weights" and ("parameters are bias_hh_l0" in (row.message or "")) == (wrong == "names")


@pytest.mark.parametrize("wrong", ("mask", "results"))
def test_a_second_call_with_the_masks_of_the_first_fails(wrong, monkeypatch, stub):
    case = cases.Case("gru", 7, 3, 4, (33, 5), dropout=0.3)
    assert all(row.ok for row in check.check_case(case, "cpu"))
    name = {"mask": "dropout_masks", "results": "forward"}[wrong]
    right = getattr(StubLayer, name)

    def forgetful(self, *arguments, **options):
        if wrong == "mask":
            arguments[0].call = 0
        else:
            self.calls = 0
        return right(self, *arguments, **options)

    monkeypatch.setattr(StubLayer, name, forgetful)
    failed = {row.quantity for row in check.check_case(case, "cpu") if not row.ok}
    assert "dropout mask of call 1" in failed and "dropout mask of call 0" not in failed
    assert ("weight_hh_l1" in failed) == (wrong == "results")


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
        comparer.compare("training", {"y": wrong}, expected.Expectation(truth, torch=truth))
        assert [row.ok for row in comparer.comparisons] == [ok], times


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


def test_checks_without_pytorch(monkeypatch, stub, run_check, capsys):
    monkeypatch.setattr(peers, "installed", lambda *modules: False)
    rows = run_check("--quick", "--cell", "rnn_relu")
    assert {row["torch_error"] for row in rows} == {None}
    assert "PyTorch is not installed" in capsys.readouterr().out


def test_an_engine_that_does_not_start_is_a_failure(monkeypatch, capsys):
    def get(device="auto"):
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(engines, "available", lambda: ["cpu"], raising=False)
    monkeypatch.setattr(engines, "get", get, raising=False)
    assert cli.main(["check", "--device", "cuda"]) == 1
    assert "no GPU here" in capsys.readouterr().out


# ---- what is run ----


@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_quick_cases_cross_every_boundary_of_the_engine(device):
    """Where this fails a constant of the engine has grown: `spreads.COMPILED_BOUNDARIES` needs larger sizes."""
    plan = check.plan_cases(device, cases.ALL_CELLS, list(SCHEDULES), True)
    assert boundaries.missing(plan, device) == []
    assert len(boundaries.missing([], device)) == len(boundaries.BOUNDARIES[device]) > 4


def test_a_constant_that_grows_is_missed(monkeypatch):
    plan = check.plan_cases("cpu", cases.ALL_CELLS, list(SCHEDULES), True)
    monkeypatch.setattr("numbarnn.engines.cpu.cell_steps.TILE", 512)
    assert boundaries.missing(plan, "cpu") == [
        "units of a thread beyond a tile, in the loops over steps",
        "terms of a sum over units beyond a tile",
        "threads that share units, and sums over units",
    ]


def test_quick_shows_every_cell_and_option_of_every_schedule_in_the_simulator():
    """What its help says, where schedules take turns in the options of a cell; in far fewer runs than all of them."""
    cells, schedules = cases.ALL_CELLS, list(SCHEDULES)
    runs = [(case, name) for case, names in check.plan_cases("sim", cells, schedules, True) for name in names]
    backward = [(case, name) for case, name in runs if case.T > 1 and not case.forward_only]
    lstm_only = {"proj_size", "cell_clip", "clip_propagate_nan"}
    for schedule in schedules:
        for seen in (
            {(case.cell, case.D) for case, name in backward if name == schedule},
            {(case.cell, 1 + (case.L > 1)) for case, name in backward if name == schedule},
            {(case.cell, 1 + bool(case.lengths or case.resets)) for case, name in backward if name == schedule},
        ):
            # a cell that is traced has one layer in none of its quick cases, and sequences of lengths in all
            assert seen >= {(cell, k) for cell in cases.CELLS for k in (1, 2)}, schedule
            assert {cell for cell, _ in seen} == set(cells), schedule
        seen = {option for case, name in runs if name == schedule for option in case.uses}
        assert seen == {*cases.OPTIONS} - {"gradients"}
        wanted = {"float32", "float16"} | ({"float64"} if schedule != "persistent" else set())
        assert {case.dtype for case, name in runs if name == schedule} >= wanted
    for cell in cases.CELLS:
        lacking = {"gradients"} | (set() if cell == "lstm" else lstm_only)
        assert {option for case, _ in runs if case.cell == cell for option in case.uses} == {*cases.OPTIONS} - lacking
    whole = [(case, name) for cell in cells for case in spreads.quick(cell, "sim") for name in schedules]
    assert len(runs) < 2 / 3 * len(whole)
    assert check.plan_cases("sim", cells, schedules, True) == check.plan_cases("sim", cells, schedules, True)


def test_what_quick_leaves_out_is_told():
    said = check.left_out(["cpu"], cases.ALL_CELLS, list(SCHEDULES))
    assert "no float32 of rnn_relu" in said and "no gradients of state or of y alone" in said and "not 100" in said
    assert " meetings of a cell, a schedule and an option" in said
    assert " meetings of a cell, a schedule and an option" in check.left_out(["sim"], cases.CELLS, list(SCHEDULES))
    assert "meetings" not in check.left_out(["cpu", "sim"], ["lstm"], list(SCHEDULES))
    assert "gru" not in check.left_out(["sim"], ["lstm"], ["stepwise"])


def test_plan_devices(monkeypatch):
    monkeypatch.setattr(engines, "available", lambda: ["cpu", "cuda"], raising=False)
    assert check.plan_devices("all") == (["cpu", "cuda"], True)
    assert check.plan_devices("sim") == ([], True)
    assert check.plan_devices("cuda") == (["cuda"], False)
    monkeypatch.setattr(engines, "available", lambda: ["cpu", "sim"], raising=False)
    assert check.plan_devices("all") == (["cpu", "sim"], False)
    assert check.plan_devices("sim") == (["sim"], False)


def test_the_simulator_starts_no_processes_where_greenlet_is_missing(monkeypatch):
    """Such a process would start one in turn, and so on."""
    monkeypatch.setattr(engines, "available", lambda: ["cpu"], raising=False)
    monkeypatch.setattr(install, "simulator_lacks", lambda: "greenlet is not installed")
    assert check.plan_devices("all") == (["cpu"], False)
    monkeypatch.setattr(check, "simulated", lambda: True)
    assert check.plan_devices("sim") == (["sim"], False)


# ---- the real engine ----


def test_the_cpu_engine_passes(run_check, capsys):
    rows = run_check("--quick")
    assert {row["cell"] for row in rows} == set(cases.ALL_CELLS)
    said = capsys.readouterr().out
    assert "--quick is on cpu 195 runs of a case by a schedule in place of" in said
    assert "no float64 of rnn_tanh" not in said


def test_a_perturbed_engine_fails(run_check, monkeypatch, capsys):
    right = peers.to_host

    def perturbed(layer, value):
        return right(layer, value) * (1 if isinstance(value, (list, tuple)) else 1 + 1e-4)

    monkeypatch.setattr(peers, "to_host", perturbed)
    rows = run_check("--quick", "--cell", "gru", code=1)
    assert any(row["quantity"] == "y" and not row["ok"] for row in rows)
