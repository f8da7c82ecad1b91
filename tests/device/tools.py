"""What other commands tell, a command for each question: the tests for a GPU, `numbarnn check`, compute-sanitizer, ...

A worker that is killed takes its commands with it, as they are of its process group.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from numbarnn.bench import console
from numbarnn.bench.cases.cases import ALL_CELLS

TESTS = Path(__file__).resolve().parents[1]
FIRST = ("test_persistent.py", "test_gpu_engine.py", "test_gpu.py", "test_gpu_unchanged.py", "test_cudnn_calls.py")
KEPT = 6000  # characters of what a command printed: its end
SANITIZED = "sanitized.py"
LOOKS = ("racecheck float32", "synccheck float32", "memcheck float16", "racecheck float16", "initcheck float32")


def commands(run, of):
    """Question -> command."""
    python = [sys.executable, "-m"]
    test = [*python, "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
    if of == "silent":
        return {"forward and backward": [*test, "tests/kernels/test_silent_block.py"]}
    if of == "options":
        check = [*python, "numbarnn", "check", "--quick", "--progress", "none", "--device", run.device]
        return {cell: [*check, "--cell", cell] for cell in (("gru",) if run.small else ALL_CELLS)}
    if of == "vectors":
        out = Path(run.out) / "vectors"
        out.mkdir(exist_ok=True)
        return {"recorder": [sys.executable, "tests/support/record_vectors.py", "--source", "cudnn", "--out", str(out)]}
    if of == "sanitizer":
        look = ["compute-sanitizer", "--error-exitcode", "99", "--tool"]
        own = [sys.executable, str(Path(__file__).with_name(SANITIZED))]
        return {name: [*look, name.split()[0], *own, name.split()[1]] for name in LOOKS}
    files = [file for file in sorted(TESTS.rglob("test_*.py")) if re.search(r"mark\.gpu\b", file.read_text())]
    files.sort(key=lambda file: FIRST.index(file.name) if file.name in FIRST else len(FIRST))
    names = [file.relative_to(TESTS.parent).as_posix() for file in files[: 1 if run.small else None]]
    return {name: [*test, *["--collect-only"] * run.small, name] for name in names}


def questions(run, of):
    return list(commands(run, of))


def answer(name, run, of):
    """The end of what the command printed, and whether it was content."""
    command = commands(run, of)[name]
    if shutil.which(command[0]) is None:
        raise console.CannotRun(f"{command[0]} is not on the PATH: it comes with the CUDA toolkit")
    environment = console.environment()
    environment["PYTHONPATH"] += os.pathsep + str(TESTS / "fakes")
    found = subprocess.run(command, cwd=TESTS.parent, env=environment, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
    lines = [line for line in found.stdout.splitlines() if line.strip()]
    ok = found.returncode in (0, 5) if "pytest" in command else found.returncode == 0  # 5: no test was chosen
    return {"ok": ok, "last": lines[-1] if lines else "", "message": "" if ok else found.stdout[-KEPT:]}


def told(answers, of):
    """What each command printed last; of tests how many passed, and those that did not."""
    if of != "tests":
        return [f"{one['question']}: {one['last']}" for one in answers if "last" in one]
    passed = [re.search(r"(\d+) passed", one.get("last", "")) for one in answers]
    lines = [f"{sum(int(found[1]) for found in passed if found)} tests passed"]
    return lines + [
        line for one in answers for line in one.get("message", "").splitlines() if line.startswith("FAILED")
    ]
