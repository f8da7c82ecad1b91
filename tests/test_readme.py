"""README's example of a cell of one's own: short, and it learns."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_a_cell_trains(tmp_path):
    text = README.read_text(encoding="utf-8").partition("### A cell of your own")[2]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    path = tmp_path / "example.py"  # equations are read from their file
    path.write_text(code, encoding="utf-8")
    namespace = {"__name__": "example"}
    exec(compile(code, str(path), "exec"), namespace)
    x, y = namespace["x"], namespace["y"]
    target = np.tile(np.tanh(np.roll(x, 1, axis=0)), 4)
    assert np.mean((y - target) ** 2) < 0.5 * np.mean(target**2)
