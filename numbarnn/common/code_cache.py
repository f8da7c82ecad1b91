"""Compiled code on disk, so that a second process compiles nothing: kernels (`cuda.compiler`), the CPU's functions.

`compile.native` stores the latter. One file per kernel or function is named by its key: a line of JSON (its description
and the code's hash), then the cubin, or the CPU's code. Files are written whole or not at all; unreadable or damaged
ones are ignored. A file that nobody has read for KEPT_DAYS is removed. Whoever can write to the folder decides what
code runs, so a new folder belongs to its user alone (mode 0700).
"""

import hashlib
import json
import linecache
import logging
import os
import sys
import tempfile
import time
import types
import warnings
from contextlib import contextmanager, suppress
from functools import lru_cache
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np

_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_FROM = ("cells", "common", "compile", "kernels", "cuda")  # folders with code that becomes part of kernels
KEPT_DAYS = 90  # days a file is kept after its last use
PART_HOURS = 1  # age of a killed process's unfinished file
WAIT_S = 60.0  # for another process that compiles the same
_DAY_S = 86400.0
_OURS = (".cubin", ".o", ".proved", ".part", ".lock")  # endings of the cache's files
_warned = _swept = False


def directory():
    """Return the folder of compiled code: $NUMBARNN_CACHE_DIR, else `numbarnn` in the user's cache directory."""
    chosen = os.environ.get("NUMBARNN_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "numbarnn"


def directory_if_any():
    """Return the folder of compiled code; None if there is no home directory."""
    try:
        return directory()
    except RuntimeError:
        return None


def read(key, suffix=".cubin"):
    """Return (description, code) stored under `key`, or None if no intact file has it.

    Args:
        suffix: of the file: what kind of code it is.
    """
    try:
        path = directory() / f"{key}{suffix}"
        first, _, cubin = path.read_bytes().partition(b"\n")
        description = json.loads(first)
        whole = description.pop("sha256") == hashlib.sha256(cubin).hexdigest()
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError):
        return None  # absent, unreadable, no home directory, or not a file of ours
    if not whole:
        return None
    with suppress(OSError):  # such as in a read-only folder
        if time.time() - path.stat().st_mtime > _DAY_S:
            os.utime(path)  # it is in use: see `_sweep`
    return description, cubin


def write(key, description, cubin, suffix=".cubin"):
    """Store a kernel, or other code; if that is impossible, say so once and go on without."""
    global _warned
    first = json.dumps({**description, "sha256": hashlib.sha256(cubin).hexdigest()}).encode()
    temporary = None
    try:
        folder = made_directory()
        _sweep()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{key}.", suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(first + b"\n" + cubin)
        os.replace(temporary, folder / f"{key}{suffix}")
    except (OSError, RuntimeError) as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if not _warned:
            _warned = True
            text = f"compiled kernels cannot be kept on disk ({error}); each process will compile them again. "
            text += "Set NUMBARNN_CACHE_DIR to a writable directory."
            try:
                warnings.warn(text, stacklevel=2)
            except UserWarning:  # made an error by a filter: the call itself is right
                logging.getLogger("numbarnn").warning(text)


def made_directory():
    """Return the cache's folder; create it if it does not exist."""
    folder = directory()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def files():
    """Return the cache's existing files as paths."""
    folder = directory_if_any()
    try:
        return [path for path in folder.iterdir() if path.suffix in _OURS] if folder else []
    except OSError:
        return []


def clear():
    """Remove all compiled code from disk; return the number of files and of bytes that were removed."""
    count = size = 0
    for path in files():
        with suppress(OSError):
            file_size = path.stat().st_size
            path.unlink()
            count, size = count + 1, size + file_size
    return count, size


def _sweep():
    """Remove files that killed processes and former versions left, once per process."""
    global _swept
    if _swept:
        return
    _swept, now = True, time.time()
    for path in files():
        most = PART_HOURS * 3600.0 if path.suffix in (".part", ".lock") else KEPT_DAYS * _DAY_S
        with suppress(OSError):  # another process may have removed it
            if now - path.stat().st_mtime > most:
                path.unlink()


@contextmanager
def alone(key):
    """Let one process at a time compile the code of a key: others wait, up to WAIT_S.
    The operating system ends the lock with its process. Without such locks (Windows, some network drives), or without a
    writable folder, all go on at once."""
    lock = path = None
    try:
        import fcntl

        path = made_directory() / f"{key}.lock"
        lock, end = path.open("wb"), time.monotonic() + WAIT_S
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
    except (ImportError, OSError, RuntimeError):
        path = None
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink()
        if lock is not None:
            lock.close()


# ----------------------------------------------------------------------------------------------------- keys
def key(function, *parts):
    """Return the name under which a kernel is stored: SHA-256 of its function, the package's code and `parts`."""
    described = (function.__qualname__, fingerprint(function), package_code(), *parts)
    return hashlib.sha256("\0".join(described).encode()).hexdigest()


@lru_cache(maxsize=1)
def package_code():
    """Return the SHA-256 of the sources of all cells and kernels, read once per process."""
    return hashlib.sha256("".join(module_texts(*_COMPILED_FROM)).encode()).hexdigest()


def module_texts(*folders):
    """Yield the texts of the package's modules in these folders, also if the package is in a zip."""
    root = _PACKAGE
    if not root.is_dir():
        import importlib.resources  # takes time

        root = importlib.resources.files("numbarnn")
    for folder in folders:
        yield from _sources_in(root / folder)


def _sources_in(folder):
    for one in sorted(folder.iterdir(), key=attrgetter("name")):
        if one.is_dir():
            yield from _sources_in(one)
        elif one.name.endswith(".py"):
            yield one.read_text(encoding="utf-8")


def fingerprint(function):
    """Return the SHA-256 of what a Python function computes.

    Kernels made by one factory share name and code and differ in what they close over. So the digest covers the
    bytecode and, recursively, every function, constant and jitted function that is reached through closures, globals
    and defaults. NumPy's functions count by name, as Numba replaces them by its own. A value of an unknown kind counts
    by its repr: if that contains an address, each process compiles the kernel again.
    """
    return hashlib.sha256("\n".join(_describe(function, {})).encode()).hexdigest()


def _describe(value, seen):
    """Yield lines of text that identify a value a kernel refers to. `seen`: id -> (number, the value)."""
    if id(value) in seen:
        yield f"seen {seen[id(value)][0]}"
        return
    if isinstance(value, (types.FunctionType, tuple, list)) or _jitted_function(value) is not None:
        seen[id(value)] = len(seen), value
    jitted = _jitted_function(value)
    if jitted is not None:
        yield f"{type(value).__name__} {sorted(getattr(value, 'targetoptions', {}).items())!r}"
        yield from _describe(jitted, seen)
    elif isinstance(value, types.FunctionType):
        yield from _describe_function(value, seen)
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__name__} {len(value)}"
        for element in value:
            yield from _describe(element, seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}"
    elif isinstance(value, (set, frozenset)):
        yield f"{type(value).__name__} {sorted(map(repr, value))}"
    elif isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        yield f"array {value.dtype!r} {value.shape} {content}"
    elif type(value).__module__ == "numpy" and hasattr(value, "__qualname__"):  # np.where: its repr has an address
        yield f"{type(value).__qualname__} {value.__module__}.{value.__qualname__}"
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__} {value!r}"


def _jitted_function(value):
    """Return the Python function inside a `@cuda.jit` dispatcher or an `@intrinsic`; None for anything else."""
    if isinstance(value, type):
        return None
    inner = getattr(value, "py_func", None) or getattr(value, "_defn", None)
    return inner if isinstance(inner, types.FunctionType) else None


def _describe_function(function, seen):
    code = function.__code__
    yield f"function {function.__qualname__}"
    yield from _describe(function.__defaults__, seen)
    for name, cell in sorted(zip(code.co_freevars, function.__closure__ or (), strict=True), key=itemgetter(0)):
        yield f"closure {name}"
        try:
            content = cell.cell_contents
        except ValueError:  # not filled in yet (a function that refers to itself, or defined later)
            continue
        yield from _describe(content, seen)
    yield from _describe_code(code, function.__globals__, seen)


def _describe_code(code, names, seen):
    """Describe a code object, those inside it and what they find among global names; places in files do not count."""
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _describe_code(constant, names, seen)
        else:
            known = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            yield f"{type(constant).__name__} {known!r}"
    for name in code.co_names:
        if name in names:
            yield f"global {name}"
            yield from _describe(names[name], seen)


def run_source(source, file, namespace):
    """Execute a text, as `exec`, so that its functions have a source; file: a unique name for it."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), namespace)
