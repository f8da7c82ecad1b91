"""What first calls take: seconds of compiling, with empty caches and with what they keep, and the memory of a process
that has compiled many cells; `numbarnn info --cold`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice

import numpy as np

import numbarnn
from numbarnn import cells
from numbarnn.cells import CELLS, library

# Each is made and run once, forward and backward, in this order, in one process.
_LAYERS = (
    ("LSTM", lambda: numbarnn.LSTM(32, 64, device="cpu", seed=0)),
    ("then GRU", lambda: numbarnn.GRU(32, 64, device="cpu", seed=0)),
    ("then layer-norm LSTM", lambda: numbarnn.RNN(library.layer_norm_lstm, 32, 64, device="cpu", seed=0)),
)
MANY = 30  # cells


def measure():
    """Seconds of the first call of each layer: [[name, with empty caches, with those of an earlier process]]."""
    with tempfile.TemporaryDirectory() as folder:
        found = [_in_child(folder) for _ in range(2)]
    return [[name, seconds, found[1][name]] for name, seconds in found[0].items()]


def measure_many():
    """{"cells": MANY, "seconds": until each has been run, nothing compiled before, "peak_bytes": of the process, None
    where the system does not tell}."""
    with tempfile.TemporaryDirectory() as folder:
        return _in_child(folder, MANY)


def _in_child(folder, *arguments):
    """What this module prints in a process of its own, whose caches are in a folder."""
    caches = {name: os.path.join(folder, name) for name in ("NUMBA_CACHE_DIR", "NUMBARNN_CACHE_DIR")}
    command = [sys.executable, "-m", "numbarnn.bench.cold", *map(str, arguments)]
    ran = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def _many_cells(count):
    """What `measure_many` returns, of the first so many of all cells, in this process."""
    begin, x = time.perf_counter(), np.ones((5, 3, 32), np.float32)
    of_library = (value for value in vars(library).values() if isinstance(value, cells.Cell))
    for cell in islice((*CELLS.values(), *of_library), count):
        layer = numbarnn.RNN(cell, 32, 32, device="cpu", seed=0)
        y, _, tape = layer.forward(x)
        layer.backward(tape, y)
    return {"cells": count, "seconds": time.perf_counter() - begin, "peak_bytes": _peak_bytes()}


def _peak_bytes():
    """Of this process' memory so far; None where the system does not tell."""
    with suppress(ImportError):  # of POSIX
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None


def _first_calls():
    """{name: seconds}, in this process."""
    x, seconds = np.ones((5, 3, 32), np.float32), {}
    for name, make in _LAYERS:
        begin = time.perf_counter()
        layer = make()
        y, _, tape = layer.forward(x)
        layer.backward(tape, y)
        seconds[name] = time.perf_counter() - begin
    return seconds


if __name__ == "__main__":
    print(json.dumps(_many_cells(int(sys.argv[1])) if sys.argv[1:] else _first_calls()))
