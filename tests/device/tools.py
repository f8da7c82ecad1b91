"""Run other commands, one for each question; a worker that is killed takes its command with it."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import checks
import conduct

from numbarnn.bench import console
from numbarnn.bench.cases import ALL_CELLS
from numbarnn.bench.peers import cudnn

TESTS = Path(__file__).resolve().parents[1]
FIRST = ("test_gpu_engine.py", "test_gpu.py", "test_persistent.py", "test_every_engine.py")
ALONE = {"silent": "tests/internal/kernels/test_trouble.py", "cudnn": "tests/bench/test_cudnn_calls.py"}


def questions(run, part):
    python = [sys.executable, "-m"]
    test = [*python, "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
    if part in ALONE:
        commands = {ALONE[part]: [*test, ALONE[part]]}
    elif part == "options":
        check = [*python, "numbarnn", "check", "--quick", "--device", run.device, "--cell"]
        commands = {cell: [*check, cell] for cell in (("gru",) if run.small else ALL_CELLS)}
    elif part == "vectors":
        (out := Path(run.out, "vectors")).mkdir(exist_ok=True)
        record = [sys.executable, "tests/support/record_vectors.py", "--out", str(out)]
        commands = {"recorder": record}
    elif part == "sanitizer":
        look, tools = ["compute-sanitizer", "--error-exitcode", "99", "--tool"], ("racecheck", "synccheck", "memcheck")
        worker = [sys.executable, "tests/device", "--small", "--out", f"{run.out}/sanitized", "--worker"]
        asked = {"smoke": [*checks.questions(run, "smoke")][:2], "families": ["float32 masked", "float16 dropout"]}
        commands = {f"{tool} {own}": [*look, tool, *worker, own, *asked[own]] for tool in tools for own in asked}
    else:
        of_gpu = re.compile(r"mark\.gpu\b|\bMARKS\b")
        files = [file for file in sorted(TESTS.rglob("test_*.py")) if of_gpu.search(file.read_text())]
        files.sort(key=lambda file: FIRST.index(file.name) if file.name in FIRST else len(FIRST))
        names = [file.relative_to(TESTS.parent).as_posix() for file in files[: 1 if run.small else None]]
        only = ["--collect-only"] if run.small else []
        commands = {name: [*test, *only, name] for name in names if name not in ALONE.values()}
    return {name: partial(answer, command, part) for name, command in commands.items()}


def answer(command, part):
    """The last line that a command printed; all of its end where it failed."""
    if shutil.which(command[0]) is None:
        raise console.CannotRun(f"{command[0]} is not on the PATH: it comes with the CUDA toolkit")
    if part in ("cudnn", "vectors") and (reason := cudnn.why_not()):
        raise console.CannotRun(f"cuDNN cannot be called: {reason}")
    environment = console.environment() | {"PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] += os.pathsep + str(TESTS / "fakes")
    found = subprocess.run(command, cwd=TESTS.parent, env=environment, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
    ok = found.returncode == 0 or (found.returncode == 5 and "pytest" in command)  # 5: no test was chosen
    lines = [line for line in found.stdout.splitlines() if line.strip()] or [""]
    return {"ok": ok, "told": lines[-1:], "message": "" if ok else found.stdout[-conduct.KEPT :]}
