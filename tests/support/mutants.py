"""Mistakes made on purpose: one place of a function changed by a pattern. Does a test see it?

    python tests/support/mutants.py numbarnn/engines/cpu/forward.py tests/test_conformance.py --most 10
    python tests/support/mutants.py numbarnn/cells/gru.py:gru_backward tests/test_conformance.py

makes them in a copy of this checkout, one after the other, runs the tests there, and prints which mistakes they miss.
Kernels' mutants are made in the process (`altered`) by tests/simulated/test_mutants.py. A mutant's name is its
function, its pattern and which place it is: "make_forward: barrier 1".
"""

import argparse
import ast
import inspect
import os
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

ROOT = Path(__file__).parents[2]
OPPOSITE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SIGN = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _ends_with(call, *names):
    return ast.unparse(call.func).rpartition(".")[2] in names


def barrier(node):
    """Threads do not wait for each other."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.Pass() if _ends_with(node.value, "syncthreads", "syncwarp", "meet", "meet_packed") else None
    return None


def factor(node):
    """The second factor is forgotten."""
    return node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else None


def sign(node):
    """A plus for a minus, and the other way round."""
    if not isinstance(node, ast.BinOp) or type(node.op) not in SIGN:
        return None
    return ast.BinOp(node.left, SIGN[type(node.op)](), node.right)


def comparison(node):
    """Off by one, or the opposite."""
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in OPPOSITE:
        return None
    return ast.Compare(node.left, [OPPOSITE[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def condition(node):
    """The last of several conditions is forgotten."""
    if not isinstance(node, ast.BoolOp):
        return None
    return node.values[0] if len(node.values) == 2 else ast.BoolOp(node.op, node.values[:-1])


def last_turn(node):
    """A loop ends one turn early."""
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call) or not _ends_with(node.iter, "range"):
        return None
    *begin, end = node.iter.args[:2]
    shorter = ast.BinOp(end, ast.Sub(), ast.Constant(1))
    return ast.For(
        node.target, ast.Call(node.iter.func, [*begin, shorter, *node.iter.args[2:]], []), node.body, node.orelse
    )


def never(node):
    """What is stored where it is valid is stored nowhere."""
    if not isinstance(node, ast.Call) or not any(isinstance(one, ast.Name) and one.id == "valid" for one in node.args):
        return None
    args = [ast.Constant(False) if isinstance(one, ast.Name) and one.id == "valid" else one for one in node.args]
    return ast.Call(node.func, args, node.keywords)


PATTERNS = {one.__name__: one for one in (barrier, factor, sign, comparison, condition, last_turn, never)}


class _At(ast.NodeTransformer):
    """Applies a pattern at the place of that number, or counts places."""

    def __init__(self, pattern, number=None):
        self.pattern, self.number, self.count = pattern, number, 0

    def visit(self, node):
        changed = self.pattern(node)
        if changed is not None:
            self.count += 1
            if self.count - 1 == self.number:
                return ast.copy_location(changed, node)
        return self.generic_visit(node)


def names_of(source):
    """(pattern, number) of every mutant of a source."""
    for name, pattern in PATTERNS.items():
        counter = _At(pattern)
        counter.visit(ast.parse(source))
        yield from ((name, number) for number in range(counter.count))


def mutated(source, pattern, number):
    """The source with one place changed."""
    tree = _At(PATTERNS[pattern], number).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


def sample(choices, most, seed=0):
    """At most so many of a list, always the same."""
    choices = list(choices)
    return choices if len(choices) <= most else sorted(random.Random(seed).sample(choices, most), key=choices.index)


# ---------------------------------------------------------------------------------------------- within this process
def persistent_modules():
    """The modules of persistent kernels."""
    from numbarnn.kernels import persistent

    return [import_module(f"{persistent.__name__}.{one.name}") for one in iter_modules(persistent.__path__)]


@contextmanager
def altered(replacements, engine=None):
    """Persistent kernels that are made inside use other functions: {(module, name): function}. Calls that were bound
    before keep their kernels; an `engine` forgets its recorded ones."""
    modules = persistent_modules()

    def forget():
        for thing in (thing for module in modules for thing in vars(module).values()):
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()
        if engine is not None and engine.records_jobs:
            engine.buffer_pool.clear()

    before = {}
    forget()  # first: a replacement may call what it replaces
    for (module, name), value in replacements.items():
        original = getattr(module, name)
        for other in dict.fromkeys((module, *modules)):
            if other is module or vars(other).get(name) is original:
                before[other, name] = vars(other).get(name)  # None: the module makes it when asked, as ptx does
                setattr(other, name, value)
    try:
        yield
    finally:
        for (module, name), original in before.items():
            setattr(module, name, original) if original is not None else delattr(module, name)
        forget()


def source_of(module, function):
    """A function's source; of a factory that keeps what it makes its own."""
    return inspect.getsource(inspect.unwrap(getattr(module, function)))


def written_anew(module, function, text):
    """The module's function of that name with another source."""
    namespace = dict(inspect.unwrap(getattr(module, function)).__globals__)
    exec(compile(text, "mutant", "exec"), namespace)
    return namespace[function]


# -------------------------------------------------------------------------------------------------------- in a copy
def functions_of(path, only=""):
    """(name, source) of a file's functions at the top."""
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and only in ("", node.name):
            yield node.name, ast.unparse(node)


def run(folder, tests):
    """Whether pytest passes in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder), "NUMBARNN_CACHE_DIR": str(folder / ".kernels")}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode == 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", help="a file, or FILE:FUNCTION")
    parser.add_argument("tests", nargs="+", help="arguments of pytest")
    parser.add_argument("--most", type=int, default=20, help="how many mutants to make")
    parser.add_argument("--seed", type=int, default=0, help="which")
    options = parser.parse_args(arguments)
    file, _, only = options.place.partition(":")
    every = [(name, text, *one) for name, text in functions_of(ROOT / file, only) for one in names_of(text)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "checkout"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        target = folder / file
        whole = ast.parse(target.read_text(encoding="utf-8"))
        assert run(folder, options.tests), "the tests must pass without a mistake"
        for name, text, pattern, number in sample(every, options.most, options.seed):
            wrong = ast.parse(mutated(text, pattern, number)).body[0]
            body = [wrong if getattr(node, "name", None) == name else node for node in whole.body]
            target.write_text(ast.unparse(ast.Module(body, [])), encoding="utf-8")
            found = not run(folder, options.tests)
            missed += not found
            print(f"{'found ' if found else 'MISSED'} {name}: {pattern} {number}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
