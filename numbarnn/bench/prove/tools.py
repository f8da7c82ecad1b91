"""What other programs tell: the tests for a GPU, compute-sanitizer, and the recorder of the tests' vectors.

Tests and recorder are in a clone of the repository, not in the installed package.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numbarnn
from numbarnn.bench import console
from numbarnn.bench.peers import cudnn
from numbarnn.schedules import SCHEDULES

TESTS = Path(numbarnn.__file__).resolve().parents[1] / "tests"
MARKED = re.compile(r"mark\.gpu\b")
#: The tests worth most, first; then all others.
FIRST = ("test_persistent.py", "test_gpu_engine.py", "test_gpu.py", "test_gpu_unchanged.py", "test_trouble.py")
WORKERS = 4  # of pytest-xdist for a file, where it is installed: most of the time is compiling
LETTERS_KEPT = 12_000  # of what a program printed: its end
LINES_TOLD = 12
NO_TEST = 5  # pytest's exit code where no test was chosen
SANITIZER = "compute-sanitizer"
HOW_TO_GET = (
    "compute-sanitizer is not on the PATH: it comes with the CUDA toolkit (developer.nvidia.com/cuda-downloads, or "
    "conda install -c nvidia cuda-sanitizer-api); on Ubuntu with NVIDIA's repository apt install cuda-sanitizer-12-9"
)
#: What each of its tools looks at: the smallest problem of a dtype has persistent and step kernels, forward and
#: backward, with two layers.
LOOKS = ("racecheck float32", "synccheck float32", "memcheck float16", "racecheck float16", "initcheck float32")
FOUND_ERRORS = 99  # its exit code then


def questions(asked, of):
    """Files of tests, tools of the sanitizer, or the one recorder."""
    if of == "sanitizer":
        return list(LOOKS)
    if of == "vectors":
        return ["cudnn"]
    files = [file for file in sorted(TESTS.rglob("test_*.py")) if MARKED.search(file.read_text(encoding="utf-8"))]
    order = {name: number for number, name in enumerate(FIRST)}
    files.sort(key=lambda file: order.get(file.name, len(order)))
    chosen = files[:1] if asked.small else files
    return [file.relative_to(TESTS.parent).as_posix() for file in chosen] or ["tests"]


def answer(name, asked, of):
    """What the program said, and whether it was content."""
    return {"sanitizer": _sanitizer, "vectors": _vectors, "tests": _tests}[of](name, asked)


def _ran(command, **more):
    """(exit code, what it printed on both outputs). It is told on as it comes, for whoever ends this process."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, errors="replace", **options, **more) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()
    return process.returncode, "".join(lines)


def _verdict(ok, said, **found):
    """An answer; with the end of what the program said where it was not content."""
    return {"ok": ok, **found} | ({} if ok else {"message": said[-LETTERS_KEPT:]})


def _tests(name, asked):
    file = TESTS.parent / name
    if not file.is_file():
        raise console.CannotRun("the tests are not here: run in a clone of the repository")
    if asked.device == "sim":
        raise console.CannotRun("tests marked gpu need one; those of the simulator: python -m pytest tests/simulated")
    more = ["--collect-only"] if asked.small else ["-n", str(WORKERS)] if find_spec("xdist") else []
    try:
        import pytest  # noqa: F401
    except ImportError as error:
        raise console.MissingPackage("pytest", "the tests", "test") from error
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-v", "-rfE", "--tb=long", *more]
    code, said = _ran([*command, str(file)], cwd=TESTS.parent)
    lines = said.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    verdict = _verdict(code in (0, NO_TEST), said, last=lines[-1] if lines else "", exit_code=code)
    return verdict if verdict["ok"] else verdict | {"failed": failed}


def _sanitizer(name, asked):
    if asked.device == "sim":
        raise console.CannotRun("compute-sanitizer looks at a GPU, not at the simulator, which finds races itself")
    if shutil.which(SANITIZER) is None:
        raise console.CannotRun(HOW_TO_GET)
    tool, dtype = name.split()
    command = [SANITIZER, "--tool", tool, "--error-exitcode", str(FOUND_ERRORS)]
    code, said = _ran([*command, sys.executable, "-m", "numbarnn.bench.prove.tools", dtype])
    return _verdict(code == 0, said, exit_code=code, summary=[one for one in said.splitlines() if "SUMMARY" in one])


def run_small(dtype):
    """What the sanitizer looks at: two small layers forward and backward by every schedule."""
    import cupy
    import numpy as np

    x = cupy.asarray(np.random.default_rng(0).standard_normal((4, 3, 8)), dtype)
    for schedule in SCHEDULES:
        layer = numbarnn.LSTM(8, 40, 2, dropout=0.3, device="cuda", dtype=dtype, schedule=schedule, seed=0)
        y, _, tape = layer.forward(x)
        layer.backward(tape, y)
        layer.check()


def _vectors(name, asked):
    recorder = TESTS / "support" / "record_vectors.py"
    if not recorder.is_file():
        raise console.CannotRun("the recorder is with the tests: run in a clone of the repository")
    if asked.device == "sim" or (reason := cudnn.why_not()) is not None:
        raise console.CannotRun(
            f"cuDNN cannot be called: {'the simulator has none' if asked.device == 'sim' else reason}"
        )
    out = Path(asked.folder) / "vectors"
    out.mkdir(exist_ok=True)
    here = console.environment()
    here["PYTHONPATH"] += os.pathsep + str(TESTS / "fakes")  # beside the recorder's own folder
    exit_code, said = _ran([sys.executable, str(recorder), "--source", "cudnn", "--out", str(out)], env=here)
    refused = [line for line in said.splitlines() if ": refused: " in line]
    files = len(list(out.glob("*.npz")))
    return _verdict(exit_code == 0 and files > 0, said, files=files, refused=refused)


def told(answers):
    """What each program said last."""
    lines = []
    for one in answers:
        if "files" in one:
            lines.append(f"{one['files']} files in the folder vectors, for tests/data; {len(one['refused'])} refused")
            lines += one["refused"][:LINES_TOLD]
        elif "summary" in one:
            lines.append(f"{one['question']}: {'; '.join(one['summary']) or 'no summary'}")
        elif "last" in one and one["outcome"] != "ok":
            lines.append(f"{one['question']}: {one['last']}")
            lines += [f"  {line}" for line in one.get("failed", ())[:LINES_TOLD]]
    passed = [re.search(r"(\d+) passed", one["last"]) for one in answers if "last" in one]
    if passed:
        lines.insert(0, f"{sum(int(found[1]) for found in passed if found)} tests passed in {len(passed)} files")
    return lines


if __name__ == "__main__":
    run_small(*sys.argv[1:])
