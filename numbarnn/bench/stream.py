"""`numbarnn bench --stream`: single steps, the state carried from one to the next, timed one by one.

A program that answers a stream waits for every call, and for the slowest of them: beside the median of all calls stands
their 99th percentile. numbarnn is there twice, as a call of the layer with one step and as `layer.stepper`; so is
PyTorch, as the module and as its cell for one step, with --compile also compiled. All walk over STEPS steps first, and
what they return is compared.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from numbarnn.bench import console, record, timing
from numbarnn.bench.cases import Case, make_instance, make_layer, pack_states, unpack_states
from numbarnn.bench.lineup import LineUp, disagreement, largest_trusted, said
from numbarnn.bench.peers import onnx_peer, peers, torch_peer
from numbarnn.bench.peers.contender import Contender, installed, torch
from numbarnn.bench.peers.torch_peer import COMPILED, TORCH, numpy_to_torch, torch_to_numpy
from numbarnn.bench.shapes import SETS, STEP

CALLS = 2000  # of each contender, at least
STEPS = 8  # compared; timed calls take the same x again and again
TAIL = 99  # the percentile beside the median
OWN = ("numbarnn", "stepper")
TORCH_METHOD = {
    "torch": "module.eval(), called with one step, under torch.inference_mode()",
    "torch cell": "torch.nn.LSTMCell, GRUCell or RNNCell, one for each layer, under torch.inference_mode()",
    "torch.compile": "the same cells in one function, compiled (mode reduce-overhead on a GPU, default on the CPU)",
    "allow_tf32": "as each row's tf32 says",
}


def shapes_of(args):
    """Return the shapes that the command's options ask for; WrongArguments where one has more than one step."""
    named = "stream" if args.set in ("default", "quick") or args.shape else args.set
    if named not in SETS:
        said = f"--stream takes one step at a time, --set {named} has problems of another kind: give --shape"
        raise console.WrongArguments(said)
    for shape in (found := args.shape or SETS[named]):
        if shape.form:
            said = f"--stream takes one step of a stack at a time, in one direction: got --shape {shape}"
            raise console.WrongArguments(said)
        if shape.T != 1:
            said = f"--stream takes one step at a time, so T must be 1 in --shape T,B,I,H,L: got {shape}"
            raise console.WrongArguments(said)
    return found


def time_stream(cell, shape, dtype, tf32, schedules, where):
    """Return the rows of one case, one per schedule.

    They have more than others: `calls` of each contender, `p99_s` of all calls, `p99_seconds` of those of each round,
    and `stepper_ratio`: as ratio, of the stepper's times. `seconds` are the medians of a round's calls.
    """
    instance = make_instance(Case(cell, STEPS, shape.B, shape.I, (shape.H,) * shape.L, dtype=dtype, allow_tf32=tf32))
    about = {"cell": cell, "shape": shape.sizes, "dtype": dtype, "device": where.device, "tf32": tf32, "what": STEP}
    about |= {"calls": 0, "p99_s": {}, "p99_seconds": {}, "stepper_ratio": {}}
    rows = []
    for schedule in schedules:
        try:
            with torch_peer.torch_tf32(tf32), torch.inference_mode():
                found = compared_and_timed(instance, schedule, where)
        except Exception as exception:
            found = {"ok": False, "refusal": said(exception)}
        rows.append(record.row(**about | found, schedule=schedule))
    return rows


def compared_and_timed(instance, schedule, where):
    """Return the fields of a row besides those that say what is timed."""
    device, exact = where.device, torch_peer.torch_contender(instance.float64, False, where.device)
    streams = [torch_stream(instance, device), torch_cell_stream(instance, device)]
    streams += [torch_cell_stream(instance, device, compiled=True)] if where.compiled else []
    if device == "cpu" and instance.case.dtype == "float32" and installed("onnx", "onnxruntime"):
        streams.append(onnxruntime_stream(instance, where.threads))
    line, compile_s, made = LineUp(instance.case, exact.results(exact.call()), streams[0].walk()), {}, {}
    for one in (*streams, call_stream(instance, device, schedule), stepper_stream(instance, device, schedule)):
        begin, contender = time.perf_counter(), Contender(one.name, one.walk, lambda found: found)
        try:
            rows = line.compare(contender, largest_trusted if one.name == TORCH else None)
            reason = disagreement(rows)
            line.agreement += rows if one.name != TORCH else []
        except Exception as exception:
            reason = said(exception)
        if reason:
            line.left_out[one.name] = reason
        else:
            made[one.name] = one
            compile_s |= {COMPILED: time.perf_counter() - begin} if one.name == COMPILED else {}
    told = {"agreement": line.agreement, "left_out": line.left_out, "compile_s": compile_s}
    if lacking := [name for name in OWN if name not in made]:
        return {"ok": False, "refusal": line.left_out.pop(lacking[0])} | told
    seconds = timing.single_calls(list(made.values()), where.rounds, CALLS)
    middle, tails = ({name: np.percentile(found, percent, axis=1).tolist() for name, found in seconds.items()}
                     for percent in (50, TAIL))  # fmt: skip
    median_s, p99_s = ({name: float(np.percentile(found, percent)) for name, found in seconds.items()}
                       for percent in (50, TAIL))  # fmt: skip
    of_stepper = {name: times for name, times in middle.items() if name not in OWN} | {"numbarnn": middle["stepper"]}
    return told | {
        "ok": True, "plan": made["numbarnn"].plan, "calls": seconds["stepper"].size, "seconds": middle,
        "p99_seconds": tails, "median_s": median_s, "p99_s": p99_s, "stepper_ratio": record.ratios(of_stepper),
    }  # fmt: skip


# ----------------------------------------------------------------------------------- who takes one step after the other
@dataclass(frozen=True)
class Stream:
    """Someone who takes one step at a time, as users of each library write it.

    Attributes:
        inputs: x of each time of an instance, as `step` takes it.
        step: (x, state) -> y, (1, B, H) or (B, H), and the new state; initial: the first state.
        states: a state -> NumPy arrays by quantity: hy and, where there is one, cy. to_numpy: y -> a NumPy array.
    """

    name: str
    inputs: list
    step: Callable
    initial: object
    states: Callable
    to_numpy: Callable = np.asarray
    synchronize: Callable = lambda: None
    plan: str | None = None

    def walk(self):
        """Return y (T, B, H) of all steps from the initial state, and the final states, by quantity."""
        state, found = self.initial, []
        for x in self.inputs:
            y, state = self.step(x, state)
            found.append(self.to_numpy(y))
        return {"y": np.stack([y.reshape(y.shape[-2:]) for y in found])} | self.states(state)


def call_stream(instance, device, schedule):
    """Return numbarnn's layer called with one step at a time: y, state = layer(x, state)."""
    made, layer, initial = _layer_stream("numbarnn", instance, device, schedule)
    return made([x[None] for x in instance.x], layer, initial)


def stepper_stream(instance, device, schedule):
    """Return numbarnn's `layer.stepper`, which keeps the state itself."""
    made, layer, initial = _layer_stream("stepper", instance, device, schedule)
    stepper = layer.stepper(instance.case.B, initial)

    def step(x, state):
        if state is not stepper:
            stepper.state = state
        return stepper(x), stepper

    return made(instance.x, step, initial, lambda stepper: stepper.state)


def _layer_stream(name, instance, device, schedule):
    layer, case = make_layer(instance.case, device, instance.parameters, schedule), instance.case

    def made(inputs, step, initial, state_of=lambda state: state):
        inputs = [layer.engine.from_host(np.ascontiguousarray(x)) for x in inputs]
        states = lambda state: peers.named_states(layer, case, ("hy", "cy"), state_of(state))  # noqa: E731
        wait, plan = peers.synchronize_of(layer), peers.plan_of(layer, instance.x[:1])
        return Stream(name, inputs, step, initial, states, partial(peers.to_host, layer), wait, plan)

    return made, layer, peers.to_engine_state(layer, instance.h0, instance.c0)


def torch_stream(instance, device):
    """Return nn.LSTM, nn.GRU or nn.RNN, called with a sequence of one step."""
    case = instance.case
    module = torch_peer.torch_module(instance, range(case.L), device).eval()
    module.flatten_parameters()
    given = [numpy_to_torch(pack_states(s), device) for s in (instance.h0, instance.c0) if s]

    def states(state):
        parts = [torch_to_numpy(part) for part in (state if case.has_c else (state,))]
        return {name: unpack_states(case, part) for name, part in zip(("hy", "cy"), parts, strict=False)}

    inputs, initial = [numpy_to_torch(x[None], device) for x in instance.x], tuple(given) if case.has_c else given[0]
    wait = torch_peer.torch_synchronize(device)
    return Stream(TORCH, inputs, module, initial, states, torch_to_numpy, wait)


def torch_cell_stream(instance, device, compiled=False):
    """Return nn.LSTMCell, nn.GRUCell or nn.RNNCell, one for each layer; compiled: all of a step is one function of
    torch.compile's, which takes its time for the first call."""
    case, (_, all_layers) = instance.case, torch_peer.torch_cells(instance, device)
    given = [[numpy_to_torch(part[0], device) for part in s] for s in (instance.h0, instance.c0) if s]
    initial = list(zip(*given, strict=True)) if case.has_c else given[0]  # per layer
    step = torch_peer.torch_compiled(all_layers, device) if compiled else all_layers

    def states(state):
        parts = zip(*state, strict=True) if case.has_c else [state]
        return {
            name: [torch_to_numpy(one)[None] for one in part] for name, part in zip(("hy", "cy"), parts, strict=False)
        }

    inputs, wait = [numpy_to_torch(x, device) for x in instance.x], torch_peer.torch_synchronize(device)
    return Stream(COMPILED if compiled else "torch cell", inputs, step, initial, states, torch_to_numpy, wait)


def onnxruntime_stream(instance, threads):
    """Return onnxruntime, the states that one call returns given to the next."""
    run, names, initial = onnx_peer.onnx_session(instance, threads)
    after = [(name, names.index(f"{name[0]}y{name[2:]}")) for name in initial]  # hx_l0 is hy_l0 of the call before
    place = names.index("y")

    def step(x, state):
        found = run(None, state | {"x": x})
        return found[place], {name: found[number] for name, number in after}

    def states(state):
        of = lambda letter: [array for name, array in state.items() if name[0] == letter]  # noqa: E731
        return {f"{letter}y": of(letter) for letter in ("hc" if instance.case.has_c else "h")}

    return Stream(onnx_peer.NAME, [np.ascontiguousarray(x[None]) for x in instance.x], step, initial, states)
