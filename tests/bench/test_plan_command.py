"""`numbarnn plan`: what it answers without a GPU, and the picture of a plan."""

import pytest

from numbarnn import cli

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
    for words in ("persistent forward: ", "stepwise", "wavefront", "Launches", "shared memory", "1024"):
        assert words in said
    for words in ("exchange", "read", "multiply", "add", "Expected:", "µs", "launch   layer 2 ↔ steps 0..100 in"):
        assert words in said


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
        assert all(launch["weights"] in ("registers", "shared memory") for launch in one["launches"])
        for launch in one["launches"]:
            assert launch["blocks"] <= 108 and launch["shared_bytes"] <= 163 * KIB
            assert launch["threads"] * launch["max_registers"] <= 65536
            assert launch["bound"] in ("exchange", "read", "multiply", "add")
        assert {other["schedule"]: other["runs"] for other in one["others"]} == {"stepwise": True, "wavefront": True}


def test_refusal_of_what_was_asked_for_is_a_failure_with_the_numbers(capsys):
    arguments = "plan --hidden 8192 --batch 64 --steps 100 --profile h200".split()
    assert cli.main([*arguments, "--schedule", "persistent"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    for words in ("8192", "float32", "NVIDIA H200", "1024.0 MiB", "132 SMs", "227 KiB", "wavefront"):
        assert words in said.err
    assert cli.main(arguments) == 0, "auto takes another"
    assert "instead, persistent: cannot run it" in capsys.readouterr().out


def test_profile_of_a_machine_without_gpu_says_what_helps(monkeypatch, cannot):
    monkeypatch.setattr("numbarnn.engines.why_not", lambda name: f"no {name} today")
    said = cannot(*"plan --hidden 8 --batch 1 --steps 1".split())
    assert "--profile device" in said and "no cuda today" in said and "h200" in said


@pytest.mark.parametrize("words, expected", [
    ("--hidden 8,x", ["'8,x'", "1024,1024,512"]),
    ("--hidden 0", ["'0'", "at least 1"]),
    ("--cell foo", ["'foo' of numbarnn.cells.library is not there", "lstm", "rnn_relu"]),
    ("--cell lsmt", ["did you mean 'lstm'?"]),
    ("--cell none.py:lean", ["none.py", "there is no such file"]),
    ("--cell none.py", ["'none.py' is a file without the name of a cell; write none.py:NAME"]),
    ("--profile v100", ["'v100'", "h200", "device"]),
    ("--steps 0", ["'0'", "at least 1"]),
    ("--dropout x", ["--dropout", "'x'"]),
    ("--backward --inference", ["--inference", "--backward"]),
    ("--plot no/such/folder/plan.png", ["no/such/folder/plan.png", "directory that exists"]),
])  # fmt: skip
def test_bad_arguments_name_what_came_and_what_was_expected(words, expected, refused):
    said = refused(*f"plan --hidden 8 --batch 1 --steps 1 --profile t4 {words}".split())
    assert all(word in said for word in expected)


def test_options_that_do_not_go_together_are_named(cannot):
    for option, value, words in (("--plot", "plan.doc", "ends in .png"), ("--dropout", "1.5", "--dropout must")):
        rest = "--hidden 8 --batch 1 --steps 1 --profile t4".split()
        assert words in cannot("plan", option, value, *rest, code=2)
    rest = "--hidden 8,9 --batch 1 --steps 4 --profile t4".split()
    said = cannot("plan", "--cell", "gru", "--proj-size", 4, *rest, code=2)
    assert "--proj-size is for the LSTM, a gru has no projection" in said
    said = cannot("plan", "--proj-size", 8, *rest, code=2)
    assert "--proj-size must be smaller than every hidden size, but is 8; the least --hidden is 8" in said


# ------------------------------------------------------------------------------------------------------- the picture
def test_plot_draws_a_file(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert cli.main([*OPTIONS.split(), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and str(path) in capsys.readouterr().out


def test_cells_of_the_library_and_of_files(answer, tmp_path, capsys, monkeypatch):
    """By the names that `numbarnn bench --cell` takes."""
    monkeypatch.setenv("COLUMNS", "400")  # no text is folded
    file = tmp_path / "mine.py"
    file.write_text("import numbarnn as nr\n\ntwice = nr.cell(nr.cells.library.peephole_lstm)\n")
    rest = "--hidden 64 --batch 4 --steps 9 --profile h200"
    for cell, name in (("peephole_lstm", "peephole_lstm"), (f"{file}:twice", "peephole_lstm")):
        found = answer(f"plan --cell {cell} --schedule persistent {rest}")
        assert (found["problem"]["cell"], found["passes"][0]["schedule"]) == (name, "persistent")
    found = answer(f"plan --cell projected_lstm --proj-size 32 {rest}")
    (launch,) = found["passes"][0]["launches"]
    assert launch["estimate"]["rounds"] == 1
    said = capsys.readouterr().out
    assert "P=32" in said and "also waits for a projection" in said
    assert answer(f"plan --cell tgru --input-size 65 {rest}")["problem"]["hidden_sizes"] == [65]
