"""A training loop of PyTorch's around a module of `numbarnn.torch`, with one batch or with DataLoader workers that make
its batches; `numbarnn bench --beside`.

The module works on PyTorch's own threads, which also do the rest of a step: a linear layer, the loss, the optimizer.
The workers are processes that want the processors, too, but not all the time, and wake up when a batch is taken.
"""

import time
from contextlib import contextmanager
from itertools import repeat
from types import SimpleNamespace

import numpy as np

from numbarnn.bench.peers.contender import torch

LOOP, WITH_WORKERS = LOOPS = "training loop", "training loop with workers"
MODULES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}
BATCH_S = 0.01  # of a worker's processor for each batch
BATCHES, CLASSES = 1 << 30, 10


def runs(cell, shape, dtype):
    """Whether there is such a loop of a problem."""
    return cell in MODULES and not shape.form and dtype == "float32"


class Batches:
    """A dataset of batches x (T, B, I), each made anew in BATCH_S seconds."""

    def __init__(self, shape):
        self.size = shape.T, shape.B, shape.I

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        x = np.random.default_rng(number).standard_normal(self.size, dtype=np.float32)
        begin = time.process_time()
        while time.process_time() - begin < BATCH_S:
            x = np.tanh(x)
        return torch.from_numpy(x)


@contextmanager
def steps(cell, shape, workers):
    """A contender whose call is one step of the loop, on as many threads as PyTorch is set to.

    Args:
        workers: how many make the batches; None: there is but one batch.
    """
    import numbarnn.torch

    torch.manual_seed(0)
    module = getattr(numbarnn.torch, MODULES[cell])(shape.I, shape.H, shape.L)
    readout = torch.nn.Linear(shape.H, CLASSES)
    optimizer = torch.optim.SGD([*module.parameters(), *readout.parameters()], lr=1e-3)
    batches = Batches(shape)
    if workers is None:
        iterators = [repeat(batches[0])]
    else:
        iterators = [iter(torch.utils.data.DataLoader(batches, batch_size=None, num_workers=workers))]

    def call():
        optimizer.zero_grad()
        loss = readout(module(next(iterators[0]))[0]).square().mean()
        loss.backward()
        optimizer.step()

    try:
        yield SimpleNamespace(call=call)
    finally:
        iterators.clear()  # which ends the workers
