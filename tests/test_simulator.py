"""The CUDA kernels in Numba's simulator: tests of every engine and tests/simulated, in processes of their own with
NUMBA_ENABLE_CUDASIM=1 from the start."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDER = TESTS / "simulated"
# Two processes, as imports take seconds in each, and two share the work of most machines well: name -> modules.
ON_EVERY_ENGINE = [TESTS / name for name in ("test_conformance.py", "test_every_engine.py", "engines/test_rows.py")]
RUNS = {"every engine": ON_EVERY_ENGINE, "simulator": sorted(FOLDER.glob("test_*.py"))}


@pytest.mark.slow
@pytest.mark.parametrize("marks", ["not full", pytest.param("full", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", RUNS)
def test_in_the_simulator(name, marks):
    modules = RUNS[name]
    if find_spec("torch") is None:  # against which some compare
        modules = [path for path in modules if 'importorskip("torch")' not in path.read_text(encoding="utf-8")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=3", "-m", marks, *map(str, modules)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=900 if marks == "not full" else None,  # some modules take minutes on a busy machine
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"  # also where no test was found
    assert " failed" not in ran.stdout and " skipped" not in ran.stdout, ran.stdout


def test_folder_is_left_alone_without_the_simulator():
    """Without the variable its tests must not be collected: they would launch kernels on a device."""
    from numba import config

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", str(FOLDER)],
        env={name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, ran.stdout
    assert not config.ENABLE_CUDASIM, "this test is for a process without the simulator"
