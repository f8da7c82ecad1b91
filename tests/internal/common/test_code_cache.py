"""The cache of compiled kernels: what distinguishes two kernels, and where files are kept."""

import compileall
import os
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from numbarnn.common import code_cache
from numbarnn.compile import native, types
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import by_address
from numbarnn.engines.cpu.vectors import numbers_at

PACKAGE = Path(code_cache.__file__).parent.parent


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder for compiled code."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


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


def test_a_function_of_a_file_is_known_wherever_it_stands(tmp_path):
    one = of_file(tmp_path / "a", FUNCTION)
    moved = of_file(tmp_path / "b", "# a line before\n" + FUNCTION)
    assert code_cache.fingerprint(one) == code_cache.fingerprint(moved)
    for number, (text, code) in enumerate((("y + A", "y - A"), ("* 2", "* 3"), ("return inner(x)", "return inner(A)"))):
        changed = of_file(tmp_path / str(number), FUNCTION.replace(text, code))
        assert code_cache.fingerprint(changed) != code_cache.fingerprint(one)


def test_what_nobody_has_used_for_long_is_removed(cache):
    """Files of former versions, and what killed processes were writing; what is read stays."""
    code_cache.write("used", {}, b"code")
    old = time.time() - (code_cache.KEPT_DAYS + 1) * 86400
    for name in ("former.cubin", "former.o", "killed.part", "killed.lock", "a user's.txt"):
        (cache / name).write_bytes(b"x")
        os.utime(cache / name, (old, old))
    os.utime(cache / "used.cubin", (old, old))
    assert code_cache.read("used") == ({}, b"code")
    code_cache._swept = False
    code_cache.write("new", {}, b"code")
    assert sorted(path.name for path in cache.iterdir()) == ["a user's.txt", "new.cubin", "used.cubin"]
    assert code_cache.clear()[0] == 2
    assert [path.name for path in cache.iterdir()] == ["a user's.txt"]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_a_new_folder_is_its_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "some" / "new"))
    code_cache.write("key", {}, b"code")
    assert (tmp_path / "some" / "new").stat().st_mode & 0o777 == 0o700


def test_one_process_compiles_and_others_wait(cache, tmp_path):
    """With one empty cache: each function is compiled once."""
    pytest.importorskip("fcntl")
    program = """
        import sys, numpy as np
        from numbarnn.compile import native
        count, compiled = [], native.compiled
        native.compiled = lambda *given: count.append(1) or compiled(*given)
        import numbarnn as nr
        nr.RNN(3, 5, device="cpu")(np.ones((4, 2, 3), np.float32))
        print(len(count))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [int(child.communicate(timeout=300)[0]) for child in children]
    assert sum(counts) == len(list(cache.glob("*.o")))
    assert not list(cache.glob("*.lock"))


def test_an_error_filter_does_not_turn_a_warning_about_the_cache_into_an_exception(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(code_cache, "_warned", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code_cache.write("key", {}, b"code")
    assert "cannot be kept on disk" in caplog.text and "NUMBARNN_CACHE_DIR" in caplog.text


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import numbarnn as nr
assert nr.__file__.startswith(sys.argv[1]), nr.__file__
print(np.isfinite(nr.RNN(8, 16, device="cpu")(np.ones((3, 2, 8), np.float32))[0]).all())
"""


def elsewhere(command, tmp_path):
    """The output of a program that runs in an empty folder, where it finds no other numbarnn."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_it_runs_from_a_zip(cache, tmp_path):
    made = shutil.make_archive(tmp_path / "package", "zip", PACKAGE.parent, PACKAGE.name)
    done = elsewhere([sys.executable, "-c", PROGRAM, made], tmp_path)
    assert done.stdout == "True\n", done.stderr
    assert list(cache.glob("*.o"))


def test_without_sources_the_import_says_what_to_collect(cache, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "numbarnn", ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(tmp_path / "numbarnn", legacy=True, quiet=1, workers=1)
    for path in (tmp_path / "numbarnn").rglob("*.py"):
        path.unlink()
    done = elsewhere([sys.executable, "-c", PROGRAM, str(tmp_path)], tmp_path)
    assert done.returncode == 1
    assert "ImportError: numbarnn compiles its functions from their sources" in done.stderr.splitlines()[-1]


# --------------------------------------------------------------------------------------------------------- machine code
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
