"""How many nodes a call's graph has around one persistent launch, and copies before it, without a GPU: each takes about
0.8 µs of a call of 50 µs."""

from collections import Counter

import pytest

from gpu_stand_in import layer_and_input
from numbarnn.cuda import launch
from numbarnn.schedules.persistent import planner

EVENTS = ("record", "wait", "capture")  # that are no nodes
# With the product of the input, and copies of x, the weights and y. Backward, besides copies: the kernel, three
# products, of one bias (of two, where these differ) its gradient and a fill before it, a fill of each array that blocks
# exchange.
MOST = {"inference": 4, "training": 7, "backward": {"LSTM": 7, "GRU": 10}}


@pytest.fixture
def nodes_of(gpu, monkeypatch):
    """A function that returns what the steady graphs of a call are made of, by name, with the copies before them."""
    engine, counts, _ = gpu
    monkeypatch.setattr(launch.Kernel, "bind", lambda self, *_: lambda *_: counts.update([self.name]))
    record, graphs = engine.streams._record, []

    def recorded(bound):
        before = counts.copy()
        graph = record(bound)
        graphs.append(Counter({name: n for name, n in (counts - before).items() if name not in EVENTS}))
        return SimpleGraph(graph, graphs[-1], counts)

    monkeypatch.setattr(engine.streams, "_record", recorded)

    def nodes(call):
        kept = [call() for _ in range(2)]
        for _ in range(5):
            kept = [*kept[1:], call()]
        counts.clear()
        kept.append(call())
        assert counts.pop("graph") > 0 and not counts["capture"]
        return Counter({name: n for name, n in counts.items() if name not in EVENTS})

    return nodes


class SimpleGraph:
    """A recorded graph that counts what it is made of whenever it is launched."""

    def __init__(self, graph, nodes, counts):
        self._graph, self._nodes, self._counts = graph, nodes, counts

    def launch(self, stream):
        self._graph.launch(stream)
        self._counts.update(self._nodes)


@pytest.fixture(params=(True, False), ids=("x W in the kernel", "x W before it"))
def multiplies_input(request, monkeypatch):
    """Whether blocks multiply the input themselves."""
    if not request.param:
        monkeypatch.setattr(planner, "_may_multiply_input", lambda problem, layer: False)
        planner.forget()
    yield request.param
    planner.forget()


@pytest.fixture
def layer_and_x(gpu, multiplies_input):
    def make(cell, dtype):
        return layer_and_input(gpu[2], cell, dtype=dtype)

    return make


CELLS = pytest.mark.parametrize("cell, dtype", [("LSTM", "float16"), ("GRU", "bfloat16"), ("LSTM", "float32")])


@CELLS
def test_inference_without_a_state(nodes_of, layer_and_x, multiplies_input, cell, dtype):
    layer, x, _ = layer_and_x(cell, dtype)
    found = nodes_of(lambda: layer(x))
    assert found.total() == MOST["inference"] - multiplies_input, found


@CELLS
def test_inference_with_the_state_of_the_call_before(nodes_of, layer_and_x, multiplies_input, cell, dtype):
    layer, x, _ = layer_and_x(cell, dtype)
    state = [layer(x)[1]]

    def call():
        y, state[0] = layer(x, state[0])
        return y, state[0]

    found = nodes_of(call)
    assert found.total() == MOST["inference"] - multiplies_input, found


@CELLS
def test_training(nodes_of, layer_and_x, multiplies_input, cell, dtype):
    """Forward, and forward with backward: the gradients of states are read and written by the kernel too."""
    layer, x, dy = layer_and_x(cell, dtype)
    forward = nodes_of(lambda: layer.forward(x))
    assert forward.total() == MOST["training"] - multiplies_input, forward
    backward = nodes_of(lambda: layer.backward(layer.forward(x)[2], dy)) - forward
    assert backward.total() - backward["copy"] == MOST["backward"][cell], backward
