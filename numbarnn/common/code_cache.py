"""Cache compiled code on disk, so that a second process compiles nothing: GPU kernels and the CPU's functions.

`cuda.compiler` and `compile.native` use it. Each kernel or function has a file named by its key: a line of JSON (its
description and the code's hash), then the code. Files are written atomically, and unreadable or damaged ones are
ignored. A file that nobody has read for KEPT_DAYS is removed. Whoever can write to the folder decides what code
runs, so a new folder belongs to its user alone (mode 0700).
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
from operator import attrgetter
from pathlib import Path

import numpy as np

_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_FROM = ("cells", "common", "compile", "kernels", "cuda")  # folders with code that becomes part of kernels
_KEYED = ("numbarnn.cells.", "numbarnn.common.", "numbarnn.compile.")  # modules whose sources are part of every key
_PLAIN = (type(None), bool, int, float, str)
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
    """Return the folder of compiled code, or None without a home directory."""
    try:
        return directory()
    except RuntimeError:
        return None


def read(key, suffix=".cubin"):
    """Return (description, code) stored under `key`, or None if no intact file has it.

    Args:
        suffix: the file's ending, which names the kind of code.
    """
    try:
        path = directory() / f"{key}{suffix}"
        first, _, cubin = path.read_bytes().partition(b"\n")
        description = json.loads(first)
        whole = description.pop("sha256") == hashlib.sha256(cubin).hexdigest()
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError):
        return None  # absent, unreadable, no home directory, or a foreign file
    if not whole:
        return None
    with suppress(OSError):  # such as in a read-only folder
        if time.time() - path.stat().st_mtime > _DAY_S:
            os.utime(path)  # so that `_sweep` keeps it
    return description, cubin


def write(key, description, cubin, suffix=".cubin"):
    """Store code, or warn once if that fails."""
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
            except UserWarning:  # a filter made it an error, but the call must go on
                logging.getLogger("numbarnn").warning(text)


def made_directory():
    """Return the cache's folder, and create it if it does not exist."""
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
    """Remove all compiled code from disk, and return the numbers of removed files and bytes."""
    count = size = 0
    for path in files():
        with suppress(OSError):
            file_size = path.stat().st_size
            path.unlink()
            count, size = count + 1, size + file_size
    return count, size


def _sweep():
    """Remove files of killed processes and of former versions, once per process."""
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
    """Let one process at a time compile the code of a key, while others wait, up to WAIT_S. The operating system
    releases the lock if its process ends. Without such locks (Windows, some network drives) or a writable folder,
    processes do not wait."""
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
    """Return the name under which code is stored: the SHA-256 of its function, the package's code and `parts`."""
    described = (function.__qualname__, fingerprint(function), package_code(), *parts)
    return hashlib.sha256("\0".join(described).encode()).hexdigest()


@lru_cache(maxsize=1)
def package_code():
    """Return the SHA-256 of the sources of all cells and kernels."""
    return sources_digest(*_COMPILED_FROM)


def sources_digest(*folders):
    """Return the SHA-256 of the package's modules in these folders, also if the package is in a zip."""
    root = _PACKAGE
    if not root.is_dir():
        import importlib.resources  # takes time

        root = importlib.resources.files("numbarnn")
    digest, waiting = hashlib.sha256(), [root.joinpath(*folder.split("/")) for folder in reversed(folders)]
    while waiting:
        one = waiting.pop()
        if one.is_dir():
            waiting += sorted(one.iterdir(), key=attrgetter("name"), reverse=True)
        elif one.name.endswith(".py"):
            digest.update(one.read_bytes())
    return digest.hexdigest()


def fingerprint(function):
    """Return the SHA-256 of what a Python function computes.

    Kernels of one factory have the same name and code but different closures. So the digest covers the bytecode and,
    recursively, every function, constant and jitted function in closures, globals and defaults. Functions of the
    package's modules count by name, since every key covers their sources, and so do NumPy's, since Numba replaces
    them. A value of an unknown kind counts by its repr. If the repr has an address, each process compiles the kernel
    again.
    """
    lines = []
    _describe(function, {}, lines)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _describe(value, seen, lines):
    """Add lines of text that identify a value in a kernel. seen: id -> (number, the value)."""
    if id(value) in seen:
        lines.append(f"seen {seen[id(value)][0]}")
        return
    kind, jitted = type(value), None
    if kind in _PLAIN:
        lines.append(f"{kind.__name__} {value!r}")
        return
    if not isinstance(value, type):  # the function inside a `@cuda.jit` dispatcher or an `@intrinsic`
        jitted = getattr(value, "py_func", None) or getattr(value, "_defn", None)
    if isinstance(jitted, types.FunctionType):
        seen[id(value)] = len(seen), value
        lines.append(f"{kind.__name__} {sorted(getattr(value, 'targetoptions', {}).items())!r}")
        _describe(jitted, seen, lines)
    elif isinstance(value, types.FunctionType):
        seen[id(value)] = len(seen), value
        module = value.__module__ or ""
        if module.startswith(_KEYED) and getattr(sys.modules.get(module), value.__name__, None) is value:
            lines.append(f"function {module}.{value.__name__}")
        else:
            _describe_function(value, seen, lines)
    elif isinstance(value, (tuple, list)):
        seen[id(value)] = len(seen), value
        lines.append(f"{kind.__name__} {len(value)}")
        for element in value:
            _describe(element, seen, lines)
    elif isinstance(value, types.ModuleType):
        lines.append(f"module {value.__name__}")
    elif isinstance(value, (set, frozenset)):
        lines.append(f"{kind.__name__} {sorted(map(repr, value))}")
    elif isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        lines.append(f"array {value.dtype!r} {value.shape} {content}")
    elif kind.__module__ == "numpy" and hasattr(value, "__qualname__"):  # np.where: its repr has an address
        lines.append(f"{kind.__qualname__} {value.__module__}.{value.__qualname__}")
    else:
        lines.append(f"{kind.__module__}.{kind.__qualname__} {value!r}")


def _describe_function(function, seen, lines):
    lines.append(f"function {function.__qualname__}")
    _describe(function.__defaults__, seen, lines)
    for name, cell in sorted(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        lines.append(f"closure {name}")
        with suppress(ValueError):  # not filled in yet (a function that refers to itself, or defined later)
            _describe(cell.cell_contents, seen, lines)
    codes, names = [function.__code__], function.__globals__
    for code in codes:  # grows by the code objects inside; places in files do not count
        lines.append(f"{code.co_code.hex()} {code.co_names} {code.co_varnames}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                codes.append(constant)
            else:
                known = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
                lines.append(f"{type(constant).__name__} {known!r}")
        for name in code.co_names:
            if name in names:
                lines.append(f"global {name}")
                _describe(names[name], seen, lines)


def run_source(source, file, namespace):
    """Execute text like `exec`, with sources for its functions. file: a unique name for the text."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec", dont_inherit=True), namespace)
