"""README and the documentation: their Python runs, commands are understood. The site: see `test_notebooks`."""

import doctest
import importlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from numbarnn import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "notebooks").rglob("*.md"))]
named = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(code, folder):
    """What Python code defines; from a file in the folder, as equations are read from theirs."""
    path, namespace = folder / "page.py", {"__name__": "page"}
    path.write_text(code, encoding="utf-8")
    exec(compile(code, str(path), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_python_runs(page, tmp_path, monkeypatch):
    if any("import torch" in block for block in blocks(page, "python")):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # some write files
    run("\n".join(blocks(page, "python")), tmp_path)


@named
def test_commands_are_understood(page):
    for block in blocks(page, "bash"):
        for line in block.splitlines():
            for command in line.partition("#")[0].split("&&"):
                program, *words = shlex.split(command) or [""]
                if program == "numbarnn":
                    parser, _ = cli.build_parser(words[0])
                    parser.parse_args(words)


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_readme_says_what_its_blocks_need_beyond_its_command():
    """The command installs NumPy, numbarnn and its extras; the paragraph above a block names the rest."""
    text = README.read_text(encoding="utf-8")
    extras = re.search(r'pip install -e "\.\[([a-z,]+)\]" && numbarnn check', text)[1].split(",")
    installed = {"numpy", "numbarnn", *extras}
    for above, block in re.findall(
        r"(?:^|\n\n)([^\n](?:(?!\n\n)[^`]|`(?!``))*)\n\n```python\n(.*?)```", text, re.DOTALL
    ):
        needed = set(re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE))
        needed |= {"torch"} if "numbarnn.torch" in block else set()
        needed |= {"safetensors"} if "safetensors" in block else set()
        for package in needed - installed:
            assert f"pip install {package}" in above, (package, above)


def test_readmes_cell_is_short_and_learns(tmp_path):
    """To say what it read one step before."""
    import numbarnn as nr

    block = blocks(README, "python")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    rnn = nr.RNN(run(block, tmp_path)["coupled"], 8, 32, device="cpu", seed=0)
    x = np.random.default_rng(0).normal(0, 0.5, (30, 64, 8)).astype(np.float32)
    target = np.tile(np.tanh(np.roll(x, 1, axis=0)), 4)
    for _ in range(300):
        y, _, tape = rnn.forward(x)
        rnn.weights -= 0.001 * rnn.backward(tape, y - target).weights
    assert np.mean((y - target) ** 2) < 0.5 * np.mean(target**2)


@named
def test_links_lead_somewhere(page):
    """Relative links of README and of the pages; the site's build checks those within it again, with their anchors."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_public_name_is_in_the_api():
    import numbarnn
    from numbarnn.cells import functions

    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks" / "api").glob("*.md"))
    elsewhere = {"functional", "convert", "engines", "cells", "step", *functions.__all__}  # modules, and what they list
    assert not [name for name in set(numbarnn._PUBLIC) - elsewhere if not re.search(rf":: (numbarnn\.)?{name}\b", text)]


@pytest.mark.parametrize(
    "module",
    [
        "layers.models",
        "layers.gradcheck",
        "layers.sequences",
        "functional",
        "cells.tracing.decorator",
        "torch.modules",
        "torch.convert",
    ],
)
def test_examples_of_docstrings_run(module):
    import numbarnn

    if module.startswith("torch."):
        pytest.importorskip("torch")
    found, runner, said = importlib.import_module(f"numbarnn.{module}"), doctest.DocTestRunner(), []
    for test in doctest.DocTestFinder().find(found, extraglobs={"numbarnn": numbarnn, "numpy": np}):
        runner.run(test, out=said.append)
    assert runner.tries and not runner.failures, "".join(said)
