"""One name, one meaning: a search for a class or function of the package finds one room."""

import ast
from collections import defaultdict
from pathlib import Path

import numbarnn

PACKAGE = Path(numbarnn.__file__).parent
ALLOWED = {
    "PyTorch's classes beside numbarnn's": "GRU LSTM RNN Recurrent",
    "the interface of commands, formats and engines": "read run write get why_not load",
    "the same operation on several engines": "dropout dropout_masks drop_connect_masks fill_step_mask zeros",
    "the same thing at several levels": "Gradients Parameter Parameters Options Shape Given Call Descriptor spread split",
    "a GPU's and its simulator's terms": "Block Thread Function Streams Job contiguous_strides launch",
    "plain verbs": "check checked describe draw error evaluate explain",
}
INDEPENDENT = "reference"  # it shares no code with the package, and so has the same names


def rooms_of_names():
    """Return public class or function -> the rooms that define it."""
    rooms = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        folders = file.relative_to(PACKAGE).parts[:-1]
        room = "/".join(folders[: 2 if "engines" in folders else 1])
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef)
                and not node.name.startswith("_")
                and room != INDEPENDENT
            ):
                rooms[node.name].add(room)
    return rooms


def test_a_name_belongs_to_one_room():
    several = {name: sorted(rooms) for name, rooms in rooms_of_names().items() if len(rooms) > 1}
    allowed = set(" ".join(ALLOWED.values()).split())
    assert {name: rooms for name, rooms in several.items() if name not in allowed} == {}
    assert allowed <= several.keys(), "take names that belong to one room now off the list"
