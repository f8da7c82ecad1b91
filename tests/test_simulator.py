"""The CUDA kernels in Numba's simulator: tests/simulated, in a process with NUMBA_ENABLE_CUDASIM=1 from the start."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "simulated"


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_in_the_simulator(module):
    if find_spec("torch") is None and 'importorskip("torch")' in (FOLDER / module).read_text(encoding="utf-8"):
        pytest.skip("PyTorch is not installed, against which it compares")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=3", str(FOLDER / module)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
        timeout=900,  # some modules take minutes on a busy machine
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
