"""One step after the other with the state carried along, as users of each library write it for a stream."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from numbarnn.bench.cases.cases import make_layer, pack_states, unpack_states
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.torch_peer import (
    COMPILED,
    TORCH,
    numpy_to_torch,
    torch_cells,
    torch_compiled,
    torch_module,
    torch_synchronize,
    torch_to_numpy,
)


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
        """Return y (T, B, H) of all steps from the initial state, and the final states, by quantity."""
        self.begin()
        found = [self.to_numpy(self.step(x)) for x in self.inputs]
        return {"y": np.stack([y.reshape(y.shape[-2:]) for y in found])} | self.state()


def carried(call, initial):
    """Return (begin, step, now) of y, state = call(x, state) step by step: back to the start, x -> y, the state."""
    state = initial

    def begin():
        nonlocal state
        state = initial

    def step(x):
        nonlocal state
        y, state = call(x, state)
        return y

    return begin, step, lambda: state


def call_stream(instance, device, schedule):
    """Return numbarnn's layer called with one step at a time: y, state = layer(x, state)."""
    made, layer, initial = layer_stream("numbarnn", instance, device, schedule)
    begin, step, now = carried(layer, initial)
    return made([x[None] for x in instance.x], begin, step, now)


def stepper_stream(instance, device, schedule):
    """Return numbarnn's `layer.stepper`."""
    made, layer, initial = layer_stream("stepper", instance, device, schedule)
    stepper = layer.stepper(instance.case.B, initial)
    return made(instance.x, lambda: setattr(stepper, "state", initial), stepper, lambda: stepper.state)


def layer_stream(name, instance, device, schedule):
    """Return (what makes a Stream of inputs, begin, step, now: the layer's state; a layer; its initial state)."""
    layer, case = make_layer(instance.case, device, instance.parameters, schedule), instance.case

    def made(inputs, begin, step, now):
        inputs = [layer.engine.from_host(np.ascontiguousarray(x)) for x in inputs]
        state = lambda: peers.named_states(layer, case, ("hy", "cy"), now())  # noqa: E731
        wait, plan = peers.synchronize_of(layer), peers.plan_of(layer, instance.x[:1])
        return Stream(name, inputs, begin, step, state, partial(peers.to_host, layer), wait, plan)

    return made, layer, peers.to_engine_state(layer, instance.h0, instance.c0)


def torch_stream(instance, device):
    """Return nn.LSTM, nn.GRU or nn.RNN, called with a sequence of one step."""
    case = instance.case
    module = torch_module(instance, range(case.L), device).eval()
    module.flatten_parameters()
    given = [numpy_to_torch(pack_states(s), device) for s in (instance.h0, instance.c0) if s]
    begin, step, now = carried(module, tuple(given) if case.has_c else given[0])

    def states():
        parts = [torch_to_numpy(part) for part in (now() if case.has_c else (now(),))]
        return {name: unpack_states(case, part) for name, part in zip(("hy", "cy"), parts, strict=False)}

    inputs = [numpy_to_torch(instance.x[t : t + 1], device) for t in range(case.T)]
    return Stream(TORCH, inputs, begin, step, states, torch_to_numpy, torch_synchronize(device))


def torch_cell_stream(instance, device, compiled=False):
    """Return nn.LSTMCell, nn.GRUCell or nn.RNNCell, one for each layer; compiled: all of a step is one function of
    torch.compile's, which takes its time for the first call."""
    case, (_, all_layers) = instance.case, torch_cells(instance, device)
    given = [[numpy_to_torch(part[0], device) for part in s] for s in (instance.h0, instance.c0) if s]
    initial = list(zip(*given, strict=True)) if case.has_c else given[0]  # per layer
    begin, step, now = carried(torch_compiled(all_layers, device) if compiled else all_layers, initial)

    def states():
        parts = zip(*now(), strict=True) if case.has_c else [now()]
        arrays = ([torch_to_numpy(one)[None] for one in part] for part in parts)
        return dict(zip(("hy", "cy"), arrays, strict=False))

    inputs = [numpy_to_torch(x, device) for x in instance.x]
    made = Stream("torch cell", inputs, begin, step, states, torch_to_numpy, torch_synchronize(device))
    return replace(made, name=COMPILED) if compiled else made
