"""Errors of equations that cannot be traced, which show the line at fault."""

import linecache
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_OWN_FILES = {str(path) for path in (*_HERE.glob("*.py"), _HERE.parent / "functions.py")}


class CellError(ValueError):
    """Equations that cannot become a cell; the message shows their line, what came, and the cure."""


def user_frame():
    """Return the frame of the equations: the innermost one outside of the tracer, PyTorch and NumPy."""
    frame = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code.co_filename not in _OWN_FILES and package not in ("torch", "numpy"):
            break
        frame = frame.f_back
    return frame


def error(message, place=None):
    """Return a `CellError` that shows a place (file, line), by default the current line of the equations."""
    if place is None:
        frame = user_frame()
        place = (frame.f_code.co_filename, frame.f_lineno)
    return CellError(f"{message}\n{describe(place)}")


def describe(place):
    """Return two lines of text, a place (file, line) and its source."""
    file, line = place
    return f'  File "{file}", line {line}\n    {linecache.getline(file, line).strip()}'.rstrip()
