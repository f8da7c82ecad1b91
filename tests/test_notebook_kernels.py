"""The kernels of notebooks 3 and 5 on a GPU, compiled: notebooks themselves are run in the simulator."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import course, reference

nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.gpu
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def is_kept(node):
    """Whether a statement of a notebook is an import, a kernel, or sizes and numbers that kernels are compiled with."""
    if isinstance(node, ast.FunctionDef):
        return any("cuda.jit" in ast.unparse(one) for one in node.decorator_list)
    if isinstance(node, ast.ImportFrom):
        return node.module in ("numba", "numbarnn.cuda")
    if isinstance(node, ast.Import):
        return node.names[0].name in ("math", "numpy")
    if isinstance(node, ast.Assign):
        names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
        return all(map(str.isupper, names)) and not any(isinstance(one, ast.Subscript) for one in ast.walk(node))
    return False


def module_of(name, folder):
    """The kernels of a notebook, with what they refer to, as a module."""
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    sources = [
        cell.source
        for cell in cells
        if cell.cell_type == "code" and "%pip" not in cell.source and "exercise" not in cell.metadata.get("tags", ())
    ]
    wanted = [
        ast.unparse(node)
        for source in sources
        for node in ast.parse(source).body
        if is_kept(node) and not ast.unparse(node).startswith(("DEVICE", "RESULTS", "LAUNCH", "A, B", "C, "))
    ]
    path = folder / f"kernels_of_{name}.py"
    path.write_text("\n\n".join(wanted), encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name, grid, block, limit",
    [
        ("naive_kernel", (4, 4), (4, 4), 1e-5),
        ("tiled_kernel", (4, 4), (4, 4), 1e-5),
        ("thread_tile_kernel", (2, 2), (4, 4), 1e-5),
        ("tensor_core_kernel", (2, 1), 32, 2e-2),  # TF32
    ],
)
def test_products(name, grid, block, limit, tmp_path):
    kernels, rng = module_of("03_products", tmp_path), np.random.default_rng(0)
    A, B = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    C = np.full((16, 16), np.nan, np.float32)
    course.launch(getattr(kernels, name), grid, block, C, A, B)
    assert np.abs(C - A.astype(np.float64) @ B).max() < limit


def test_rungs(tmp_path):
    kernels, rng = module_of("05_persistent_kernel", tmp_path), np.random.default_rng(0)
    T, B, H, L = (getattr(kernels, letter) for letter in "TBHL")
    x = rng.standard_normal((T, B, H)).astype(np.float32)
    named = nr.LSTM(H, H, L, dtype="float32", device="cpu", seed=0).state_dict()
    expected = reference.forward("lstm", x, {name: array for name, array in named.items() if name.endswith("l0")}).y
    W, R, b_w, b_r = (named[f"{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    ax = (x @ W.T + (b_w + b_r)).astype(np.float32)

    def states(layers=1):
        h = np.full((layers, T + 1, B, H), np.nan, np.float32)
        h[:, 0] = 0
        return h

    h, c = states()[0], np.zeros((B, H), np.float32)
    for t in range(T):
        course.launch(kernels.step_kernel, (2, 2), (H // 2, B // 2), h, c, ax, R, t)
    assert np.abs(h[1:] - expected).max() < 1e-5
    for kernel in (kernels.loop_kernel, kernels.shared_kernel):
        h = states()[0]
        course.launch(kernel, 1, (H, B), h, ax, R)
        assert np.abs(h[1:] - expected).max() < 1e-5
    h = states()
    course.launch(kernels.blocks_kernel, H // kernels.UNITS, kernels.THREADS, h.reshape(-1), ax, R)
    assert np.abs(h[0, 1:] - expected).max() < 1e-5

    expected = reference.forward("lstm", x, named).y
    bias = np.stack([named[f"bias_ih_l{layer}"] + named[f"bias_hh_l{layer}"] for layer in range(L)])
    both = [[named[f"weight_{which}_l{layer}"] for which in ("ih", "hh")] for layer in range(L)]
    WR = np.stack([np.concatenate(one, axis=1) for one in both])
    for kernel, limit in ((kernels.layers_kernel, 1e-5), (kernels.mma_kernel, 2e-3)):
        h = states(L + 1)
        h[0, 1:] = x
        course.launch(kernel, (H // kernels.UNITS, L), kernels.THREADS, h.reshape(-1), bias, WR, T)
        assert np.abs(h[-1, 1:] - expected).max() < limit
