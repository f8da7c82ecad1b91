"""Notify the user while compiling takes long: what is compiled, for about how long, and where the result is cached.

There is no notice for code that is on disk, nor within the first PATIENCE_S seconds, and each label is named once
per process. In a terminal or notebook the notice is on the error stream, else in `logging.getLogger("numbarnn")` at
the level INFO.
"""

import logging
import sys
import threading
import time
from contextlib import contextmanager

PATIENCE_S = 2.0  # compile time of a label before its notice

_spent = {}  # label -> seconds so far
_said = set()
_local = threading.local()  # .compiling: whether this thread compiles, as compiling is nested


@contextmanager
def compiling(label, how_long, kept_in):
    """Notify the user if the block takes longer than PATIENCE_S, together with earlier blocks of the same `label`.

    Args:
        label: what is compiled, such as "the cell lstm for the CPU engine, float32".
        how_long: such as "ten seconds".
        kept_in: the folder on disk, or None if the code is not cached.
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
    """Return how many seconds compiling has taken in this process."""
    return sum(_spent.values())


def _say(label, how_long, kept_in):
    _said.add(label)
    kept = f"kept in {kept_in} for the next time" if kept_in else "it cannot be kept, as no folder is writable"
    text = f"numbarnn is compiling {label}, which takes about {how_long}; {kept}"
    if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        print(text, file=sys.stderr, flush=True)
    else:
        logging.getLogger("numbarnn").info(text)
