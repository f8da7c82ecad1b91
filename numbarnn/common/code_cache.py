"""Compiled code on disk, so that a second process compiles nothing: kernels (`cuda.compiler`) and the CPU's functions
(`compile.native`).

One file per kernel or function, named by its key: a line of JSON (what is known about it, and the code's hash), then
the cubin, or the CPU's code. Files are written whole or not at all; one that cannot be read, or is damaged, is
ignored.
"""

import hashlib
import inspect
import json
import os
import sys
import tempfile
import types
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np

_PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_FROM = ("cells", "common", "compile", "kernels", "cuda")  # folders with code that becomes part of kernels
_CO_HAS_DOCSTRING = 0x4000000  # as CPython 3.13 has it in `inspect`
_warned = False


def directory():
    """Where kernels are kept: $NUMBARNN_CACHE_DIR, else `numbarnn` in the user's cache directory."""
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
    """The same; None where there is no home directory."""
    try:
        return directory()
    except RuntimeError:
        return None


def read(key, suffix=".cubin"):
    """(description, code) stored under `key`, or None if there is none that is whole.

    Args:
        suffix: of the file: what kind of code it is.
    """
    try:
        first, _, cubin = (directory() / f"{key}{suffix}").read_bytes().partition(b"\n")
        description = json.loads(first)
        whole = description.pop("sha256") == hashlib.sha256(cubin).hexdigest()
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError):
        return None  # absent, unreadable, no home directory, or not a file of ours
    return (description, cubin) if whole else None


def write(key, description, cubin, suffix=".cubin"):
    """Store a kernel, or other code; where that is not possible, say so once and go on without."""
    global _warned
    first = json.dumps({**description, "sha256": hashlib.sha256(cubin).hexdigest()}).encode()
    temporary = None
    try:
        folder = directory()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{key}.", suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(first + b"\n" + cubin)
        os.replace(temporary, folder / f"{key}{suffix}")
    except (OSError, RuntimeError) as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if not _warned:
            _warned = True
            warnings.warn(
                f"compiled kernels cannot be kept on disk ({error}); each process will compile them again. "
                "Set NUMBARNN_CACHE_DIR to a writable directory.",
                stacklevel=2,
            )


# ----------------------------------------------------------------------------------------------------- keys
def key(function, *parts):
    """The name a kernel is stored under: SHA-256 of its function, the package's code and `parts`."""
    described = (function.__qualname__, fingerprint(function), package_code(), *parts)
    return hashlib.sha256("\0".join(described).encode()).hexdigest()


@lru_cache(maxsize=1)
def package_code():
    """SHA-256 of the code of all cells and kernels, read once per process."""
    paths = [path for folder in _COMPILED_FROM for path in (_PACKAGE / folder).glob("**/*.py")]
    return hashlib.sha256(
        "".join(sorted(code_of(path.read_text(encoding="utf-8")) for path in paths)).encode()
    ).hexdigest()


def code_of(source):
    """SHA-256 of what a module's text says to Python: comments, docstrings and places of lines do not count."""
    code = compile(source, "", "exec", dont_inherit=True)
    return hashlib.sha256("\n".join(_describe_code(code, {}, {})).encode()).hexdigest()


def fingerprint(function):
    """SHA-256 of what a Python function computes.

    Kernels made by one factory share name and source and differ in what they close over. So the digest covers the
    bytecode and, recursively, every function, constant and jitted function that is reached through closures, globals
    and defaults. Where these stand and what their docstrings say does not count. NumPy's functions count by name, as
    Numba compiles its own in their place. A value of an unknown kind counts by its repr: where an address is in it,
    each process compiles the kernel again.
    """
    return hashlib.sha256("\n".join(_describe(function, {})).encode()).hexdigest()


def _describe(value, seen):
    """Lines of text that identify a value a kernel refers to. `seen`: id -> (number, the value)."""
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
        yield f"{type(value).__qualname__} {value.__module__}.{value.__qualname__}, NumPy {np.__version__}"
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__} {value!r}"


def _jitted_function(value):
    """The Python function inside a `@cuda.jit` dispatcher or an `@intrinsic`; None for anything else."""
    if isinstance(value, type):
        return None
    inner = getattr(value, "py_func", None) or getattr(value, "_defn", None)
    return inner if isinstance(inner, types.FunctionType) else None


def _describe_function(function, seen):
    yield f"function {function.__qualname__}"
    yield from _describe(function.__defaults__, seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure {name}"
        try:
            content = cell.cell_contents
        except ValueError:  # not filled in yet (a function that refers to itself, or defined later)
            continue
        yield from _describe(content, seen)
    yield from _describe_code(function.__code__, function.__globals__, seen)


def _has_docstring(code):
    """Whether the first constant of a code object is its docstring."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    if not code.co_flags & inspect.CO_OPTIMIZED:  # of a module or a class
        return "__doc__" in code.co_names
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & _CO_HAS_DOCSTRING)
    return not code.co_name.startswith("<")  # not a lambda, which has none


def _describe_code(code, namespace, seen):
    names = (code.co_names, code.co_freevars, code.co_cellvars)
    yield f"code {code.co_code.hex()} {code.co_argcount} {names}"
    for constant in code.co_consts[_has_docstring(code) :]:
        if isinstance(constant, types.CodeType):
            yield from _describe_code(constant, namespace, seen)
        else:
            yield from _describe(constant, seen)
    for name in code.co_names:
        if name in namespace:
            yield f"global {name}"
            yield from _describe(namespace[name], seen)
