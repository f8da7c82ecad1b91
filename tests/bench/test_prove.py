"""`numbarnn prove`: how it asks, what it keeps, what it tells. A part made for tests (support/trial_part.py) dies and
hangs; the real ones run end to end in the simulator and on the emulated GPU, small."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import trial_part
from numbarnn import cli
from numbarnn.bench.prove import command, conduct, parts, results, summary

TESTS = Path(__file__).parents[1]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A function that lets Python, in every process that is started, begin with some code."""

    def begin_with(code):
        folder = tmp_path / "site"
        folder.mkdir()
        paths = [str(TESTS / "support"), str(TESTS / "fakes")]
        (folder / "sitecustomize.py").write_text(f"import sys\nsys.path[:0] = {paths!r}\n{code}")
        earlier = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), earlier])))

    return begin_with


@pytest.fixture
def trial(site, monkeypatch, tmp_path):
    """A function that asks the parts made for tests: (exit code, the trial part's file)."""
    site("import trial_part\ntrial_part.install()\n")
    monkeypatch.setitem(sys.modules, "numbarnn.bench.prove.trial", trial_part)
    mine = {"trial": trial_part.PART, "quick": trial_part.QUICK}
    for module in (command, parts):
        monkeypatch.setattr(module, "BY_NAME", mine)
        monkeypatch.setattr(module, "PARTS", tuple(mine.values()))
    monkeypatch.setattr("numbarnn.bench.prove.summary.BY_NAME", mine)
    monkeypatch.setattr(command, "AT_THE_END_S", 0)
    out = tmp_path / "out"

    def run(*more, part="trial", minutes=9):
        code = cli.main(f"prove --device sim --minutes {minutes} --part {part} --out {out}".split() + list(more))
        return code, json.loads((out / f"{part.split(',')[0]}.json").read_text())

    run.out = out
    return run


def outcomes(data):
    return {answer["question"]: answer["outcome"] for answer in data["answers"]}


def ends_soon(number):
    """Whether a process is no more after a while; a zombie that nobody waits for is none."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        stat = Path(f"/proc/{number}/stat")
        with suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def asked(trial):
    return (trial.out / "asked.txt").read_text().split("\n")[:-1]


# ------------------------------------------------------------------------------------------------------------ asking
def test_who_dies_or_hangs_costs_one_question(trial, capsys, monkeypatch):
    monkeypatch.setattr(command, "PARTS", (replace(trial_part.PART, question_s=8), trial_part.QUICK))
    code, data = trial(part="trial,quick")
    assert code == 1 and data["outcome"] == "done"
    assert outcomes(data) == {
        "right": "ok", "wrong": "wrong", "raises": "failed", "missing": "cannot", "dies": "crashed",
        "hangs": "out of time", "right again": "ok",
    }  # fmt: skip
    answers = {answer["question"]: answer for answer in data["answers"]}
    for words in ("Traceback", "ArithmeticError: no such number"):
        assert words in answers["raises"]["message"]
    assert "SIGABRT" in answers["dies"]["message"] and "last words" in answers["dies"]["message"]
    assert "no answer within 8 s" in answers["hangs"]["message"] and "printed by hangs" in answers["hangs"]["message"]
    assert answers["hangs"]["seconds"] < 30 and answers["wrong"]["figure"] is None  # NaN is no JSON
    assert answers["right"]["process"] != answers["right again"]["process"]  # after an exception another one goes on
    assert json.loads((trial.out / "quick.json").read_text())["outcome"] == "done"
    said = capsys.readouterr().out
    assert "1 wrong, 1 failed, 1 crashed, 1 out of time, 1 cannot, 2 ok" in said
    assert "not here: missing" in said and "pip install it" in said and "7 answers" in said and "last words" in said
    assert (trial.out / "summary.txt").read_text().strip() in said


def test_a_record_says_of_what_it_is(trial):
    _, data = trial(part="quick")
    assert data["format"] == "numbarnn prove 1" and data["device_name"] == "simulator" and data["small"] is True
    assert data["kernels"] == results.kernels_digest("cuda") and len(data["kernels"]) == 16
    assert {"commit", "clean", "driver", "date", "seconds"} <= data.keys()
    assert data["environment"]["versions"]["numpy"] and data["answers"][0]["seconds"] > 0
    assert data["answers"][0]["compiling_s"] == 0 and data["toolchain"] is None


def test_it_tells_how_long_compiling_took_and_whose_kernels_it_took(trial, monkeypatch, capsys):
    monkeypatch.setenv("NUMBARNN_TOOLCHAIN", "carried")
    trial(part="quick")
    assert "kernels of the compiler 'carried'" in capsys.readouterr().out
    assert "compiled for 7 s" in summary.headline("quick", {"outcome": "done", "seconds": 9, "answers": [
        {"outcome": "ok", "compiling_s": 3.5}, {"outcome": "ok", "compiling_s": 3.5}]})  # fmt: skip


def test_a_process_that_does_not_die_is_left_behind(trial, monkeypatch):
    """As one whose call the GPU's driver never answers."""
    left, end = [], conduct.Child.end
    monkeypatch.setattr(conduct, "DEATH_S", 0.2)
    monkeypatch.setattr(conduct.Child, "kill", lambda child: None)
    monkeypatch.setattr(command, "PARTS", (replace(trial_part.PART, question_s=3, more={"names": ("hangs",)}),))
    monkeypatch.setattr(conduct.Child, "end", lambda child: (end(child), left.append(child)))
    _, data = trial()
    assert outcomes(data) == {"hangs": "out of time"} and left[0]._process.poll() is None
    os.killpg(left[0]._process.pid, signal.SIGKILL)


def test_the_next_part_s_process_is_there_when_its_turn_comes(trial, monkeypatch):
    said = []

    class Child(conduct.Child):
        def __init__(self, part, *more):
            said.append(f"{part.name} is loading")
            super().__init__(part, *more)

        def ask(self, question, until):
            found = super().ask(question, until)
            said.append(question)
            return found

    names = {"more": {"names": ("right", "right again")}}
    monkeypatch.setattr(conduct, "Child", Child)
    monkeypatch.setattr(command, "PARTS", (replace(trial_part.PART, **names), replace(trial_part.QUICK, **names)))
    monkeypatch.setattr(trial_part, "questions", lambda asked, names: list(names))
    trial(part="trial,quick")
    assert sorted(said[:2]) == ["quick is loading", "trial is loading"]
    assert said[2:] == ["right", "right again"] * 2


def test_processes_share_the_cores(trial, monkeypatch):
    monkeypatch.setattr(conduct.info, "core_count", lambda: 6)
    _, data = trial(part="quick")
    assert data["answers"][0]["threads"] == "6"


def test_a_part_that_cannot_even_ask_is_a_failure(trial, monkeypatch):
    monkeypatch.setattr(trial_part, "questions", lambda *_, **__: 1 / 0)
    code, data = trial(part="quick")
    assert code == 1 and outcomes(data) == {"-": "failed"} and "ZeroDivisionError" in data["answers"][0]["message"]


# ---------------------------------------------------------------------------------------------------------- going on
def test_a_later_run_goes_on_where_it_was_cut(trial, capsys, monkeypatch):
    monkeypatch.setattr(command, "PARTS", (replace(trial_part.PART, question_s=600),))
    code, data = trial(minutes=0.1)  # the one that hangs may do so for longer
    assert code == 1 and data["outcome"] == "cut off"
    done = [name for name, outcome in outcomes(data).items() if outcome not in ("cut off", "cannot")]
    assert "CUT OFF" in capsys.readouterr().out
    (trial.out / "mended").touch()
    (trial.out / "asked.txt").unlink(missing_ok=True)
    code, data = trial()
    assert data["outcome"] == "done" and set(outcomes(data)) == set(trial_part.NAMES)
    assert outcomes(data)["hangs"] == "ok" and not set(asked(trial)) & set(done)
    assert "goes on" in capsys.readouterr().out
    (trial.out / "asked.txt").unlink()
    code, data = trial()
    assert asked(trial) == ["missing"] and data["outcome"] == "done"  # what was missing may be there by now


def test_what_is_done_is_kept_and_said(trial, capsys):
    trial(part="quick")
    (trial.out / "asked.txt").unlink()
    code, data = trial(part="quick")
    assert code == 0 and not (trial.out / "asked.txt").exists() and outcomes(data) == {"right": "ok"}
    assert "quick: kept, done on" in capsys.readouterr().out
    trial("--again", "quick", part="quick")
    assert asked(trial) == ["right"] and (trial.out / "quick-before-1.json").exists()


def test_results_of_other_code_are_moved_aside(trial, monkeypatch, capsys):
    _, before = trial(part="quick")
    (trial.out / "asked.txt").unlink()
    monkeypatch.setattr(results, "kernels_digest", lambda device: "another code")
    _, data = trial(part="quick")
    assert asked(trial) == ["right"] and data["kernels"] == "another code"
    aside = trial.out / f"quick-of-{before['kernels']}.json"
    assert json.loads(aside.read_text())["answers"][0]["process"] == before["answers"][0]["process"]
    said = capsys.readouterr().out
    assert f"kernels {before['kernels']}, now another code" in said and aside.name in said


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGINT])
def test_answers_stay_where_the_command_itself_is_ended(trial, ended_by):
    """As a lease is that ends, SIGKILL, or by Ctrl-C, while two questions are asked, for which it does not wait."""
    code = "import signal, sys, trial_part; trial_part.install(); from numbarnn.bench.prove import command\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells' background jobs ignore\n"
    code += "two = {'together': 2, 'more': {'names': ('right', 'hangs', 'hangs')}}; from dataclasses import replace\n"
    code += "command.PARTS = (replace(trial_part.PART, **two),)\n"
    code += "from numbarnn import cli; sys.exit(cli.main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *f"prove --device sim --part trial --out {trial.out}".split()]
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.05)
        with suppress(FileNotFoundError):
            hanging = (trial.out / "hanging.txt").read_text().split()
            if hanging[1:] and asked(trial).count("hangs") == min(2, conduct.info.core_count()):
                break
    process.send_signal(ended_by)
    assert process.wait(timeout=30) == (130 if ended_by == signal.SIGINT else -signal.SIGKILL)
    assert all(ends_soon(int(number)) for number in hanging)  # nothing that it has started lives on
    data = json.loads((trial.out / "trial.json").read_text())
    assert data["outcome"] == "cut off" and outcomes(data)["right"] == "ok"
    assert not list(trial.out.glob("*.part*"))
    (trial.out / "mended").touch()
    _, data = trial()
    assert data["outcome"] == "done" and outcomes(data)["hangs"] == "ok" and asked(trial).count("right") == 1


# ---------------------------------------------------------------------------------------------------------- telling
def test_a_bundle_has_it_all(trial, tmp_path, capsys):
    bundle = tmp_path / "all.zip"
    trial("--bundle", str(bundle), part="quick")
    capsys.readouterr()
    assert cli.main(["prove", "--summary", str(bundle), "--part", "quick"]) == 0
    of_bundle = capsys.readouterr().out
    assert cli.main(["prove", "--summary", str(trial.out), "--part", "quick"]) == 0
    assert of_bundle == capsys.readouterr().out and "quick (what else it asks): done; 1 ok" in of_bundle


def test_a_summary_says_what_was_not_asked(trial, capsys):
    trial(part="quick")
    capsys.readouterr()
    cli.main(["prove", "--summary", str(trial.out)])
    assert "trial: NOT ASKED (how it asks)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "times.json is no JSON"), ("[]", "no result of numbarnn prove"), ('{"format": "x"}', "its format is not")],
)
def test_other_files_are_refused(tmp_path, cannot, content, words):
    (tmp_path / "times.json").write_text(content)
    assert words in cannot("prove", "--summary", str(tmp_path))


def test_without_a_device_it_says_so(tmp_path, cannot, monkeypatch):
    from numbarnn import engines

    monkeypatch.setattr(engines, "why_not", lambda name: "this machine has no NVIDIA GPU")
    said = cannot("prove", "--out", str(tmp_path / "out"))
    assert "there is no GPU to ask: this machine has no NVIDIA GPU" in said and "--device sim" in said
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_named(refused, cannot):
    assert "above 0, got '-1'" in refused("prove", "--minutes", "-1")
    assert "'nothing'" in refused("prove", "--part", "nothing")
    assert "--out DIR" in cannot("prove", code=2)
    assert "--out: expected a folder, got the file" in refused("prove", "--out", __file__)
    assert "--summary: expected the folder" in cannot("prove", "--summary", "nowhere", code=2)


def test_limits_fit_the_minutes():
    """All parts together may take longer than there is time: what ends early leaves it to others."""
    assert sum(part.seconds for part in parts.PARTS) < 1.25 * 60 * parts.MINUTES
    assert all(part.question_s <= part.seconds for part in parts.PARTS)
    named = [part.name for part in parts.PARTS]
    assert len(set(named)) == len(named) and list(parts.BY_NAME) == named


# ---------------------------------------------------------------------------------------------------------- real parts
def test_a_gpu_needs_none_of_the_extras():
    """A machine that is lent has Numba, CuPy and PyTorch."""
    missing = "greenlet", "rich", "tqdm", "pytest", "onnx", "onnxruntime", "scipy_openblas32", "matplotlib"
    code = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    code += "from numbarnn.bench.prove import parts\n"
    code += "asked = parts.Asked('cuda', False, '.')\nassert all(part.questions(asked) for part in parts.PARTS)\n"
    code += "assert 'torch' not in sys.modules\n"
    code += "from numbarnn.bench.prove import child, command, conduct\n"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr


COMPUTED = ("plain", "silent", "phases", "options")  # by the simulator; of the others it has nothing to tell
SOME = pytest.param(("silent", "phases", "cudnn"), id="some")
ALL = pytest.param(tuple(parts.BY_NAME), id="all", marks=pytest.mark.full)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("greenlet") is None, reason="needs the simulator")
@pytest.mark.parametrize("names", (SOME, ALL))
def test_end_to_end_in_the_simulator(names, tmp_path, capsys):
    code = cli.main(f"prove --device sim --minutes 60 --part {','.join(names)} --out {tmp_path}".split())
    said = capsys.readouterr().out
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    assert code == 0 and {data["outcome"] for data in found.values()} == {"done"}, said
    for name in names:
        assert set(outcomes(found[name]).values()) == {"ok" if name in COMPUTED else "cannot"}, said
    assert "gave up: layer 0" in said and "publish" not in outcomes(found["silent"])
    assert "0 of them wrong" in said or "options" not in names
    trace = next(tmp_path.glob("trace-*-backward.json"))
    assert cli.main(["trace", "--from", str(trace), "--html", str(tmp_path / "trace.html")]) == 0


@pytest.mark.full
@pytest.mark.slow
def test_end_to_end_on_the_emulated_gpu(toolchain_installed, site, tmp_path, monkeypatch):
    site("import emulator\nemulator.install()\n")
    monkeypatch.setenv("NUMBARNN_TEST_GPU", "emulated")
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    line = "prove --small --minutes 60 --part silent,phases,cudnn,times,sanitizer --out".split()
    command_line = [sys.executable, "-m", "numbarnn", *line, str(tmp_path / "out")]
    ran = subprocess.run(command_line, capture_output=True, text=True, timeout=900)
    found = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in line[4].split(",")}
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name in ("silent", "phases"):
        assert set(outcomes(found[name]).values()) == {"ok"}, ran.stdout
    assert all(answer["call_us"] is not None for answer in found["phases"]["answers"])
    assert found["phases"]["device_name"] == "emulated GPU"
