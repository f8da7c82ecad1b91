"""Every notebook is committed without outputs, small, and runs from top to bottom."""

import os
import sys
from pathlib import Path

import pytest

import numbarnn

if not os.environ.get("CI"):  # there, a package that is missing is an error
    for package in ("nbformat", "nbclient", "jupyter_client", "ipykernel"):
        pytest.importorskip(package)

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

PATHS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MAX_BYTES = 40_000
MAX_CELL_LINES = 30
MAX_COLUMNS = 120
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
    for cell in code_cells(read(path)):
        assert (cell.outputs, cell.execution_count, dict(cell.metadata)) == ([], None, {}), f"cell {cell.id}"


@each_notebook
def test_cells_are_short(path):
    for cell in read(path).cells:
        lines = cell.source.splitlines()
        assert 0 < len(lines) <= MAX_CELL_LINES, f"cell {cell.id} has {len(lines)} lines"
        if cell.cell_type == "code":
            assert max(map(len, lines)) <= MAX_COLUMNS, f"cell {cell.id}"


@each_notebook
def test_shows_the_package_and_ends_in_a_check(path):
    cells = code_cells(read(path))
    everything = "\n".join(cell.source for cell in cells)
    assert "import numbarnn" in everything
    assert "inspect.getsource" in everything
    assert any(line.startswith("assert ") for line in cells[-1].source.splitlines())


@pytest.mark.slow
@each_notebook
def test_runs_from_top_to_bottom(path, tmp_path):
    notebook = read(path)
    if any("import torch\n" in cell.source for cell in code_cells(notebook)):
        pytest.importorskip("torch")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(numbarnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep),
        "IPYTHONDIR": str(tmp_path),  # not the user's settings
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # as Jupyter sets it
    }
    client = NotebookClient(
        notebook,
        kernel_manager_class=RunningInterpreter,
        timeout=CELL_TIMEOUT,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=environment)  # raises CellExecutionError, with the traceback, where a cell fails

    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
