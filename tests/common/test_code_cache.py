"""The cache of compiled kernels: what distinguishes two kernels, and where files are kept."""

import linecache
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbarnn.common import code_cache


def test_what_is_written_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert code_cache.read("key") is None
    cubin = b"\x7fELF\n{}\n" + bytes(range(256))
    code_cache.write("key", {"name": "kernel", "sizes": [8, 4]}, cubin)
    assert code_cache.read("key") == ({"name": "kernel", "sizes": [8, 4]}, cubin)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["key.cubin"]


def test_fingerprint_covers_code_defaults_and_globals():
    def make(source, **names):
        exec(source, names)
        return code_cache.fingerprint(names["f"])

    plain = make("def f(x): return x + A", A=1)
    assert make("def f(x): return x + A", A=1) == plain
    different = [
        make("def f(x): return x + A", A=2),
        make("def f(x): return x + A", A=1.0),
        make("def f(x): return x - A", A=1),
        make("def f(x, y=3): return x + A", A=1),
        make("def f(x): return x + A[0]", A=np.array([1, 2])),
        make("def f(x): return x + A[0]", A=np.array([1, 3])),
        make("def g(x): return x\ndef f(x): return g(x) + A", A=1),
        make("def g(x): return -x\ndef f(x): return g(x) + A", A=1),
        make("def f(x): return f(x) + A", A=1),
    ]
    assert len({plain, *different}) == 1 + len(different)


FUNCTION = """
def outer(x):
    def inner(y):
        return y + A
    return inner(x) * 2
"""


def made(source, name="outer", file="file.py", **names):
    names = {"A": 1, "__name__": "somewhere", **names}
    exec(compile(source, file, "exec"), names)
    return names[name]


def of_file(folder, source):
    """`outer` of a module in a file of its own."""
    folder.mkdir()
    (folder / "module.py").write_text(source)
    return made(source, file=str(folder / "module.py"))


def test_a_function_of_a_file_is_known_by_its_source(tmp_path):
    one = of_file(tmp_path / "a", FUNCTION)
    moved = of_file(tmp_path / "b", "# a line before\n" + FUNCTION)
    assert code_cache.fingerprint(one) == code_cache.fingerprint(moved)
    assert "def inner(y):" in "\n".join(code_cache._describe(one, {}))
    for number, (text, code) in enumerate((("y + A", "y - A"), ("* 2", "* 3"), ("return inner(x)", "return inner(A)"))):
        changed = of_file(tmp_path / str(number), FUNCTION.replace(text, code))
        assert code_cache.fingerprint(changed) != code_cache.fingerprint(one)


def test_a_file_that_has_changed_since_is_no_source(tmp_path):
    """Else what was compiled of the old text would be kept as compiled of the new one."""
    old = of_file(tmp_path / "a", FUNCTION)
    (tmp_path / "a" / "module.py").write_text(FUNCTION.replace("* 2", "* 3"))
    linecache.checkcache()
    assert code_cache.fingerprint(old) == code_cache.fingerprint(made(FUNCTION))  # by its bytecode
    assert code_cache.fingerprint(old) != code_cache.fingerprint(of_file(tmp_path / "b", FUNCTION))


def test_functions_of_one_line_are_told_apart(tmp_path):
    source = "first, second, same = lambda x: x + 1, lambda x: x - 1, lambda x: x + 1\nouter = first, second, same"
    first, second, same = map(code_cache.fingerprint, of_file(tmp_path / "a", source))
    assert first == same != second


# Loads code_cache, which needs nothing but a few names of NumPy, and tells what it makes of the package and a file.
TELL = """
import importlib.util, runpy, sys, types
numpy = sys.modules["numpy"] = types.ModuleType("numpy")
numpy.ndarray = type("ndarray", (), {})
spec = importlib.util.spec_from_file_location("code_cache", sys.argv[1])
code_cache = importlib.util.module_from_spec(spec)
spec.loader.exec_module(code_cache)
print(code_cache.package_code(), *map(code_cache.fingerprint, runpy.run_path(sys.argv[2])["outer"]))
"""
FUNCTIONS = """
def make(n, shift):
    squares = [k * k for k in range(n)]
    def kernel(x, y=2.5):
        total = sum(value for value in squares) + shift(x)
        return f"{total!r} {'a'}" if x else (total, *squares)
    return kernel
def outer_one(x): return (lambda a: a + 1)(x) + len({k: k for k in range(3)})
plus, minus = lambda x: x + 1, lambda x: x - 1
outer = make(3, plus), make(3, minus), make(4, plus), outer_one
"""


def other_pythons():
    """Interpreters of other versions on this machine."""
    found = [shutil.which(f"python3.{minor}") for minor in range(10, 15)]
    found += map(str, Path.home().glob(".pyenv/versions/3.1[0-4]*/bin/python"))
    return [path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]


def test_keys_are_the_same_under_every_python(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    words = {}
    for python in [sys.executable, *other_pythons()]:
        arguments = [python, "-c", TELL, code_cache.__file__, str(tmp_path / "functions.py")]
        said = subprocess.run([*arguments], capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        version = subprocess.run([python, "-V"], capture_output=True, text=True).stdout
        words[version.rpartition(".")[0]] = said.stdout.split()
    assert all(len(set(found)) == 5 for found in words.values())  # of the package and of four functions
    if len(words) < 2:
        pytest.skip("there is one version of Python on this machine")
    assert len(set(map(tuple, words.values()))) == 1, words


def test_directory_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBARNN_CACHE_DIR", raising=False)
    monkeypatch.setattr(code_cache.Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for platform, expected in [
        ("linux", tmp_path / ".cache" / "numbarnn"),
        ("darwin", tmp_path / "Library" / "Caches" / "numbarnn"),
    ]:
        monkeypatch.setattr(code_cache.sys, "platform", platform)
        assert code_cache.directory() == expected
    monkeypatch.setattr(code_cache.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert code_cache.directory() == tmp_path / "local" / "numbarnn"
    monkeypatch.setattr(code_cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert code_cache.directory() == tmp_path / "xdg" / "numbarnn"
