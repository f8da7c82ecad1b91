"""The CUDA kernels in Numba's simulator: the conformance matrix and tests/simulated, each in a process of its own with
NUMBA_ENABLE_CUDASIM=1 from the start."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "simulated"
MODULES = {path.name: path for path in (FOLDER.parent / "test_conformance.py", *sorted(FOLDER.glob("test_*.py")))}


@pytest.mark.slow
@pytest.mark.parametrize("marks", ["not full", pytest.param("full", marks=pytest.mark.full)])
@pytest.mark.parametrize("module", MODULES)
def test_in_the_simulator(module, marks):
    if find_spec("torch") is None and 'importorskip("torch")' in MODULES[module].read_text(encoding="utf-8"):
        pytest.skip("PyTorch is not installed, against which it compares")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=3", "-m", marks, str(MODULES[module])],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=900 if marks == "not full" else None,  # some modules take minutes on a busy machine
    )
    none = pytest.ExitCode.NO_TESTS_COLLECTED if marks == "full" else 0  # not every module has more
    assert ran.returncode in (0, none), f"{ran.stdout}\n{ran.stderr}"  # also where no test was found
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
