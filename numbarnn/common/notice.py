"""Notify the user while compiling takes long: what is compiled, for about how long, and that it is kept on disk.

Nothing is said if the compiled code is on disk already, nor within the first PATIENCE_S seconds; each thing is named
once per process. A person at a terminal or in a notebook reads it on the error stream; a program finds it in
`logging.getLogger("numbarnn")`, at the level INFO.
"""

import logging
import sys
import threading
import time
from contextlib import contextmanager

PATIENCE_S = 2.0  # of a person, for all that is compiled of one thing together

_spent = {}  # what is compiled -> seconds so far
_said = set()
_local = threading.local()  # .compiling: this thread does, as compiled functions compile those that they call


@contextmanager
def compiling(label, how_long, kept_in):
    """While the block compiles, notify once it takes longer than PATIENCE_S, with earlier blocks of the same `label`.

    Args:
        label: such as "the cell lstm for the CPU engine, float32".
        how_long: such as "ten seconds".
        kept_in: the folder on disk, or None if it is not kept.
    """
    if getattr(_local, "compiling", False):
        yield
        return
    spent, begin, _local.compiling = _spent.get(label, 0), time.perf_counter(), True
    timer = threading.Timer(max(0, PATIENCE_S - spent), _say, (label, how_long, kept_in))
    timer.daemon = True
    if label not in _said:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _spent[label], _local.compiling = spent + time.perf_counter() - begin, False


def seconds():
    """Return how many seconds compiling took in this process so far."""
    return sum(_spent.values())


def _say(label, how_long, kept_in):
    _said.add(label)
    kept = f"kept in {kept_in} for the next time" if kept_in else "it cannot be kept, as no folder is writable"
    text = f"numbarnn is compiling {label}, which takes about {how_long}; {kept}"
    if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        print(text, file=sys.stderr, flush=True)
    else:
        logging.getLogger("numbarnn").info(text)
