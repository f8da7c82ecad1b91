"""Type hints of the public API: all of it has them, and mypy finds what is right and what is wrong."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import numbarnn
from numbarnn import convert, functional
from numbarnn.layers import parameters

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "typing"
# Methods of Python's that need no hints: nobody calls them by name.
UNSEEN = {"__getstate__", "__setstate__", "__reduce_ex__", "__repr__", "__del__"}


def public():
    """(name, function) of all public functions and methods."""
    found = [(name, getattr(numbarnn, name)) for name in numbarnn._PUBLIC]
    for module in (convert, functional):
        found += [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
    try:
        import numbarnn.torch as nrt
    except ImportError:
        pass
    else:
        found += [(f"torch.{name}", getattr(nrt, name)) for name in nrt.__all__]
    layers = [numbarnn.layers.Recurrent, numbarnn.layers.Stepper, parameters.Parameters]
    for name, one in [*found, *((cls.__name__, cls) for cls in layers)]:
        if inspect.isclass(one) and not issubclass(one, Exception):
            for method, value in vars(one).items():
                value = value.fget if isinstance(value, property) else value
                hidden = method.startswith("_") and not method.startswith("__")
                generated = "<string>" in getattr(getattr(value, "__code__", None), "co_filename", "")
                if inspect.isfunction(value) and not (hidden or generated or method in UNSEEN):
                    yield f"{name}.{method}", value
        elif inspect.isfunction(one):
            yield name, one


def test_everything_public_has_hints():
    overloaded = {"cell", "RNN.__init__"}  # their hints are those of `overload`s
    without = []
    for name, function in public():
        if name in overloaded or name.split(".")[0] == "Descriptor":
            continue
        signature = inspect.signature(function)
        parts = [one for one in signature.parameters.values() if one.name != "self"]
        missing = [one.name for one in parts if one.annotation is one.empty]
        lambdas = function.__name__ == "<lambda>"  # of a property, whose attribute is described in its class
        if not lambdas and (missing or signature.return_annotation is signature.empty):
            without.append((name, missing))
    assert not without


def test_the_stub_has_the_public_names():
    """`numbarnn/__init__.pyi` says to type checkers what `__getattr__` loads."""
    names = set()
    for node in ast.parse((ROOT / "numbarnn" / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            stars = numbarnn.cells.functions.__all__
            names |= {part for alias in node.names for part in (stars if alias.name == "*" else [alias.asname])}
    assert names == set(numbarnn._PUBLIC)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_help_shows_the_arguments(name):
    known = inspect.signature(getattr(numbarnn, name)).parameters
    assert {"hidden_size", "dtype", "device", "schedule", "seed"} <= set(known)
    assert not {"args", "arguments", "options", "kwargs"} & set(known)
    values = {one: part.default for one, part in known.items() if part.default is not part.empty}
    made = getattr(numbarnn, name)(3, 4, **{one: value for one, value in values.items() if one != "device"})
    assert repr(made) == repr(getattr(numbarnn, name)(3, 4))


def test_dir_is_what_is_public():
    assert dir(convert) == sorted(convert.__all__)
    assert set(dir(numbarnn)) == {*numbarnn._PUBLIC, "__version__"}


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """What mypy says of both files; of PyTorch and Numba, which are large, it need not know anything."""
    pytest.importorskip("mypy")
    config = tmp_path_factory.mktemp("mypy") / "mypy.ini"
    others = "torch.*,numba.*,cupy.*,llvmlite.*,greenlet.*,scipy_openblas32.*,onnx.*,keras.*,ml_dtypes.*"
    config.write_text(
        f"[mypy]\nfollow_imports = silent\n[mypy-{others}]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    files = [str(FOLDER / name) for name in ("usage.py", "mistakes.py")]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), "--show-error-codes"]
    command += ["--cache-dir", str(config.parent / "cache"), "--python-version", "3.11", *files]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode < 2, ran.stderr or ran.stdout
    return ran.stdout


def test_what_people_write_is_right(mypy):
    assert "usage.py" not in mypy, mypy


def test_mistakes_are_found(mypy):
    found = dict(re.findall(r"mistakes\.py:(\d+): error: .*\[([\w-]+)\]", mypy))
    wanted = {}
    for number, line in enumerate((FOLDER / "mistakes.py").read_text().splitlines(), 1):
        if code := re.search(r"  # ([\w-]+)$", line):
            wanted[str(number)] = code[1]
    assert found == wanted
