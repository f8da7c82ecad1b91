"""The command line: what it prints, writes and returns."""

import json
import os
import subprocess
import sys

import pytest

from child import in_child
from numbarnn import cli
from numbarnn.bench import console, info
from numbarnn.common import install


def test_import_is_quick_and_lazy():
    code = "import sys, numbarnn.cli; print(*{'numba', 'numpy', 'torch', 'rich'}.intersection(sys.modules))"
    assert in_child(code).split() == []


def test_python_dash_m():
    answer = subprocess.run([sys.executable, "-m", "numbarnn", "--help"], capture_output=True, text=True, check=True)
    for command in cli.COMMANDS:
        assert command in answer.stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and f"usage: numbarnn {command}" in said and "%%" not in said


@pytest.mark.parametrize(
    "argv, words",
    [
        ([], ["required"]),
        (["nope"], ["nope", "info", "check", "bench", "demo"]),
        (["check", "--cell", "lstm,foo"], ["'foo'", "rnn_tanh"]),
        (["check", "--device", "tpu"], ["'tpu'", "cuda"]),
        (["check", "--json", "no/such/folder/x.json"], ["no/such/folder/x.json", "directory that exists"]),
        (["bench", "--shape", "25,16"], ["T,B,I,H,L", "'25,16'"]),
        (["bench", "--rounds", "0"], ["at least 1", "'0'"]),
        (["bench", "--threads", "two"], ["whole number", "'two'"]),
        (["plan"], ["required", "--hidden", "--batch", "--steps"]),
    ],
)
def test_bad_arguments_name_what_came_and_what_was_expected(argv, words, refused):
    said = refused(*argv)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("argv, words", [(["--version"], "numbarnn 0."), (["demo", "--help"], "--steps")])
def test_version_and_help(argv, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 0 and words in capsys.readouterr().out


def test_info(tmp_path, capsys):
    path = tmp_path / "info.json"
    assert cli.main(["info", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert set(found["engines"]) == {"cpu", "cuda", "sim"}
    for engine in found["engines"].values():
        assert engine["runs"] == (engine["missing"] is None)
    assert found["engines"]["cpu"]["runs"]
    assert found["versions"]["numba"] and found["cpu"]["cores"] >= 1
    assert set(found) >= {"date", "python", "gpus", "platform"}
    said = capsys.readouterr().out
    assert found["engines"]["sim"]["runs"] == (install.simulator_lacks() is None), "as check does, in other processes"
    if found["engines"]["sim"]["runs"]:
        assert "numbarnn check --device sim" in " ".join(said.split())
    if not found["engines"]["cuda"]["runs"]:
        assert "[cuda12]" in said


def test_info_clears_the_cache_of_compiled_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    for name in ("one.o", "two.cubin", "notes.txt"):
        (tmp_path / name).write_bytes(bytes(500_000))
    assert cli.main(["info", "--clear-cache"]) == 0
    assert "removed 2 files of compiled code, 1.0 MB" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_info_says_when_not_even_the_cpu_engine_runs(monkeypatch, capsys):
    monkeypatch.setattr("numbarnn.engines.why_not", lambda name: f"no {name} today")
    assert cli.main(["info"]) == 1
    assert "no cpu today" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["import_module", "_run"])
def test_interrupted_where_its_modules_are_imported_and_later(place, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, place, interrupt)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "numbarnn info: interrupted\n"


def test_gpus_of_the_driver(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert info.gpus() == [{"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 143771 * 2**20}]


def test_missing_package_is_an_error_with_the_command(monkeypatch, capsys):
    monkeypatch.setattr("numbarnn.bench.speed.installed", lambda *modules: False)
    assert cli.main(["bench"]) == 1
    assert install.command("torch") in capsys.readouterr().err


@pytest.mark.parametrize("terminal", (False, True))
@pytest.mark.parametrize("rich", (False, True))
def test_progress_yields_the_items(terminal, rich, monkeypatch):
    if not rich:
        monkeypatch.setattr(console.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert list(console.progress_bar(iter([3, 4]), "work")) == [3, 4]


def test_json_has_no_nan(tmp_path):
    path = tmp_path / "x.json"
    console.write_json(path, {"a": [float("nan"), float("inf"), 1.5], "b": (1, None)})
    assert json.loads(path.read_text()) == {"a": [None, None, 1.5], "b": [1, None]}
    assert list(tmp_path.iterdir()) == [path]


PLAN = [sys.executable, "-m", "numbarnn", "plan", "--hidden", "8", "--batch", "1", "--steps", "2", "--profile", "h100"]


def test_a_pipe_that_is_closed_ends_a_command_without_a_word():
    """As `| head` does."""
    with subprocess.Popen(PLAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_letters_that_a_terminal_lacks_are_question_marks():
    ran = subprocess.run(PLAN, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert b"? " in ran.stdout and not ran.stderr


def test_a_command_runs_without_an_output_stream(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(PLAN[3:]) == 0
    sys.stdout.close()
