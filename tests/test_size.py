"""A ratchet: lines of Python in each room of the package, and of the tests, with blanks and docstrings.

A room may not grow beyond its number here, and a number may only be lowered. Whoever deletes lowers it in the same
commit. A mechanism of 100 lines has to win 5 % at a size that people run, on a machine that was measured, or bring
a capability that users ask for.
"""

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "numbarnn"
#: Room -> (its folders and files, lines).
ROOMS = {
    "bench": (("bench",), 5089),
    "cells": (("cells",), 5190),
    "kernels": (("kernels",), 4952),
    "schedules, programs, engines, layers": (("schedules", "programs", "engines", "layers"), 14011),
    "cuda": (("cuda",), 2322),
    "torch": (("torch",), 2779),
    "weights and convert": (("weights", "convert.py"), 2946),
    "compile": (("compile",), 1783),
    "reference": (("reference",), 1100),
    "common, course, top level": (
        ("common", "course", "__init__.py", "__main__.py", "cli.py", "functional.py", "optim.py"),
        1839,
    ),
}
TESTS = 32840


def lines_of(path):
    """Lines of a file, or of all Python files below a folder."""
    files = [path] if path.is_file() else path.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_does_not_grow(room):
    parts, most = ROOMS[room]
    assert sum(lines_of(PACKAGE / part) for part in parts) <= most


def test_every_part_is_in_one_room():
    named = sorted(part for parts, _ in ROOMS.values() for part in parts)
    there = [path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))]
    assert named == sorted(name for name in there if name != "__pycache__")


def test_the_tests_do_not_grow():
    assert lines_of(Path(__file__).parent) <= TESTS
