"""Every notebook is committed without outputs, small, and runs from top to bottom; every exercise can be solved.

The documentation's site is built here, at the end, of the notebooks that were executed: once, in the same process.
"""

import ast
import copy
import html
import importlib.util
import math
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn

if not os.environ.get("CI"):  # there, a package that is missing is an error
    for package in ("nbformat", "nbclient", "jupyter_client", "ipykernel"):
        pytest.importorskip(package)

import nbformat
import psutil  # ipykernel needs it
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

import documentation
import exercises

PATHS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MAX_BYTES = 60_000  # with the solutions of its exercises
MAX_CELL_LINES = 30
MAX_KERNEL_LINES = 60  # of a cell with a kernel, which is shown whole
MAX_COLUMNS = 120
MAX_SECONDS = 10  # of the processor: of a cell without the tag "slow", that is 5 on two cores
EXECUTED = {}  # file name -> a notebook with its outputs, of those that ran from top to bottom in this process
CELL_TIMEOUT = 300  # seconds; a cell that compiles for the first time on a busy machine takes tens of them

each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


class RunningInterpreter(AsyncKernelManager):
    """Starts kernels with this very interpreter, whether or not a kernelspec is registered on the machine."""

    @property
    def kernel_spec(self):
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="the interpreter of the tests", language="python")


def read(path):
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert PATHS


@each_notebook
def test_file(path):
    notebook = read(path)
    nbformat.validate(notebook)  # 4.5 and later: every cell has an id, and no two have the same
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert path.stat().st_size <= MAX_BYTES


@each_notebook
def test_is_committed_without_outputs(path):
    for cell in read(path).cells:
        assert set(cell.metadata) <= {"tags"} and exercises.tags(cell) <= exercises.TAGS, f"cell {cell.id}"
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), f"cell {cell.id}"


@each_notebook
def test_cells_are_short(path):
    for cell in read(path).cells:
        lines = cell.source.splitlines()
        limit = math.inf if "solution" in exercises.tags(cell) else MAX_CELL_LINES  # those are folded away
        if cell.cell_type == "code" and "@cuda.jit" in cell.source:
            limit = MAX_KERNEL_LINES
        assert 0 < len(lines) <= limit, f"cell {cell.id} has {len(lines)} lines"
        if cell.cell_type == "code":
            assert max(map(len, lines)) <= MAX_COLUMNS, f"cell {cell.id}"


@each_notebook
def test_shows_the_package_and_ends_in_a_check(path):
    cells = code_cells(read(path))
    everything = "\n".join(cell.source for cell in cells)
    assert "import numbarnn" in everything
    assert "inspect.getsource" in everything
    assert any(line.startswith("assert ") for line in cells[-1].source.splitlines())


@each_notebook
def test_has_exercises(path):
    assert 3 <= len(exercises.of_notebook(read(path))) <= 6


@each_notebook
def test_slow_cells_say_so(path):
    for cell in code_cells(read(path)):
        if "slow" in exercises.tags(cell):
            assert cell.source.startswith("# takes about ") and "course.progress(" in cell.source, f"cell {cell.id}"


def test_first_cell_is_the_same_everywhere():
    """The one that installs the package on a hosted machine."""
    assert len({code_cells(read(path))[0].source for path in PATHS}) == 1


@each_notebook
def test_checks_of_the_courses_own_code_say_whose_line_errors_quote(path):
    """Where the attempt is written in the check's own cell, its `of` is what the student wrote."""
    for cell in code_cells(read(path)):
        tree = ast.parse(cell.source) if "check" in exercises.tags(cell) else ast.parse("")
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "course.check":
                (attempt, *_), names = call.args, ast.unparse(call)
                if isinstance(attempt, ast.Lambda) or getattr(attempt, "id", None) in own:
                    assert "of=" in names or "**about" in names, f"cell {cell.id}"


def test_the_character_model_goes_on_without_safetensors(monkeypatch, capsys):
    (cell,) = [cell for cell in read(PATHS[8]).cells if cell.id == "safetensors"]
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    model = SimpleNamespace(layer=numbarnn.LSTM(2, 3, device="cpu"))
    names = {"TemporaryDirectory": tempfile.TemporaryDirectory, "Path": Path, "convert": numbarnn.convert, "np": np}
    exec(cell.source, names | {"model": model})
    assert capsys.readouterr().out.startswith("not written: ")


class Client(NotebookClient):
    """Runs a notebook and, at each exercise, the check of the wrong attempt, of the solution, and of its unsolved cell.

    Args:
        stay_solved: whether the unsolved cell comes first, so that the notebook goes on with the solution.
    """

    def __init__(self, notebook, stay_solved, **options):
        options |= {"timeout": CELL_TIMEOUT, "startup_timeout": CELL_TIMEOUT}
        super().__init__(notebook, kernel_manager_class=RunningInterpreter, **options)
        self.stay_solved, self.seconds, self.said = stay_solved, {}, {}

    def run(self, environment):
        """Run all; `seconds` of the processor by cell and, by exercise, what the checks of each form `said`."""
        self.reset_execution_trackers()
        at = {exercise.index: exercise for exercise in exercises.of_notebook(self.nb)}
        with self.setup_kernel(env=environment):
            process = psutil.Process(self.km.provisioner.pid)
            for index, cell in enumerate(self.nb.cells):
                if index in at:
                    self.said[cell.id] = {} if self.stay_solved else self._of_forms(at[index])
                before = process.cpu_times()
                self.execute_cell(cell, index)  # raises CellExecutionError, with the traceback, where a cell fails
                after = process.cpu_times()
                self.seconds[cell.id] = after.user + after.system - before.user - before.system
                if index - 1 in at:
                    said = self.said[self.nb.cells[index - 1].id]
                    said["unsolved"] = exercises.statuses(cell)
                    said |= self._of_forms(at[index - 1]) if self.stay_solved else {}

    def _of_forms(self, exercise):
        own = self.nb.cells[exercise.index : exercise.index + 2]
        said = {}
        for form in ("wrong", "solution"):
            if (source := getattr(exercise, form)) is not None:
                attempt, checked = map(copy.deepcopy, own)
                attempt.source = source
                self.execute_cell(attempt, exercise.index)
                self.execute_cell(checked, exercise.index + 1)
                said[form] = exercises.statuses(checked)
        if not self.stay_solved:
            self.nb.cells[exercise.index : exercise.index + 2] = own
        return said


def execute(path, tmp_path, stay_solved=False):
    notebook = read(path)
    if any(re.search("^import torch$", cell.source, re.MULTILINE) for cell in code_cells(notebook)):
        pytest.importorskip("torch")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(numbarnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
        "IPYTHONDIR": str(tmp_path),  # not the user's settings
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # as Jupyter sets it
    }
    client = Client(notebook, stay_solved, resources={"metadata": {"path": str(path.parent)}})
    client.run(environment)
    return client


@pytest.mark.slow
@each_notebook
def test_runs_from_top_to_bottom(path, tmp_path):
    """With no exercise solved; the checks of all tell the unsolved cell, the wrong attempt and the solution apart."""
    client = execute(path, tmp_path)
    for cell, said in client.said.items():
        assert set(said["unsolved"]) == {"not solved yet"}, (cell, said["unsolved"])
        assert set(said["solution"]) == {"right"}, (cell, said["solution"])
        assert "wrong" in said.get("wrong", ["wrong"]), (cell, said["wrong"])

    for cell in code_cells(client.nb):
        if "slow" not in exercises.tags(cell):
            assert client.seconds[cell.id] < MAX_SECONDS, f"cell {cell.id} takes long and has no tag that says so"
    outputs = [output for cell in code_cells(client.nb) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    EXECUTED[path.name] = client.nb


@pytest.mark.full
@each_notebook
def test_runs_with_the_solutions(path, tmp_path):
    client = execute(path, tmp_path, stay_solved=True)
    assert {one for said in client.said.values() for one in said["solution"]} == {"right"}


SAID = {  # page -> words of its outputs
    "tutorial/first.html": ("(20, 4, 32) (2, 4, 32) (2, 4, 32)", "x must have"),
    "tutorial/cell.html": ("gradients against finite differences", "use numbarnn.tanh"),
    "guides/lengths.html": ("lengths",),
    "guides/streaming.html": ("(1, 1, 128) [(1, 1, 128), (1, 1, 128)]",),
}


@pytest.mark.slow
@pytest.mark.parametrize("run_pages", [False, pytest.param(True, marks=pytest.mark.full)], ids=("code", "outputs"))
def test_the_site_builds_without_a_warning(tmp_path, run_pages):
    """Of executed notebooks, all of them in CI, where this file runs whole; alone, of the notebooks as they are. The
    Python of pages is executed by test_pages.py, and here too with `full` or for the site that is asked for.

    NUMBARNN_SITE names a folder that is to have the site.
    """
    run_pages = run_pages or bool(os.environ.get("NUMBARNN_SITE"))
    for package in documentation.NEEDS:
        if not os.environ.get("CI"):  # there, a package that is missing is an error
            pytest.importorskip(package)
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the page about numbarnn.torch needs PyTorch")
    site = documentation.build(tmp_path, EXECUTED, run_pages)
    notebooks = documentation.ROOT / "notebooks"
    pages = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    sources = [*notebooks.rglob("*.md"), *PATHS]
    assert pages.keys() >= {path.relative_to(notebooks).with_suffix(".html").as_posix() for path in sources}
    assert "<math" in pages["01_one_step.html"]
    loaded = [
        re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text) for text in pages.values()
    ]
    assert not any(loaded), "a page needs the network"
    assert set(EXECUTED) == {path.name for path in PATHS} or not os.environ.get("CI")
    for page, said in SAID.items() if run_pages else ():
        outputs = re.findall(r'<div class="output[^>]*>.*?</pre>', pages[page], re.DOTALL)
        text = html.unescape(re.sub("<[^>]*>", "", "".join(outputs)))
        assert all(words in text for words in said), (page, text)
    for name in EXECUTED:
        pictures = re.findall(r'src="(_images/[^"]+\.png)"', pages[Path(name).with_suffix(".html").name])
        assert pictures and all((site / picture).exists() for picture in pictures), f"{name}: no pictures"
    if os.environ.get("NUMBARNN_SITE"):
        shutil.copytree(site, os.environ["NUMBARNN_SITE"], dirs_exist_ok=True)
