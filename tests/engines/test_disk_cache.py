"""Compiled code on disk is not used when code of another file, which became part of it, has changed."""

import os
import subprocess
import sys

import pytest

from numbarnn.engines.cpu import fingerprints, products

INNER = "def inner(x):\n    return x + {}\n"
OUTER = """
from numba import njit
import inner as module
from numbarnn.engines.cpu.disk_cache import contains

compiled = njit(module.inner)

{decorator}
@njit(cache=True)
def outer(x):
    return compiled(x)

print(outer(1), sum(outer.stats.cache_hits.values()))
"""


def answers(folder, decorator):
    """What two processes print before, and one after a change of the inner file."""
    (folder / "outer.py").write_text(OUTER.format(decorator=decorator))
    printed = []
    for added in (10, 10, 20):
        (folder / "inner.py").write_text(INNER.format(added))
        env = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run([sys.executable, "outer.py"], cwd=folder, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        printed.append(ran.stdout.strip())
    return printed


def test_a_change_of_a_file_whose_code_became_part_of_it_is_noticed(tmp_path):
    assert answers(tmp_path, "@contains(module)") == ["11 0", "11 1", "21 0"]


@pytest.mark.parametrize(
    "function",
    [
        *(products.product, products.multiply, products.weight_gradients, products.fill_step_mask),
        *(products.dropout, fingerprints._of_one, fingerprints._of_two),
    ],
    ids=lambda function: function.__name__,
)
def test_functions_of_the_cpu_engine_are_told_of_other_files(function):
    stamp = function._cache._cache_file._source_stamp
    assert len(stamp) == 2 and len(stamp[1]) == 64
