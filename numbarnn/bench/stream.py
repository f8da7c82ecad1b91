"""`numbarnn bench --stream`: time single steps one by one; the state is carried from step to step.

A program that answers a stream waits for every call, so the 99th percentile stands next to the median. `layer.stepper`
is compared with a call of the layer with one step, PyTorch's module and its cell for one step, and onnxruntime. Results
of STEPS steps are compared first.
"""

from functools import partial
from itertools import cycle

import numpy as np

from numbarnn.bench import console
from numbarnn.bench.cases import make_layer, pack_states, unpack_states
from numbarnn.bench.lineup import LineUp
from numbarnn.bench.peers import onnx_peer, peers, torch_peer
from numbarnn.bench.peers.contender import Contender, installed
from numbarnn.bench.peers.torch_peer import TORCH, numpy_to_torch, torch_to_numpy
from numbarnn.bench.shapes import SETS, STEP

CALLS = 2000  # of each contender, at least
STEPS = 8  # compared; timed calls take the same x again and again
TORCH_CELL, CALL = "torch cell", "layer call"


def shapes_of(args):
    """Return the shapes of the command's options. Raise WrongArguments if one has more than one step."""
    named = "stream" if args.set in ("default", "quick") or args.shape else args.set
    if named not in SETS:
        said = f"--stream takes one step at a time, --set {named} has problems of another kind: give --shape"
        raise console.WrongArguments(said)
    for shape in (shapes := args.shape or SETS[named]):
        if shape.form or shape.T != 1:
            said = "--stream takes one step at a time, in one direction, so T must be 1 in --shape T,B,I,H,L"
            raise console.WrongArguments(f"{said}: got --shape {shape}")
    return shapes


def line_up(instance, truth, what, where):
    """Return the `LineUp` of single steps."""
    device, case = where.device, instance.case
    line = LineUp.of_torch(case, truth, STEP, torch_stream(instance, device))
    makers = {CALL: partial(call_stream, instance, device), TORCH_CELL: partial(torch_cell_stream, instance, device)}
    if device == "cpu" and case.dtype == "float32" and installed("onnx", "onnxruntime"):
        makers[onnx_peer.NAME] = partial(onnxruntime_stream, instance, where.threads)
    for name, make in makers.items():
        line.add(name, make)
    return line


def stream(name, inputs, step, initial, states, to_numpy=np.asarray, synchronize=lambda: None, plan=None):
    """Return a contender that takes one step per call. Its results are y of all steps and the last state.

    inputs: [time] -> x. step: (x, state) -> (y, new state), y (1, B, H) or (B, H). initial: the first state. states:
    state -> NumPy arrays by quantity. to_numpy: y -> a NumPy array."""
    carried, next_input = initial, cycle(inputs).__next__

    def call():
        nonlocal carried
        _, carried = step(next_input(), carried)

    def results(_):
        state, ys = initial, []
        for x in inputs:
            y, state = step(x, state)
            ys.append(to_numpy(y))
        return {"y": np.stack([y.reshape(y.shape[-2:]) for y in ys])} | states(state)

    return Contender(name, call, results, synchronize, plan)


def call_stream(instance, device, schedule="auto"):
    """Return the contender of numbarnn's layer, called with one step: y, state = layer(x, state)."""
    layer = make_layer(instance.case, device, instance.parameters, schedule)
    initial = peers.to_engine_state(layer, instance.h0, instance.c0)
    return _layer_stream(CALL, instance, layer, [x[None] for x in instance.x], layer, initial)


def stepper_stream(instance, what, device, schedule):
    """Return the contender of numbarnn's `layer.stepper`, which keeps the state."""
    layer = make_layer(instance.case, device, instance.parameters, schedule)
    initial = peers.to_engine_state(layer, instance.h0, instance.c0)
    stepper = layer.stepper(instance.case.B, initial)

    def step(x, state):
        if state is not stepper:
            stepper.state = state
        return stepper(x), stepper

    state_of = lambda stepper: stepper.state  # noqa: E731
    return _layer_stream(f"numbarnn {schedule}", instance, layer, instance.x, step, initial, state_of)


def _layer_stream(name, instance, layer, inputs, step, initial, state_of=lambda state: state):
    inputs = [layer.engine.from_host(np.ascontiguousarray(x)) for x in inputs]
    states = lambda state: peers.named_states(layer, instance.case, ("hy", "cy"), state_of(state))  # noqa: E731
    wait, plan = peers.synchronize_of(layer), peers.plan_of(layer, instance.x[:1])
    return stream(name, inputs, step, initial, states, partial(peers.to_host, layer), wait, plan)


def torch_stream(instance, device):
    """Return the contender of nn.LSTM, nn.GRU or nn.RNN, called with a sequence of one step."""
    case = instance.case
    module = torch_peer.torch_module(instance, range(case.L), device).eval()
    module.flatten_parameters()
    parts_of = [numpy_to_torch(pack_states(s), device) for s in (instance.h0, instance.c0) if s]

    def states(state):
        parts = [torch_to_numpy(part) for part in (state if case.has_c else (state,))]
        return {name: unpack_states(case, part) for name, part in zip(("hy", "cy"), parts, strict=False)}

    inputs, initial = (
        [numpy_to_torch(x[None], device) for x in instance.x],
        tuple(parts_of) if case.has_c else parts_of[0],
    )
    return stream(TORCH, inputs, module, initial, states, torch_to_numpy, torch_peer.torch_synchronize(device))


def torch_cell_stream(instance, device):
    """Return the contender of nn.LSTMCell, nn.GRUCell or nn.RNNCell, one for each layer."""
    case = instance.case
    modules = [torch_peer.torch_module(instance, [layer], device, one_step=True).eval() for layer in range(case.L)]
    layers_of = [[numpy_to_torch(part[0], device) for part in s] for s in (instance.h0, instance.c0) if s]

    def step(x, before):
        after = []
        for module, one in zip(modules, before, strict=True):
            after.append(module(x, one))
            x = after[-1][0] if case.has_c else after[-1]
        return x, after

    def states(state):
        parts = zip(*state, strict=True) if case.has_c else [state]
        return {name: [torch_to_numpy(one)[None] for one in part]
                for name, part in zip(("hy", "cy"), parts, strict=False)}  # fmt: skip

    inputs, initial = [numpy_to_torch(x, device) for x in instance.x], list(zip(*layers_of, strict=True))  # per layer
    initial = initial if case.has_c else layers_of[0]
    return stream(TORCH_CELL, inputs, step, initial, states, torch_to_numpy, torch_peer.torch_synchronize(device))


def onnxruntime_stream(instance, threads):
    """Return the contender of onnxruntime; each call takes the states that the previous call returned."""
    run, names, initial = onnx_peer.onnx_session(instance, threads)
    after = [(name, names.index(f"{name[0]}y{name[2:]}")) for name in initial]  # hx_l0 is hy_l0 of the previous call
    place = names.index("y")

    def step(x, state):
        outputs = run(None, state | {"x": x})
        return outputs[place], {name: outputs[number] for name, number in after}

    def states(state):
        of = lambda letter: [array for name, array in state.items() if name[0] == letter]  # noqa: E731
        return {f"{letter}y": of(letter) for letter in ("hc" if instance.case.has_c else "h")}

    return stream(onnx_peer.NAME, [np.ascontiguousarray(x[None]) for x in instance.x], step, initial, states)
