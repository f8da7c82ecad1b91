"""`numbarnn plan`: what it answers without a GPU, and the picture of a plan."""

import sys
from itertools import product

import pytest

from numbarnn import cli
from numbarnn.bench import gantt
from numbarnn.bench.cases.shapes import SETS
from numbarnn.common import install
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import calibration, choose, estimate
from numbarnn.schedules.explain import explain
from plan_orders import problem_of

# The command of the project's promise, and one with every option.
EXAMPLE = "plan --cell lstm --hidden 1024,1024,512 --batch 64 --steps 100 --profile h200"
OPTIONS = (
    "plan --cell gru --hidden 64,32 --input-size 5 --batch 17 --steps 9 --profile a100 --dtype float16 --bidirectional "
    "--dropout 0.3 --schedule persistent --backward"
)
KIB = 1024


@pytest.fixture
def answer(command):
    """A function that runs it with a line of arguments: what it writes as JSON, after it ran well."""
    return lambda line: command(*line.split())


def test_prints_schedule_reason_and_expected_time(capsys):
    assert cli.main(f"{EXAMPLE} --schedule persistent".split()) == 0
    said = capsys.readouterr().out
    for words in ("lstm: I=1024 H=1024,1024,512 B=64 T=100 float32 training", "NVIDIA H200", "132 SMs", "227 KiB"):
        assert words in said
    for words in ("persistent (asked for by name)", "stepwise", "wavefront", "Launches", "shared memory", "1024"):
        assert words in said
    for words in ("exchange", "read", "multiply", "add", "Expected:", "µs", "launch   layer 2 ↔ steps 0..100 in"):
        assert words in said


def test_the_heading_says_that_its_sum_is_of_both_passes(answer, capsys):
    found = answer(f"{EXAMPLE} --dtype float16")
    said = " ".join(capsys.readouterr().out.split())
    assert "Forward: persistent (auto; forward and backward together, persistent takes about" in said
    assert found["passes"][0]["why"].startswith("forward and backward together")
    answer(f"{EXAMPLE} --dtype float16 --inference")
    assert "persistent (auto; forward, persistent takes about" in " ".join(capsys.readouterr().out.split())


def test_a_plan_of_one_task_is_headed_so(capsys):
    assert (
        cli.main("plan --hidden 64 --batch 2 --steps 3 --inference --profile h200 --schedule persistent".split()) == 0
    )
    assert "Plan (1 task)" in capsys.readouterr().out


def test_help_says_that_a_file_of_a_cell_is_run(capsys):
    for command in ("plan", "trace"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert "FILE.py:NAME, or MODULE:NAME, which is run" in " ".join(capsys.readouterr().out.split())


def test_what_checkpoints_save_and_cost(answer, capsys):
    line = f"{EXAMPLE} --checkpoint-every 20 --schedule persistent"
    found = answer(line)
    costs = found["checkpoints"]
    assert (costs["segments"], found["problem"]["steps"]) == (5, 20) and 6 * costs["at_work"] > costs["kept_without"]
    assert 1.2 < costs["microseconds"] / costs["microseconds_without"] < 3
    assert "checkpoint_every=20: 5 segments" in capsys.readouterr().out
    assert "checkpoints" not in answer(f"{line} --inference")


def test_json_of_every_option(answer):
    found = answer(OPTIONS)
    problem = found["problem"]
    assert (problem["cell"], problem["hidden_sizes"], problem["input_size"]) == ("gru", [64, 32], 5)
    assert (problem["batch"], problem["steps"], problem["dtype"]) == (17, 9, "float16")
    assert (problem["directions"], problem["dropout"], problem["training"]) == (2, 0.3, True)
    assert problem["profile"]["name"] == "NVIDIA A100"
    assert [one["pass"] for one in found["passes"]] == ["forward", "backward"]
    for one in found["passes"]:
        assert one["schedule"] == "persistent" and one["why"] is None
        assert one["launches_us"] == pytest.approx(sum(launch["microseconds"] for launch in one["launches"]))
        assert sorted(weights["layer"] for launch in one["launches"] for weights in launch["weights"]) == [0, 1]
        for launch in one["launches"]:
            assert launch["blocks"] <= 108 and launch["shared_bytes"] <= 163 * KIB
            assert launch["threads"] * launch["max_registers"] <= 65536
            assert launch["bound"] in ("exchange", "read", "multiply", "add")
        assert {other["schedule"]: other["runs"] for other in one["others"]} == {"stepwise": True, "wavefront": True}
        for number, task in enumerate(one["tasks"]):
            assert all(need < number for need in task["needs"])


def test_inference_and_defaults(answer, monkeypatch):
    monkeypatch.setitem(profiles.PROFILES, "small", profiles.SIMULATOR)  # as another profile would be
    found = answer("plan --hidden 24 --batch 2 --steps 3 --profile small --inference")
    assert found["problem"]["input_size"] == 24 and not found["problem"]["training"]
    (one,) = found["passes"]
    assert one["why"], "auto says why"


@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_answers_for_the_issues_shapes(profile, answer):
    """auto always has an answer; for persistent it has the launches, or why not, with the numbers."""
    for shape, dtype in product(SETS["schedules"], ("float32", "float16")):
        hidden = ",".join([str(shape.H)] * shape.L)
        words = f"plan --hidden {hidden} --batch {shape.B} --steps {shape.T} --profile {profile}"
        for one in answer(f"{words} --dtype {dtype} --backward")["passes"]:
            options = [one, *one["others"]]
            (persistent,) = [option for option in options if option["schedule"] == "persistent"]
            if persistent.get("runs", True):
                assert persistent["launches_us"] > 0
            else:
                assert "tensor cores" in persistent["reason"] or (
                    f"hidden size {shape.H}" in persistent["reason"] and "MiB" in persistent["reason"]
                )


def test_refusal_of_what_was_asked_for_is_a_failure_with_the_numbers(capsys):
    arguments = "plan --hidden 8192 --batch 64 --steps 100 --profile h200".split()
    assert cli.main([*arguments, "--schedule", "persistent"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    for words in ("8192", "float32", "NVIDIA H200", "1024.0 MiB", "132 SMs", "227 KiB", "wavefront"):
        assert words in said.err
    assert cli.main(arguments) == 0, "auto takes another"
    assert "REFUSED" in capsys.readouterr().out


def test_exchanges_within_a_step_have_a_column_of_their_own(answer, capsys, monkeypatch):
    """Only where there are any; what of that no device has timed is told where it decides."""
    monkeypatch.setenv("COLUMNS", "400")  # no text is folded
    sizes = "--hidden 512 --batch 16 --steps 10 --dtype float16 --profile h200"
    for cell, rounds in (("layer_norm_lstm", 4), ("lstm", 0)):
        (one,) = answer(f"plan --cell {cell} --inference {sizes}")["passes"]
        (launch,) = one["launches"]
        estimate = launch["estimate"]
        parts = ("exchange", "within", "read", "multiply", "add")
        assert launch["step_us"] == pytest.approx(sum(estimate[part] for part in parts))
        assert estimate["rounds"] == rounds and (estimate["within"] > estimate["exchange"]) == (rounds > 1)
        said = capsys.readouterr().out
        assert (" within " in said) == ("no device has timed its exchanges within a step" in said) == (rounds > 0)
        assert ("most of it exchanges within it" in said) == (launch["bound"] == "within") == (rounds > 0)


def test_profile_of_a_machine_without_gpu_says_what_helps(monkeypatch, cannot):
    monkeypatch.setattr("numbarnn.engines.why_not", lambda name: f"no {name} today")
    said = cannot(*"plan --hidden 8 --batch 1 --steps 1".split())
    assert "--profile device" in said and "no cuda today" in said and "h200" in said


@pytest.mark.parametrize("words, expected", [
    ("--hidden 8,x", ["'8,x'", "1024,1024,512"]),
    ("--hidden 0", ["'0'", "at least 1"]),
    ("--cell foo", ["'foo' of numbarnn.cells.library is not there", "lstm", "rnn_relu"]),
    ("--cell lsmt", ["did you mean 'lstm'?"]),
    ("--cell recurrent_highway", ["is a function, not a Cell", "FILE.py:NAME"]),
    ("--cell none.py:lean", ["none.py", "there is no such file"]),
    ("--cell none.py", ["'none.py' is a file without the name of a cell; write none.py:NAME"]),
    ("--dtype int8", ["'int8'", "bfloat16"]),
    ("--profile v100", ["'v100'", "h200", "device"]),
    ("--schedule fast", ["'fast'", "persistent", "auto"]),
    ("--steps 0", ["'0'", "at least 1"]),
    ("--batch 1.5", ["'1.5'", "whole number"]),
    ("--input-size -1", ["input-size"]),
    ("--dropout 1.5", ["'1.5'", "probability"]),
    ("--dropout much", ["'much'", "probability"]),
    ("--backward --inference", ["--inference", "--backward"]),
    ("--plot plan.doc", ["'plan.doc'", ".png"]),
    ("--plot no/such/folder/plan.png", ["no/such/folder/plan.png", "directory that exists"]),
])  # fmt: skip
def test_bad_arguments_name_what_came_and_what_was_expected(words, expected, refused):
    said = refused(*f"plan --hidden 8 --batch 1 --steps 1 --profile t4 {words}".split())
    assert all(word in said for word in expected)


def test_cells_of_the_library_and_of_files(answer, refused, tmp_path, capsys, monkeypatch):
    """By the names that `numbarnn cells` takes."""
    monkeypatch.setenv("COLUMNS", "400")  # no text is folded
    file = tmp_path / "mine.py"
    file.write_text(
        "import numbarnn as nr\n\n@nr.cell\ndef shares(x, h, p):\n"
        "    return nr.softmax(p.W.a @ x + p.R.a @ h)\n\n@nr.cell\ndef twice(x, h, p):\n"
        "    return nr.tanh(p.W.a @ x + p.R.b @ nr.tanh(p.R.a @ h))\n\ndef plain(x, h, p):\n    return h\n"
    )
    rest = "--hidden 64 --batch 4 --steps 9 --profile h200"
    found = answer(f"plan --cell peephole_lstm --schedule persistent {rest}")
    assert (found["problem"]["cell"], found["passes"][0]["schedule"]) == ("peephole_lstm", "persistent")
    found = answer(f"plan --cell {file}:shares --schedule persistent {rest}")
    assert (found["problem"]["cell"], found["passes"][0]["schedule"]) == ("shares", "persistent")
    found = answer(f"plan --cell {file}:twice --schedule persistent {rest}")
    assert (found["problem"]["cell"], found["passes"][0]["schedule"]) == ("twice", "persistent")
    found = answer(f"plan --cell projected_lstm --proj-size 32 {rest}")
    (launch,) = found["passes"][0]["launches"]
    assert (found["passes"][0]["schedule"], launch["estimate"]["rounds"]) == ("persistent", 1)
    assert launch["weights"][0]["W_hr"] == [launch["cut"]["units"], 64]
    said = capsys.readouterr().out
    assert all(
        words in said for words in ("P=32", " slice of W_hr ", "no device has timed its exchanges within a step")
    )
    said = refused("plan", "--cell", f"{file}:plain", *rest.split())
    assert "put @numbarnn.cell above its equations; Cells there: shares, twice" in said
    capsys.readouterr()
    found = answer(f"plan --cell tgru --input-size 65 {rest}")
    assert found["problem"]["hidden_sizes"] == [65]
    assert "layer 0: kernels have 65 units, as many as its largest state; h has 64" in capsys.readouterr().out
    said = refused("plan", "--cell", f"{file}:other", *rest.split())
    assert "is not there; Cells there: shares, twice" in said


def test_options_that_do_not_go_together_are_named(cannot):
    rest = "--hidden 8,9 --batch 1 --steps 4 --profile t4".split()
    said = cannot("plan", "--cell", "gru", "--proj-size", 4, *rest, code=2)
    assert "--proj-size is for the LSTM, a gru has no projection" in said
    said = cannot("plan", "--proj-size", 8, *rest, code=2)
    assert "--proj-size must be smaller than every hidden size, but is 8, and --hidden 8" in said


# ------------------------------------------------------------------------------------------------------- the picture
def test_plot_draws_a_file(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert cli.main([*OPTIONS.split(), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and str(path) in capsys.readouterr().out


def test_plot_without_matplotlib_says_what_to_install(tmp_path, monkeypatch, cannot):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "plan.png"
    assert install.command("cli") in cannot(*OPTIONS.split(), "--plot", str(path)) and not path.exists()


def test_picture_has_a_row_per_layer_and_direction():
    pytest.importorskip("matplotlib")
    problem = problem_of(hidden=(8, 8), directions=2, dropout=0.5)
    picture = gantt.figure([explain(choose("wavefront"), problem, backward) for backward in (False, True)])
    for axis in picture.axes:
        names = [label.get_text() for label in axis.get_yticklabels()]
        assert names == ["layer 0 →", "layer 0 ←", "layer 1 →", "layer 1 ←"]
        legend = [text.get_text() for text in axis.get_legend().get_texts()]
        assert legend[:2] == ["steps", "input"] and "dropout" in legend
    assert [axis.get_title(loc="left") for axis in picture.axes] == ["wavefront, forward", "wavefront, backward"]


@pytest.mark.parametrize("backward", (False, True))
def test_timeline_of_persistent_launches(backward):
    """As the planner expects it: layers of a launch one step behind each other, launches after each other."""
    problem = problem_of(dtype="float16", hidden=(512,) * 4, batch=64, steps=100)
    option = explain(choose("persistent"), problem, backward).taken
    spans, unit = gantt.timeline(option, problem)
    assert [span.task for span in spans] == list(option.plan.tasks) and "µs" in unit
    assert tuple(span.task.launch for span in spans if span.task.kind == "launch") == option.launches
    for span, needs in zip(spans, option.plan.needs, strict=True):
        assert all(spans[need].end <= span.start for need in needs)
        if span.task.kind == "launch":
            launch, step = span.task.launch, span.task.launch.estimate.step
            bars = gantt.rows_of(span, backward)
            layers = launch.layer_range[::-1] if backward else launch.layer_range
            assert [lane for _, lane, _, _ in bars] == [(layer, 0) for layer in layers]
            starts = [start - span.start for _, _, start, _ in bars]
            assert starts == pytest.approx([step * number for number in range(len(bars))])
            assert [length for *_, length in bars] == pytest.approx([problem.steps * step] * len(bars))
            assert starts[-1] + bars[-1][-1] == pytest.approx(span.end - span.start)


def test_layers_of_two_directions_are_drawn_after_each_other():
    problem = problem_of(hidden=(64, 64), directions=2, steps=2)
    option = explain(choose("persistent"), problem, False).taken
    (span,) = (one for one in gantt.timeline(option, problem)[0] if one.task.kind == "launch")
    bars = gantt.rows_of(span, False)
    assert [lane for _, lane, _, _ in bars] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    half = (span.end - span.start) / 2
    assert [start - span.start for _, _, start, _ in bars] == pytest.approx([0, 0, half, half])


def test_product_estimate():
    """LSTM, T B = 1600, I = H = 512: 4 H I multiply-adds each, on 132 SMs of 128 a clock at 1.85 GHz."""
    problem = problem_of(hidden=(512,), batch=16, steps=100)
    forward, backward = (explain(choose("stepwise"), problem, pass_).taken.plan for pass_ in (False, True))
    us = 1600 * 4 * 512 * 512 / (132 * 128 * 1.85e3) / calibration.PRODUCT_SHARE["float32"].value
    us += calibration.PRODUCT_US.value
    expected = {"input": us, "weights": 2 * us, "steps": 0}
    for plan in (forward, backward):
        for task in plan.tasks:
            assert estimate.product_us(task, problem) == pytest.approx(expected[task.kind])
