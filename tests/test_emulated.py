"""A sample of the tests that need a GPU, on the emulated one (tests/emulator): kernels as compiled, really launched.

All of them: NUMBARNN_TEST_GPU=emulated python -m pytest -m gpu
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SHARES = {  # of the tests of a module one in that many, as compiling takes a second per kernel, or five
    "test_gemm.py": 1,
    "test_kernels_launch.py": 1,
    "test_gpu_engine.py": 6,
    "test_gpu_options.py": 60,
    "test_half.py": 10,
    "test_gpu.py": 60,
    "test_persistent.py": 16,
}


@pytest.mark.slow
@pytest.mark.parametrize("module", SHARES)
def test_on_the_emulated_gpu(toolchain_installed, module):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu and not real_gpu", str(FOLDER / module)],
        env={**os.environ, "NUMBARNN_TEST_GPU": f"emulated/{SHARES[module]}"},
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"  # also where no test was found
    assert " failed" not in ran.stdout and " passed" in ran.stdout, ran.stdout
