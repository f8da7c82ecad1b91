"""Kernels that are compiled where no GPU is, for one that finds them (`fakes/idle_gpu.py`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import sys
import idle_gpu
idle_gpu.install()
import cupy
import numbarnn
from numbarnn.common import code_cache, notice
from numbarnn.cuda import compiler
compiler._library_versions = lambda: sys.argv[1]
layer = numbarnn.RNN(3, 5, device="cuda", schedule="stepwise")
layer(cupy.empty((2, 2, 3), "float32"))
print(layer.engine.profile.multiprocessors, notice.seconds() > 0, len(list(code_cache.directory().glob("*.cubin"))))
"""


@pytest.fixture
def calls(toolchain_installed, tmp_path):
    """A function that makes a layer's calls in a process whose compiler is of some version: what it says."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (tests.parent, tests / "fakes")))
    here = {
        name: value for name, value in os.environ.items() if name not in ("NUMBA_ENABLE_CUDASIM", "NUMBARNN_TEST_GPU")
    }
    here |= {"PYTHONPATH": paths, "NUMBARNN_CACHE_DIR": str(tmp_path)}

    def run(version, **more):
        ran = subprocess.run([sys.executable, "-c", CALLS, version], capture_output=True, text=True, env=here | more)
        assert ran.returncode == 0, ran.stderr
        SMs, compiled, kept = ran.stdout.split()
        assert SMs == "132"
        return compiled == "True", int(kept)

    return run


def test_a_named_compiler_s_kernels_are_found_whatever_is_installed(calls):
    compiled, kept = calls("12.9", NUMBARNN_TOOLCHAIN="carried")
    assert compiled and kept
    assert calls("13.0", NUMBARNN_TOOLCHAIN="carried") == (False, kept)
