"""The script for a machine with a GPU (tests/device): how it conducts, what it keeps, and that its parts run."""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).with_name("device")
sys.path.append(str(SCRIPT))

import checks
import conduct
import times
import tools

import emulator
from numbarnn import engines

LINES = 550  # of the script, at most
NEED_MORE = {"cudnn", "vectors", "sanitizer"}  # parts that say here what is missing


def run_script(*arguments, timeout=900):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def outcomes(out, part):
    return {name: one["outcome"] for name, one in conduct.Run("sim", True, str(out)).answers(part).items()}


def test_it_stays_short():
    assert sum(len(file.read_text().splitlines()) for file in SCRIPT.glob("*.py")) <= LINES


def test_without_a_gpu_it_says_so_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv(emulator.VARIABLE, raising=False)
    if engines.why_not("cuda") is None and not emulator.is_wanted():
        pytest.skip("there is a GPU")
    ran = run_script("--out", tmp_path / "out")
    assert ran.returncode == 2 and "no GPU" in ran.stderr and "--device sim" in ran.stderr
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------ from end to end
@pytest.fixture(scope="module")
def cut_and_resumed(tmp_path_factory):
    """The script in the simulator, cut off after 20 s, and once more: (folder, first run, its files, second run)."""
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("device") / "out"
    bundle = out.with_suffix(".zip")
    arguments = "--device", "sim", "--out", out, "--bundle", bundle
    begin = time.monotonic()
    first = run_script(*arguments, "--minutes", 20 / 60)
    first.seconds, first.files = time.monotonic() - begin, {path.name: path.read_text() for path in out.glob("*.*")}
    first.bundled = zipfile.ZipFile(bundle).namelist()
    return SimpleNamespace(out=out, bundle=bundle, first=first, second=run_script(*arguments, "--minutes", 14))


@pytest.mark.full
def test_what_is_cut_off_keeps_its_answers_and_writes_its_summary(cut_and_resumed):
    first = cut_and_resumed.first
    assert first.seconds < 40, first.stdout + first.stderr
    answers = [json.loads(line) for line in first.files["smoke.jsonl"].split("\n") if line]
    assert any(one["outcome"] == "ok" for one in answers), first.stdout
    assert first.files["summary.txt"].strip() in first.stdout
    assert {"head.json", "smoke.jsonl", "summary.txt"} <= {Path(name).name for name in first.bundled}


@pytest.mark.full
def test_the_next_run_goes_on_to_the_end(cut_and_resumed):
    out, second = cut_and_resumed.out, cut_and_resumed.second
    found = {path.stem: outcomes(out, path.stem) for path in out.glob("*.jsonl")}
    assert len(found) == 12 and all(found.values()), second.stdout + second.stderr
    for part, of_part in found.items():
        assert set(of_part.values()) <= ({"ok", "cannot"} if part in NEED_MORE else {"ok"}), second.stdout
    assert second.returncode == 0
    earlier = [line for line in cut_and_resumed.first.files["smoke.jsonl"].split("\n") if '"ok"' in line]
    smoke = (out / "smoke.jsonl").read_text().split("\n")
    assert all(smoke.count(line) == 1 for line in earlier)  # they are not asked again
    rows = json.loads((out / "record.json").read_text())["results"]
    assert {row["schedule"] for row in rows} == {"persistent", "auto", "stepwise"} and all(row["ok"] for row in rows)
    with zipfile.ZipFile(cut_and_resumed.bundle) as archive:
        assert archive.read("summary.txt").decode().strip() in second.stdout


@pytest.mark.full
def test_results_of_other_kernels_are_refused(cut_and_resumed, tmp_path):
    head = json.loads((cut_and_resumed.out / "head.json").read_text())
    (tmp_path / "head.json").write_text(json.dumps(head | {"kernels": "others"}))
    ran = run_script("--device", "sim", "--out", tmp_path)
    assert ran.returncode == 2 and "take another folder" in ran.stderr


# ------------------------------------------------------------------------------------------------------------ processes
WORKER = """
import sys
from types import SimpleNamespace
sys.path[:0] = {paths}
import conduct
names = sys.argv[sys.argv.index("--worker") + 2 :]
part = SimpleNamespace(name="trial", module="trial_questions")
sys.exit(conduct.work(part, names, conduct.Run("cuda", False, sys.argv[2])))
"""
QUESTIONS = """
import os, subprocess, sys
from pathlib import Path
from numbarnn.bench import console

def raises():
    raise ArithmeticError("no such number")

def missing():
    raise console.CannotRun("pip install it")

def dies():
    print("last words", file=sys.stderr)
    os.abort()

def hangs():
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(__file__).with_name("sleeper").write_text(str(sleeper.pid))
    sleeper.wait()

def questions(run, part):
    right, wrong = lambda: {"ok": True, "process": os.getpid()}, lambda: {"ok": False, "figure": float("nan")}
    return {"right": right, "wrong": wrong, "raises": raises, "missing": missing, "dies": dies, "hangs": hangs,
            "right again": right}
"""


def test_who_dies_or_hangs_costs_one_question(tmp_path, monkeypatch):
    paths = [str(SCRIPT), str(tmp_path), str(SCRIPT.parents[1])]
    (tmp_path / "__main__.py").write_text(WORKER.format(paths=paths))
    (tmp_path / "trial_questions.py").write_text(QUESTIONS)
    monkeypatch.setattr(conduct, "__file__", str(tmp_path / "conduct.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    part = SimpleNamespace(name="trial", module="trial_questions", processes=1, question_s=8)
    run = conduct.Run("cuda", False, str(tmp_path))
    conduct.ask(part, run, time.monotonic() + 120, conduct.AGAIN, lambda: None)
    answers = run.answers("trial")
    assert {name: one["outcome"] for name, one in answers.items()} == {
        "right": "ok", "wrong": "wrong", "raises": "failed", "missing": "cannot", "dies": "crashed",
        "hangs": "out of time", "right again": "ok",
    }  # fmt: skip
    assert "ArithmeticError: no such number" in answers["raises"]["message"]
    assert "last words" in answers["dies"]["message"] and answers["wrong"]["figure"] is None  # NaN is no JSON
    assert answers["right"]["process"] != answers["right again"]["process"]
    stat = Path(f"/proc/{(tmp_path / 'sleeper').read_text()}/stat")  # what the worker started has ended with it
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    run.keep("smoke", "product right", "wrong")
    part = SimpleNamespace(name="trial2", module="trial_questions", processes=1, question_s=15)
    conduct.ask(part, run, time.monotonic() - 1, conduct.AGAIN, lambda: None)
    assert {name: one["outcome"] for name, one in run.answers("trial2").items()} == dict.fromkeys(
        ("right", "right again"), "off"
    )


def test_a_line_that_was_cut_off_is_no_answer(tmp_path):
    run = conduct.Run("cuda", False, str(tmp_path))
    (tmp_path / "times.jsonl").write_text('{"question": "a", "outcome": "ok"}\n{"question": "b", "outc')
    run.keep("times", "c", "ok")
    assert list(run.answers("times")) == ["a", "c"]


# ------------------------------------------------------------------------------------------------ on a GPU, or emulated
ANSWERED = [
    *(("smoke", checks, f"lstm 3,2,8,8,1 {name}") for name in ("float16", "float32 3xTF32")),
    *(("families", checks, name) for name in ("float16 odd sizes", "float32 masked", "float16 dropout")),
    ("times", times, "lstm 3,2,8,8,1 float16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("part, module, name", ANSWERED, ids=[f"{part} {name}" for part, _, name in ANSWERED])
def test_questions_are_answered(part, module, name, tmp_path):
    answer = module.questions(conduct.Run("cuda", True, str(tmp_path)), part)[name]()
    assert answer["ok"], answer
    if part == "times":
        assert {row["schedule"] for row in answer["record"]["results"]} == {"persistent", "auto"}


def test_commands_name_files_that_exist(tmp_path):
    run = conduct.Run("cuda", False, str(tmp_path))
    (name,) = tools.questions(run, "silent")
    assert (SCRIPT.parents[1] / name).exists() and name not in tools.questions(run, "tests")
    assert tools.FIRST[0] in next(iter(tools.questions(run, "tests")))
    assert all((SCRIPT.parents[1] / file).exists() for file in tools.questions(run, "tests"))
