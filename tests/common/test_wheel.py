"""Wheel and sdist: what is in them, and that the wheel works where there is no clone."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import numbarnn

ROOT = Path(numbarnn.__file__).resolve().parents[1]
PLAN = ("--hidden", "128", "--batch", "4", "--steps", "20", "--profile", "h100")
USE = """
import pathlib, sys
import numpy as np, numbarnn as nr

assert pathlib.Path(nr.__file__).is_relative_to(sys.prefix), nr.__file__

@nr.cell
def leaky(x, h, p):
    return p.keep * h + nr.tanh(p.W.a @ x + p.R.a @ h)

layer, x = nr.RNN(leaky, 3, 4, seed=0, device="cpu"), np.ones((5, 2, 3), "float32")
y, _, tape = layer.forward(x)
gradients = layer.backward(tape, np.ones_like(y))
assert y.shape == (5, 2, 4) and np.abs(gradients.weights).max() > 0
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), made by `python -m build` of a copy of the clone: the wheel is made from the sdist."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("these tests belong to a clone")
    pytest.importorskip("build")
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("clone")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("numbarnn", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "data", "*.npz"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_without_clone())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def _without_clone():
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NUMBARNN_TEST_GPU")}


def _package():
    """The files that the package consists of, by their paths in the clone."""
    files = (path.relative_to(ROOT) for path in (ROOT / "numbarnn").rglob("*") if path.is_file())
    kinds = ".py", ".pyi", ".json", ".typed", ".html", ".css", ".js"
    return {path.as_posix() for path in files if path.suffix in kinds}


def test_the_wheel_is_the_package(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == _package()
    assert {"numbarnn/py.typed", "numbarnn/__init__.pyi", "numbarnn/bench/results/probe.json"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in about)


def test_the_sdist_has_what_the_wheel_is_made_of(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _package() | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith("tests")]  # which would lack what they import


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The Python of a fresh environment in which pip has installed the wheel; what it depends on is this one's."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-index", "--no-deps", str(built[0])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_without_clone())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (site,) = folder.rglob("site-packages")
    # The path alone, so that no .pth file in it counts: one of them may be an editable install of this clone.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others))
    return python


def _run(python, *arguments, cwd):
    environment = _without_clone() | {"NUMBARNN_CACHE_DIR": str(cwd / "cache"), "NUMBA_CACHE_DIR": str(cwd / "numba")}
    ran = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_wheel_computes(installed, tmp_path):
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")  # equations are read from their file
    _run(installed, "use.py", cwd=tmp_path)


def test_its_commands_run(installed, tmp_path):
    command = installed.with_name("numbarnn")
    assert "numbarnn" in _run(installed, str(command), "info", cwd=tmp_path)
    assert "persistent" in _run(installed, str(command), "plan", *PLAN, cwd=tmp_path)
    _run(installed, str(command), "bench", "--help", cwd=tmp_path)
