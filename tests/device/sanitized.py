"""What compute-sanitizer looks at: two small layers with dropout, forward and backward, by every schedule."""

import sys

import cupy
import numpy as np

import numbarnn
from numbarnn.schedules import SCHEDULES

x = cupy.asarray(np.random.default_rng(0).standard_normal((4, 3, 8)), sys.argv[1])
for schedule in SCHEDULES:
    layer = numbarnn.LSTM(8, 40, 2, dropout=0.3, device="cuda", dtype=sys.argv[1], schedule=schedule, seed=0)
    y, _, tape = layer.forward(x)
    layer.backward(tape, y)
    layer.check()
