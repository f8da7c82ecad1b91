"""Kernels that are compiled where no GPU is, for one that finds them (`fakes/idle_gpu.py`)."""

from pathlib import Path

import pytest

from child import in_child

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
    without = {"NUMBA_ENABLE_CUDASIM": "0", "NUMBARNN_TEST_GPU": "", "NUMBARNN_CACHE_DIR": str(tmp_path)}

    def run(version, **more):
        said = in_child(CALLS, version, paths=(tests.parent, tests / "fakes"), **without, **more)
        SMs, compiled, kept = said.split()
        assert SMs == "132"
        return compiled == "True", int(kept)

    return run


def test_a_named_compiler_s_kernels_are_found_whatever_is_installed(calls):
    compiled, kept = calls("12.9", NUMBARNN_TOOLCHAIN="carried")
    assert compiled and kept
    assert calls("13.0", NUMBARNN_TOOLCHAIN="carried") == (False, kept)
