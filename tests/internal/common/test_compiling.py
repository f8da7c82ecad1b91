"""Compiled code on disk: found again by the next process, and a word while something has to be compiled first."""

import os
import re
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import CELLS, library
from numbarnn.common import code_cache, notice
from numbarnn.compile import native
from numbarnn.engines.cpu import cell_steps
from numbarnn.engines.cpu.cell_parts import CellParts

RELU_FACTORIES = (("lstm_with", ("hard_sigmoid", "elu", "leaky_relu")), ("recurrent_highway", (2,)))

# What counts the functions that are compiled for the CPU in a process, which does without Numba.
COUNT = """
import logging, sys
from numbarnn.compile import native
names, write = [], native.compiled
native.compiled = lambda module: names.append(module.name.split(".")[1]) or write(module)
{work}
assert "numba" not in sys.modules
print(len(names))
"""
NAMES = COUNT.replace("print(len(names))", "print(*names)")
LSTM = """
import numpy, numbarnn
layer = numbarnn.LSTM(4, 5, device="cpu", seed=0)
y, _, tape = layer.forward(numpy.ones(({steps}, 2, 4), "float32"))
layer.backward(tape, y)
"""
RATES = """
import numpy, numbarnn
from numbarnn.cells import library
def call(**rates):
    cell = numbarnn.cell(library.gru, **rates)
    layer = numbarnn.RNN(cell, 4, 33, device="cpu", seed=0)
    x = numpy.ones((2, 2, 4), "float32")
    y, _, tape = layer.forward(x)
    return y, layer.backward(tape, y).x, layer(x)[0]
first, of_first = call(zoneout_h=0.5, dropout_n=0.25), len(names)
assert all((one != other).any() for one, other in zip(first, call(zoneout_h=0.3, dropout_n=0.1)))
names = [str(of_first), str(len(names))]
"""
MULTIPLY = """
import numpy
from numbarnn import engines
from numbarnn.common import notice
notice.PATIENCE_S = 0.02
logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
engines.get("cpu").multiply(*numpy.zeros((3, 2, 2), "float32"))
"""


def run(program, **environment):
    """A process' output and error output."""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


# -------------------------------------------------------------------------------------- what names it on disk
def all_cells():
    """Name -> Cell: the built-in ones and the library's."""
    from numbarnn.cells import functions

    for name in library.__all__:
        found = getattr(library, name)
        if isinstance(found, types.FunctionType):
            for factory, arguments in RELU_FACTORIES:
                if name == factory:
                    yield name, found(*(getattr(functions, a) if isinstance(a, str) else a for a in arguments))
        else:
            yield name, found
    yield from ((f"built-in {name}", cell) for name, cell in CELLS.items())


def test_no_name_holds_an_address():
    """np.where has one in its repr: cells with ReLU, where, clip and others were compiled anew in each process."""
    cells = dict(all_cells())
    assert len(cells) == len(library.__all__) + len(CELLS)
    for name, cell in cells.items():
        functions = [f for part in (cell, *cell.stages) for f in (part.forward, part.backward)]
        code_cache._describe(functions, {}, lines := [])
        assert not [line for line in lines if re.search(r"0x[0-9a-f]{4,}", line)], name


def test_a_first_call_compiles_what_it_uses_alone(tmp_path):
    """Beginning with an empty folder; a second process finds that, and compiles only what more steps use."""
    folder, found = str(tmp_path), []
    for steps in (2, 2, 20):
        said, _ = run(NAMES.format(work=LSTM.format(steps=steps)), NUMBARNN_CACHE_DIR=folder)
        found.append(sorted(said.split()))
    cell = {"train_units", "backward_units"}
    loops = {"forward_loop", "backward_loop", "multiply_and_add"}
    loops |= {"copy_rows", "run_alone"}  # of small calls
    as_they_lie, panels = {"multiply_by_rows", "multiply_by_columns"}, {"pack_rows", "pack_columns", "panel_product"}
    assert found == [sorted(loops | cell | as_they_lie), [], sorted(panels)]


@pytest.mark.full
def test_other_rates_of_random_numbers_compile_nothing(tmp_path):
    """Of zoneout and of dropout within a cell, likewise; nor where nothing can be kept on disk."""
    file = tmp_path / "no_directory"
    file.touch()
    for folder in (tmp_path / "kept", file):
        said, _ = run(NAMES.format(work=RATES), NUMBARNN_CACHE_DIR=str(folder))
        first, both = map(int, said.split())
        assert 5 < first == both


# -------------------------------------------------------------------------------------- the word
@pytest.fixture
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(notice, "_said", set())
    monkeypatch.setattr(notice, "_spent", {})
    monkeypatch.setattr(notice, "PATIENCE_S", 0.05)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of a notebook's test: notices would be printed


class Terminal:
    """A stand-in for the error stream where a person looks."""

    def __init__(self):
        self.text, self.written = "", threading.Event()

    def isatty(self):
        return True

    def flush(self):
        """Nothing is kept back."""

    def write(self, text):
        self.text += text
        self.written.set()


def test_it_is_said_while_one_waits(nothing_said_yet, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with notice.compiling("the loops", "a minute", "some/folder"):
        with notice.compiling("what they call", "an hour", "some/folder"):
            assert terminal.written.wait(30)
    assert terminal.text == (
        "numbarnn is compiling the loops, which takes about a minute; kept in some/folder for the next time\n"
    )
    with notice.compiling("the loops", "a minute", "some/folder"):  # once is enough
        threading.Event().wait(0.2)
    assert terminal.text.count("\n") == 1


def test_the_first_process_says_so_and_the_second_does_not(tmp_path):
    said, errors = run(COUNT.format(work=MULTIPLY), NUMBARNN_CACHE_DIR=str(tmp_path))
    assert int(said) > 0
    (line,) = errors.splitlines()
    assert line.startswith("numbarnn: numbarnn is compiling the CPU engine's loops and products, ")
    assert f"; kept in {tmp_path}" in line
    assert run(COUNT.format(work=MULTIPLY), NUMBARNN_CACHE_DIR=str(tmp_path)) == ("0\n", "")


def long_cell(terms):
    """A cell whose equation has two operations per term, and what one step makes of W x + R h = a."""

    def of_a(a):
        total = a
        for k in range(terms):
            total = total * (0.3 + k / terms) + a
        return nr.tanh(total)

    def long_equations(x, h, p):
        return of_a(p.W @ x + p.R @ h)

    return nr.cell(long_equations), of_a


def test_machine_code_of_long_equations_grows_with_their_length():
    sizes = []
    for terms in (500, 1000):
        cell, _ = long_cell(terms)
        module = cell_steps.infer_units.module("long", (CellParts(cell, "float32"),))
        sizes.append(len(str(native.optimized(module)).splitlines()))
    assert 1.8 < sizes[1] / sizes[0] < 2.2
    assert sizes[0] < 12 * 1000  # the loop's body stands there once, not once for each of several vectors


def test_a_thousand_operations_are_computed_as_they_stand():
    cell, of_a = long_cell(700)
    layer = nr.RNN(cell, 3, 40, seed=0)
    x, h = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32), np.zeros((2, 40))
    W, R = map(np.float64, list(layer.state_dict().values())[:2])
    bias = sum(list(layer.state_dict().values())[2:])
    y, *_ = layer(x)
    for t in range(4):
        h = of_a(x[t] @ W.T + h @ R.T + bias)
        np.testing.assert_allclose(y[t], h, rtol=1e-4, atol=1e-5)
