"""The documentation's site, built of notebooks as they are or of executed copies; the Python of pages is executed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
NEEDS = ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "latex2mathml")


def build(folder, executed, pages):
    """Builds the site, with every warning an error.

    Args:
        folder: gets a copy of what the site is made of, and the site.
        executed: a notebook's file name -> the notebook with its outputs, in place of the committed one.
        pages: whether the Python of pages is executed for their outputs.

    Returns:
        the site's folder.
    """
    source, site = folder / "clone" / "notebooks", folder / "site"
    shutil.copytree(ROOT / "notebooks", source, ignore=shutil.ignore_patterns("_build", ".ipynb_checkpoints"))
    for path in source.glob("*.ipynb"):
        notebook = executed.get(path.name) or nbformat.read(path, as_version=nbformat.NO_CONVERT)
        notebook.metadata["mystnb"] = {"execution_mode": "off"}
        nbformat.write(notebook, path)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "trees")]
    command += [] if pages else ["-D", "nb_execution_mode=off"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTHONPATH": paths}  # conf.py looks for the package beside the copy, where it is not
    done = subprocess.run([*command, str(source), str(site)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return site
