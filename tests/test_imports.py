"""Which part of the package may import which: cells -> kernels -> ... -> cli, and nothing heavy at first."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import numbarnn
from child import in_child

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
PACKAGE = Path(numbarnn.__file__).parent
ROOT = PACKAGE.parent

# A module may import parts of lower rank, and its own part. `reference` stands aside: see below.
RANKS = {
    "common": 0,
    "cells": 1,
    "cuda": 1,
    "optim": 1,
    "compile": 2,
    "weights": 2,
    "kernels": 3,
    "schedules": 4,
    "programs": 5,
    "engines": 6,
    "layers": 7,
    "functional": 8,
    "torch": 8,
    "convert": 8,
    "bench": 9,
    "course": 9,
    "cli": 10,
    "__main__": 11,
}
MODULES = sorted(PACKAGE.rglob("*.py"))
EXCEPTIONS = {
    # When a name is asked for that there is not.
    "numbarnn": "numbarnn imports numbarnn.cells.tracing.hints"
}


def part_of(dotted):
    """The part of the package that a dotted name belongs to: "numbarnn.cells.lstm" is in cells; numbarnn in ""."""
    return [*dotted.split("."), ""][1]


def dotted_name(path):
    """numbarnn.cells.lstm of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source, module, is_package):
    """Dotted names that a module's source imports from the package, anywhere in it, in functions and by name too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [one.value for one in node.args if isinstance(one, ast.Constant)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "numbarnn")


def violations(source, module, is_package=False):
    """What the module imports and may not."""
    own = part_of(module)
    for name in imported(source, module, is_package):
        part = part_of(name)
        if part == own:
            continue
        if part == "reference":
            allowed = own == "bench"
        elif own in ("reference", "") or part == "torch":  # who imports numbarnn.torch imports PyTorch
            allowed = module == "numbarnn.bench.custom_cells"  # whose loop is a module
        elif part not in RANKS:  # numbarnn itself, which leads to every layer; or its version
            allowed = name == "numbarnn.__version__" or RANKS[own] >= RANKS["bench"]
        else:
            allowed = RANKS[part] < RANKS[own]
        if not allowed:
            yield f"{module} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=[dotted_name(path) for path in MODULES])
def test_imports_only_what_it_may(path):
    module = dotted_name(path)
    assert part_of(module) in {*RANKS, "reference", ""}, f"{module} has no rank: add its part to RANKS"
    found = set(violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"))
    assert found == ({EXCEPTIONS[module]} if module in EXCEPTIONS else set())


def circles(imports):
    """Groups of modules that import each other, directly or through others: those with a way back to themselves.

    Args:
        imports: module -> the modules that it imports.
    """
    reached = {module: set() for module in imports}
    for module, found in reached.items():
        ahead = [*imports[module]]
        while ahead:
            one = ahead.pop()
            if one not in found:
                found.add(one)
                ahead += imports.get(one, ())
    return {frozenset(other for other in found if module in reached.get(other, ())) for module, found in reached.items()
            if module in found}  # fmt: skip


def test_no_modules_import_each_other_in_a_circle():
    names = {dotted_name(path) for path in MODULES}
    imports = {}
    for path in MODULES:
        module = dotted_name(path)
        found = imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        imports[module] = {name if name in names else name.rpartition(".")[0] for name in found} - {module}
    assert not circles(imports)
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}


def test_public_names_come_from_where_they_say():
    for name, module in numbarnn._PUBLIC.items():
        assert part_of(module) in RANKS
        assert getattr(numbarnn, name) is not None
    assert set(dir(numbarnn)) == {*numbarnn._PUBLIC, "__version__"}
    assert set(numbarnn.__all__) == set(dir(numbarnn)) - {"abs", "sum"}  # import * leaves Python's own
    with pytest.raises(AttributeError, match="no attribute 'Lstm'; it has LSTM"):
        numbarnn.Lstm  # noqa: B018


@pytest.mark.parametrize("module, heavy", [
    ("numbarnn", ("cupy", "torch", "numba")),
    ("numbarnn.cli", ("cupy", "torch", "numba")),
    pytest.param("numbarnn.torch", ("cupy", "numba", "torch._dynamo"), marks=needs_torch),
])  # fmt: skip
def test_import_is_light(module, heavy):
    """Neither CuPy nor PyTorch nor the compiler before something is computed, and PyTorch's not before it is used."""
    program = f"import sys, {module}; print(*[name for name in {heavy} if name in sys.modules])"
    assert in_child(program).split() == []


def test_the_cpu_needs_neither_cupy_nor_torch_nor_numba():
    program = """
        import sys
        sys.modules["cupy"] = sys.modules["torch"] = sys.modules["numba"] = None
        import numpy, numbarnn
        layer = numbarnn.LSTM(4, 5, seed=0)
        y, state, tape = layer.forward(numpy.ones((2, 3, 4), numpy.float32))
        print(layer.backward(tape, y).x.shape, layer.device)
    """
    assert in_child(program).split() == ["(2,", "3,", "4)", "cpu"]


def test_what_needs_numba_names_the_extra_that_has_it():
    program = "import sys; sys.modules['numba'] = None; from numbarnn import cli; sys.exit(cli.main(['kernels']))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=100)
    lacks = 'numba-cuda, the compiler of kernels, is not installed: pip install -e ".[cuda12]"'
    assert ran.returncode == 1 and ran.stderr.splitlines()[-1] == f"numbarnn kernels: {lacks}"


def test_the_simulator_stands_beside_the_cpu_without_numba():
    program = """
        import sys
        sys.modules["cupy"] = sys.modules["numba"] = None
        import numpy, numbarnn
        x = numpy.ones((2, 3, 4), numpy.float32)
        results = [numbarnn.LSTM(4, 5, seed=0, device=device)(x)[0] for device in ("cpu", "sim", "cpu", "sim")]
        print(max(abs(results[0] - y).max() for y in results) < 1e-6, (results[1] == results[3]).all())
    """
    assert in_child(program).split() == ["True", "True"]


def test_without_pytorch_tests_are_skipped_and_not_broken():
    """One that imports it asks for it before, as the README's test command need not install it; tests/pytorch does so
    for all that is in it."""
    tests, asks = sorted(set((ROOT / "tests").rglob("test_*.py")) - set((ROOT / "tests/pytorch").iterdir())), []
    for path in tests:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if "importorskip('torch')" in ast.unparse(statement):
                asks.append(path)
                break
            names = [one.name for one in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module] if isinstance(statement, ast.ImportFrom) else []
            needing = {name for name in names if f"{name}.".startswith(("torch.", "numbarnn.torch."))}
            assert not needing, f"{path.name} imports {needing}: pytest.importorskip('torch') before it"
    assert 10 < len(asks) < len(tests)


def test_top_level_of_the_repository():
    """pyproject.toml, the package, tests, notebooks, README.md, LICENSE, and dot files; nothing else."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not in a git checkout")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"pyproject.toml", "numbarnn", "tests", "notebooks", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= allowed
