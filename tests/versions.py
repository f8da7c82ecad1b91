"""Run numbarnn with the oldest and the newest versions of what it needs, each in its own environment:
`python tests/versions.py [core-oldest core-newest kernels-oldest kernels-newest torch-oldest]`, by default all of them.
Run the oldest ones with the oldest Python: their packages have no wheels for newer ones.

"core" is what layers on the CPU and in the simulator need: `numbarnn check --quick`. "kernels" adds the compiler of
kernels: `numbarnn kernels`. "torch" adds PyTorch and ONNX: modules, double backward, a file. Oldest are the lower
bounds of pyproject.toml. Takes two to three minutes each; exits with 1 where one fails.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = """
import numpy as np, numbarnn as nr
layer = nr.LSTM(4, 8, num_layers=2, bidirectional=True, seed=0)
y, state, tape = layer.forward(np.ones((5, 3, 4), np.float32))
print(layer.backward(tape, y).weights.shape, np.__version__)
"""
TORCH = """
import torch, onnx, numbarnn as nr, numbarnn.torch as nrt
module, x = nrt.LSTM(4, 8, dtype=torch.float64), torch.ones(5, 3, 4, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(lambda x: module(x)[0], x) and torch.autograd.gradgradcheck(lambda x: module(x)[0], x)
onnx.checker.check_model(nr.convert.to_onnx(nr.RNN(nr.cells.library.min_gru, 4, 8, device="cpu")))
print(torch.__version__, onnx.__version__)
"""


def requirements(extra):
    """Return what pyproject.toml asks for, as pip takes it: the package with its simulator, and what an extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    more = {"core": [], "kernels": extras["kernels"], "torch": extras["torch"] + extras["onnx"]}[extra]
    asked = [*project["dependencies"], *extras["sim"], *more]
    return [one.replace("numba-cuda>", "numba-cuda[cu12]>") for one in asked]


def oldest(requirement):
    """Return the requirement for the lower bound itself: "numpy>=2.0,<2.5" -> "numpy==2.0.*"."""
    name, version = re.match(r"([\w.-]+(?:\[\w+\])?)>=([\d.]+)", requirement).groups()
    return f"{name}=={version}{'.*' if version.count('.') == 1 else ''}"


def main(wanted):
    """Return how many environments failed."""
    failed = 0
    for one in wanted or ("core-oldest", "core-newest", "kernels-oldest", "kernels-newest", "torch-oldest"):
        extra, end = one.split("-")
        asked = requirements(extra)
        if end == "oldest":
            asked = [oldest(requirement) if ">=" in requirement else requirement for requirement in asked]
        with tempfile.TemporaryDirectory() as folder:
            python = f"{folder}/bin/python"
            environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBARNN_CACHE_DIR": f"{folder}/cache"}
            commands = {"core": ["-m", "numbarnn", "check", "--quick"], "kernels": ["-m", "numbarnn", "kernels"]}
            check = [python, *commands.get(extra, ["-c", TORCH])]
            for command in (
                [sys.executable, "-m", "venv", folder],
                [python, "-m", "pip", "install", "--quiet", *asked],
                [python, "-c", EXAMPLE],
                check,
            ):
                ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
                if ran.returncode:
                    failed += 1
                    break
        last = (ran.stdout.strip() or ran.stderr.strip()).splitlines()[-3:]
        print(
            f"{one} ({', '.join(asked)}): {'FAILED' if ran.returncode else 'passed'}", *last, sep="\n    ", flush=True
        )
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
