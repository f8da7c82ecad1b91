"""One name, one meaning: a search for a class or function of the package finds one room."""

import ast
from collections import defaultdict
from pathlib import Path

import numbarnn

PACKAGE = Path(numbarnn.__file__).parent
ALLOWED = {
    "PyTorch's classes beside numbarnn's": "GRU LSTM RNN Recurrent",
    "interfaces of commands, formats and engines": "read run write get why_not load",
    "one operation on several engines": "dropout dropout_masks drop_connect_masks fill_step_mask spread split zeros",
    "one thing at several levels": "Gradients Parameter Parameters Options Shape Call Descriptor",
    "a GPU's and its simulator's terms": "Function Streams launch",
    "plain verbs": "check checked describe draw error evaluate explain",
}
INDEPENDENT = "reference"  # shares no code with the package, and has its names


def rooms_of_names():
    """Return public class or function -> the rooms that define it."""
    rooms = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        folders = file.relative_to(PACKAGE).parts[:-1]
        room = "/".join(folders[: 2 if "engines" in folders else 1])
        nodes = ast.parse(file.read_text(encoding="utf-8")).body
        for name in (node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)):
            rooms[name].add(room)
    return rooms


def test_a_name_belongs_to_one_room():
    found = {name: sorted(rooms - {INDEPENDENT}) for name, rooms in rooms_of_names().items() if name[0] != "_"}
    several = {name: rooms for name, rooms in found.items() if len(rooms) > 1}
    allowed = " ".join(ALLOWED.values()).split()
    assert several == {name: several.get(name, "in one room: take it off the list") for name in allowed}
