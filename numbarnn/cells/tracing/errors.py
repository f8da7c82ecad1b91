"""Errors of equations that cannot be traced, with the line at fault."""

import linecache
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_OWN_FILES = {str(path) for path in (*_HERE.glob("*.py"), _HERE.parent / "functions.py")}


class CellError(ValueError):
    """Equations that cannot become a cell; the message shows their line, what came, and the cure."""


def user_frame():
    """The innermost frame that is not of the tracer, nor of a library whose function was called: the line of the
    equations that is being run."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename in _OWN_FILES or _of_library(frame)):
        frame = frame.f_back
    return frame


def _of_library(frame):
    """Whether a frame is PyTorch's or NumPy's."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "numpy")


def error(message, place=None):
    """A `CellError` with the line of the equations that is being run, or that of a place (file, line)."""
    if place is None:
        frame = user_frame()
        place = (frame.f_code.co_filename, frame.f_lineno)
    return CellError(f"{message}\n{describe(place)}")


def describe(place):
    """Two lines of text: the place (file, line), and what stands there."""
    file, line = place
    return f'  File "{file}", line {line}\n    {linecache.getline(file, line).strip()}'.rstrip()
