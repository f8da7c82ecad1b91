"""Compiled code on disk is not used when code of another file, which became part of it, has changed."""

import os
import subprocess
import sys

import pytest

from numbarnn.engines.cpu import (
    backward,
    cell_steps,
    engine,
    fingerprints,
    forward,
    panels,
    products,
    thread_pool,
)

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
        *(products.blas_product, products.multiply_and_add, products.fill_step_mask),
        *(products.dropout, fingerprints._of_one, fingerprints._of_two),
    ],
    ids=lambda function: function.__name__,
)
def test_functions_of_the_cpu_engine_are_told_of_other_files(function):
    stamp = function._cache._cache_file._source_stamp
    assert len(stamp) >= 2 and {len(digest) for digest in stamp} == {64}


LOOPS = """'A loop.'
from numba import njit

@njit(cache=True)
def loop(x):
{body}
"""
CALL = """
import loops
from numbarnn.engines.cpu.disk_cache import go_by_code

go_by_code(loops)
print(loops.loop(1), sum(loops.loop.stats.cache_hits.values()))
"""


def test_comments_docstrings_and_lines_are_not_code(tmp_path):
    (tmp_path / "main.py").write_text(CALL)
    bodies = ["    return x + 10", '    """Adds ten."""\n    return x + 10', "    return x + 20"]
    texts = [LOOPS.format(body=body) for body in bodies]
    texts.insert(1, "# one, and so on\n\n" + texts[0].replace("A loop", "The only loop") + "\n\n# the end\n")
    texts.insert(3, texts[2].replace("ten", "10, as one can see"))
    printed = []
    for text in texts:
        (tmp_path / "loops.py").write_text(text)
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        printed.append(ran.stdout.strip())
    # a first docstring is a new constant; afterwards its words do not matter
    assert printed == ["11 0", "11 1", "11 0", "11 1", "21 0"]


@pytest.mark.parametrize(
    "module",
    [backward, cell_steps, fingerprints, forward, panels, products, thread_pool],
    ids=lambda module: module.__name__,
)
def test_all_functions_of_the_cpu_engine_go_by_code(module):
    assert engine.CpuEngine, "it tells them"
    caches = [getattr(value, "_cache", None) for value in vars(module).values()]
    stamps = [one._cache_file._source_stamp for one in caches if hasattr(one, "_cache_file")]
    assert stamps and {len(digest) for stamp in stamps for digest in stamp} == {64}
