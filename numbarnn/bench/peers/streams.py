"""One step after the other with the state carried along, as users of each library write it for a stream."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from numbarnn.bench.cases.cases import make_layer, pack_states, unpack_states
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.onnx_peer import onnx_session, state_feed
from numbarnn.bench.peers.torch_cells import torch_cells, torch_compiled
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_module, torch_synchronize, torch_to_numpy


@dataclass(frozen=True)
class Stream:
    """Someone who takes one step at a time.

    Attributes:
        inputs: x of each time of an instance, as `step` takes it. begin: goes back to the instance's initial state.
        step: x -> y, (1, B, H) or (B, H); keeps the new state. to_numpy: y -> a NumPy array.
        state: the state after the last step, as NumPy arrays by quantity: hy and, where there is one, cy.
    """

    name: str
    inputs: list
    begin: Callable
    step: Callable
    state: Callable
    to_numpy: Callable = np.asarray
    synchronize: Callable = lambda: None
    plan: str | None = None

    def walk(self):
        """All steps from the initial state: y (T, B, H) and the final states, by quantity."""
        self.begin()
        found = [self.to_numpy(self.step(x)) for x in self.inputs]
        return {"y": np.stack([y.reshape(y.shape[-2:]) for y in found])} | self.state()


def carried(call, initial):
    """(begin, step, now) of y, state = call(x, state) step by step: back to the initial state, x -> y, the state."""
    state = initial

    def begin():
        nonlocal state
        state = initial

    def step(x):
        nonlocal state
        y, state = call(x, state)
        return y

    return begin, step, lambda: state


# -------------------------------------------------------------------------------------------------------- numbarnn
def call_stream(instance, device, schedule):
    """A layer called with one step at a time: y, state = layer(x, state)."""
    layer, initial = layer_and_state(instance, device, schedule)
    inputs = [layer.engine.from_host(np.ascontiguousarray(x)) for x in instance.x[:, None]]
    begin, step, now = carried(layer, initial)
    made = stream_of_layer("numbarnn", instance, layer, inputs, begin, step, now)
    return replace(made, plan=peers.plan_of(layer, inputs[0]))


def stepper_stream(instance, device, schedule):
    """`layer.stepper`."""
    layer, initial = layer_and_state(instance, device, schedule)
    stepper = layer.stepper(instance.case.B, initial)
    inputs = [layer.engine.from_host(np.ascontiguousarray(x)) for x in instance.x]

    def begin():
        stepper.state = initial

    return stream_of_layer("stepper", instance, layer, inputs, begin, stepper, lambda: stepper.state)


def layer_and_state(instance, device, schedule):
    """A numbarnn layer, and the initial state as it takes it."""
    layer = make_layer(instance.case, device, instance.parameters, schedule)
    return layer, peers.to_engine_state(layer, instance.h0, instance.c0)


def stream_of_layer(name, instance, layer, inputs, begin, step, now):
    """A `Stream`; now: () -> the layer's state."""
    state = lambda: peers.named_states(layer, instance.case, ("hy", "cy"), now())  # noqa: E731
    return Stream(name, inputs, begin, step, state, partial(peers.to_host, layer), peers.synchronize_of(layer))


# --------------------------------------------------------------------------------------------------------- PyTorch
def torch_stream(instance, device):
    """nn.LSTM, nn.GRU or nn.RNN, called with a sequence of one step."""
    case = instance.case
    module = torch_module(instance, range(case.L), device).eval()
    module.flatten_parameters()
    given = [numpy_to_torch(pack_states(s), device) for s in (instance.h0, instance.c0) if s]
    initial = tuple(given) if case.has_c else given[0]
    begin, step, now = carried(module, initial)

    def states():
        parts = [torch_to_numpy(part) for part in (now() if case.has_c else (now(),))]
        return {name: unpack_states(case, part) for name, part in zip(("hy", "cy"), parts, strict=False)}

    inputs = [numpy_to_torch(instance.x[t : t + 1], device) for t in range(case.T)]
    return Stream("torch", inputs, begin, step, states, torch_to_numpy, torch_synchronize(device))


def torch_cell_stream(instance, device, compiled=False):
    """nn.LSTMCell, nn.GRUCell or nn.RNNCell, one for each layer: PyTorch's modules for one step; compiled: all of
    a step is one function of torch.compile's, which takes its time for the first call."""
    case, (_, all_layers) = instance.case, torch_cells(instance, device)
    given = [[numpy_to_torch(part[0], device) for part in s] for s in (instance.h0, instance.c0) if s]
    initial = list(zip(*given, strict=True)) if case.has_c else given[0]  # per layer
    begin, step, now = carried(torch_compiled(all_layers, device) if compiled else all_layers, initial)

    def states():
        parts = zip(*now(), strict=True) if case.has_c else [now()]
        arrays = ([torch_to_numpy(one)[None] for one in part] for part in parts)
        return dict(zip(("hy", "cy"), arrays, strict=False))

    inputs = [numpy_to_torch(x, device) for x in instance.x]
    name = "torch.compile" if compiled else "torch cell"
    return Stream(name, inputs, begin, step, states, torch_to_numpy, torch_synchronize(device))


# ------------------------------------------------------------------------------------------------------ onnxruntime
def onnxruntime_stream(instance, threads):
    """onnxruntime's CPU provider, whose states of one call are given to the next."""
    case, (session, names) = instance.case, onnx_session(instance, threads)
    initial = state_feed(instance)
    after = [(name, names.index(f"{name[0]}y{name[2:]}")) for name in initial]  # hx_l0 is hy_l0 of the call before
    place, feed, run = names.index("y"), dict(initial), session.run

    def step(x):
        feed["x"] = x
        found = run(None, feed)
        for name, number in after:
            feed[name] = found[number]
        return found[place]

    def states():
        return {f"{s}y": [feed[f"{s}x_l{k}"] for k in range(case.L)] for s in ("hc" if case.has_c else "h")}

    inputs = [np.ascontiguousarray(instance.x[t : t + 1]) for t in range(case.T)]
    return Stream("onnxruntime", inputs, lambda: feed.update(initial), step, states)
