"""What a first call takes: seconds of compiling, with empty caches and with what they keep; `numbarnn info --cold`."""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import numbarnn
from numbarnn.cells import library

# Each is made and run once, forward and backward, in this order, in one process.
_LAYERS = (
    ("LSTM", lambda: numbarnn.LSTM(32, 64, device="cpu", seed=0)),
    ("then GRU", lambda: numbarnn.GRU(32, 64, device="cpu", seed=0)),
    ("then layer-norm LSTM", lambda: numbarnn.RNN(library.layer_norm_lstm, 32, 64, device="cpu", seed=0)),
)


def measure():
    """Seconds of the first call of each layer: [[name, with empty caches, with those of an earlier process]]."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: os.path.join(folder, name) for name in ("NUMBA_CACHE_DIR", "NUMBARNN_CACHE_DIR")}
        command, found = [sys.executable, "-m", "numbarnn.bench.cold"], []
        for _ in range(2):
            ran = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=True)
            found.append(json.loads(ran.stdout))
    return [[name, seconds, found[1][name]] for name, seconds in found[0].items()]


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
    print(json.dumps(_first_calls()))
