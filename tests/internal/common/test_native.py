"""Machine code for the CPU on disk: found again by the next process, and made anew when what it was made of changes."""

import os
import subprocess
import sys

import pytest

from numbarnn.common import code_cache
from numbarnn.compile import native, types
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import by_address
from numbarnn.engines.cpu.vectors import numbers_at

INNER = "def inner(x):\n    return x + {}\n"
OUTER = """
import ctypes
import numpy as np
import inner as module
from numbarnn.compile import native
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import from_python
from numbarnn.engines.cpu.vectors import numbers_at

inner, made, compiled = plain(module.inner), [], native.compiled
native.compiled = lambda *given: made.append(given) or compiled(*given)

@from_python
def outer(out, x):
    numbers_at(np.int64(0), out)[0] = inner(x)

number = np.zeros(1, np.int64)
outer(number.ctypes.data, 1)
print(number[0], len(made))
"""


def test_code_on_disk_goes_by_the_functions_it_calls(tmp_path):
    (tmp_path / "outer.py").write_text(OUTER)
    printed = []
    for added in (10, 10, 20, 10):
        (tmp_path / "inner.py").write_text(INNER.format(added))
        env = os.environ | {"NUMBARNN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run([sys.executable, "outer.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        printed.append(ran.stdout.strip())
    assert printed == ["11 1", "11 0", "21 1", "11 0"]


def test_the_package_is_known_by_all_that_gets_compiled(tmp_path, monkeypatch):
    """A change in any file of these folders makes other names."""
    monkeypatch.setattr(code_cache, "_PACKAGE", tmp_path)
    folders, digests = native._MADE_OF, set()
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    for text in ("one", "two"):
        for folder in folders:
            (tmp_path / folder / "a.py").write_text(text)
            native._sources.cache_clear()
            digests.add(native._sources())
    native._sources.cache_clear()
    assert len(digests) == 2 * len(folders)


@plain
def _added(a, b):
    return a + b


@by_address
def add(zero, address):
    numbers = numbers_at(zero, address)
    numbers[0] = _added(numbers[0], numbers[1])


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """As in a process that has compiled nothing."""
    monkeypatch.setattr(native, "_addresses", {})


def test_a_damaged_file_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    assert add.address(types.float32)
    (file,) = tmp_path.glob("*.o")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert code_cache.read(file.stem, ".o") is None
    native._addresses.clear()
    assert add.address(types.float32)
    assert code_cache.read(file.stem, ".o") is not None


def test_dtypes_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    assert add.address(types.float32) and add.address(types.float64)
    assert len(list(tmp_path.glob("*.o"))) == 2
