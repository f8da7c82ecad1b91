"""Kernels are compiled where no GPU is, for one that finds them (`fakes/idle_gpu.py`)."""

from pathlib import Path

from child import in_child

TESTS = Path(__file__).parents[2]
CALL = """
import idle_gpu
idle_gpu.install()
import cupy
import numbarnn
from numbarnn.common import code_cache
layer = numbarnn.RNN(3, 5, device="cuda", schedule="stepwise")
layer(cupy.empty((2, 2, 3), "float32"))
print(layer.engine.profile.multiprocessors, len(list(code_cache.directory().glob("*.cubin"))) > 0)
"""


def test_a_call_compiles_as_for_an_h200(toolchain_installed, tmp_path):
    without = {"NUMBA_ENABLE_CUDASIM": "0", "NUMBARNN_TEST_GPU": "", "NUMBARNN_CACHE_DIR": str(tmp_path)}
    assert in_child(CALL, paths=(TESTS.parent, TESTS / "fakes"), **without).split() == ["132", "True"]
