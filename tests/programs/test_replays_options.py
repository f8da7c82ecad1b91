"""What a steady call of each kind asks of the driver, without a GPU: pinned, as small problems are bound by it."""

import random
from functools import partial
from itertools import product

import numpy as np
import pytest

import numbarnn
from equations import weighted
from general_cells import WRITTEN
from gpu_stand_in import B, H, T, calls_name_their_memory, steady
from numbarnn.cells import Cell

REPLAY = {"graph": 1, "record": 1}  # the graph's launch, and the event for callers on other streams

# Name -> (class or general cell, its options, what a call gets, copies from the host for it: of lengths and resets).
CALLS = {
    "plain": ("LSTM", {"dtype": "float32"}, (), 0),
    "three_layers": ("GRU", {"dtype": "float32", "num_layers": 3}, (), 0),
    "no_bias": ("RNN", {"bias": False, "bidirectional": True}, (), 0),
    "dropout": ("LSTM", {"num_layers": 2, "dropout": 0.5, "bidirectional": True, "batch_first": True}, (), 0),
    "lengths": ("LSTM", {}, ("lengths",), 1),
    "resets": ("GRU", {"bidirectional": True}, ("resets",), 1),
    "both": ("RNN", {"batch_first": True, "num_layers": 2}, ("lengths", "resets"), 2),
    "padding_value": ("GRU", {}, ("lengths", "padding_value"), 1),
    "bias_input": ("LSTM", {"bias": "input"}, (), 0),
    "bias_recurrent": ("GRU", {"bias": "recurrent"}, ("lengths",), 1),
    "skip": ("GRU", {"input_mode": "skip", "bidirectional": True}, ("lengths",), 1),
    "clip": ("LSTM", {"cell_clip": 0.5}, ("resets",), 1),
    "projection": ("LSTM", {"proj_size": 5, "num_layers": 2, "bidirectional": True}, (), 0),
    "projection_and_both": ("LSTM", {"proj_size": 5, "batch_first": True}, ("lengths", "resets"), 2),
    "reset_before": ("GRU", {"reset_after": False}, ("lengths",), 1),
    "blend": (WRITTEN["blend"], {"num_layers": 2}, ("resets",), 1),
    "chain": (WRITTEN["chain"], {"bidirectional": True}, (), 0),
    "peephole": (WRITTEN["peephole"], {"bidirectional": True, "num_layers": 2}, ("lengths",), 1),
    "fewer": (WRITTEN["fewer"], {"num_layers": 2}, ("lengths",), 1),
    "noisy": (WRITTEN["noisy"], {"num_layers": 2}, ("resets",), 1),
    "noisy_mean": (WRITTEN["noisy_mean"], {"bidirectional": True}, (), 0),
    "ladder": (WRITTEN["ladder"], {"num_layers": 2}, ("lengths",), 1),
    "heads": (weighted("lstm", 2, (), False), {"num_layers": 2}, (), 0),
    "drop_connect": (weighted("lstm", 1, (0.2, 0.1, 0.1, 0.0), False), {"bidirectional": True}, (), 0),
    "heads_and_drop_connect": (weighted("lstm", 2, (0.2, 0.1, 0.1, 0.0), False), {"num_layers": 2}, (), 0),
    "drop_connect_of_a_stage": (weighted("gru_reset_before", 2, (0.2, 0.1, 0.1), False), {}, (), 0),
}
SCHEDULES = ("persistent", "wavefront", "stepwise")


def cases():
    for (name, call), schedule in product(CALLS.items(), SCHEDULES):
        stages = call[0].stages if isinstance(call[0], Cell) else "reset_after" in call[1]
        if schedule != "persistent" or not (stages or "proj_size" in call[1]):  # which it does not do
            yield pytest.param(*call, schedule, id=f"{name}-{schedule}")


CASES = list(cases())


def layer_and_calls(cupy, cell, schedule, options, given):
    """(layer, infer, train): both calls with other lengths and resets each time."""
    make = partial(numbarnn.RNN, cell) if isinstance(cell, Cell) else getattr(numbarnn, cell)
    layer = make(H, H, device="cuda", schedule=schedule, seed=0, **{"dtype": "float16", **options})
    sizes, rng = ((B, T) if layer.batch_first else (T, B)), random.Random(0)
    x = cupy.empty((*sizes, H), layer.dtype)
    dy = cupy.empty((*sizes, (layer.proj_size or H) * (1 + layer.bidirectional)), layer.dtype)

    def arguments():
        values = {
            "lengths": [rng.randrange(T + 1) for _ in range(B)],
            "resets": np.array([[rng.random() < 0.5 for _ in range(sizes[1])] for _ in range(sizes[0])]),
            "padding_value": -1.0,
        }
        return {name: values[name] for name in given}

    _, state = layer(x, **arguments())

    def infer(state=state):
        return layer(x, state, **arguments())

    def train():
        y, _, tape = layer.forward(x, state, **arguments())
        return y, tape, layer.backward(tape, dy, state)

    return layer, infer, train


@pytest.mark.parametrize("cell, options, given, copies, schedule", CASES)
def test_a_steady_call_is_one_graph(gpu, cell, options, given, copies, schedule):
    """Forward and backward: nothing is allocated or set outside of it. Lengths and resets are copied to where the last
    call's stood, in training what random numbers need to know too; so are the caller's arrays."""
    _, counts, cupy = gpu
    layer, infer, train = layer_and_calls(cupy, cell, schedule, options, given)
    copied = {"copy from host": copies} if copies else {}
    for call in (infer, lambda: infer(None)):
        assert steady(counts, call) == REPLAY | copied | {"copy": 1}  # x: the states are such a call's
    random = (isinstance(cell, Cell) and (cell.noise or cell.drop_connect)) or options.get("dropout")
    copied |= {"copy from host": copies + 1} if random else {}
    states = 2 * (1 + min(1, layer.stack.cell.num_private))
    y = 0 if layer.batch_first or "lengths" in given else 1  # else it is one already
    copied["copy"] = 3 + y + states  # of x, dy, the weights, y and the states
    assert steady(counts, train) == {name: 2 * count for name, count in REPLAY.items()} | copied


@pytest.mark.parametrize("cell, options, given, copies, schedule", CASES)
def test_graphs_are_known_by_every_address_in_them(gpu, monkeypatch, cell, options, given, copies, schedule):
    """What a kernel or a product was given, and the call's key does not name, would be read where it was at first."""
    engine, _, cupy = gpu
    _, infer, train = layer_and_calls(cupy, cell, schedule, options, given)
    named = calls_name_their_memory(monkeypatch, engine)
    train()
    infer()
    assert named == [True] * 3
