"""numbarnn and its peers on the problems of `cases`: for checking results, and for comparing times.

Results are dicts of NumPy arrays by quantity: y (T, B, D*H_last); hy, cy, dhx, dcx as lists of (D, B, H_l), one per
layer; dx (T, B, I); and the gradient of each parameter by its name. With a projection, P stands for H but in cy and
dcx. Here is numbarnn; the peers have modules of their own: `torch_peer`, `onnx_peer`, `cudnn_peer`.
"""

import numpy as np

from numbarnn.bench.cases import sequences
from numbarnn.bench.cases.cases import make_layer, pack_states, unpack_states
from numbarnn.bench.peers.contender import Contender, installed
from numbarnn.bench.peers.onnx_peer import ONNX_GATE_ORDER, onnxruntime_contender
from numbarnn.bench.peers.torch_peer import (
    numpy_to_torch,
    torch_contender,
    torch_results,
    torch_threads,
    torch_to_numpy,
)

__all__ = [
    "ONNX_GATE_ORDER",
    "Contender",
    "call_options",
    "input_shape",
    "installed",
    "make_layer",
    "numbarnn_contender",
    "numbarnn_gradients",
    "numbarnn_outputs",
    "numpy_to_torch",
    "onnxruntime_contender",
    "to_engine",
    "to_engine_state",
    "to_host",
    "torch_contender",
    "torch_results",
    "torch_threads",
    "torch_to_numpy",
]


def numbarnn_contender(problem, train, device="cpu", schedule="auto"):
    """A numbarnn layer at what `torch_contender` does: train gives dx, dhx, dcx and all weight gradients."""
    layer = make_layer(problem.case, device, problem.parameters, schedule)
    forward_plan = layer.explain(input_shape(problem)).splitlines()[1]  # the schedule and its reason
    x, dy = to_engine(layer, problem, problem.x), to_engine(layer, problem, problem.dy)
    state = to_engine_state(layer, problem.h0, problem.c0)

    def forward():
        return layer(x, state)

    def forward_and_backward():
        y, final, tape = layer.forward(x, state)
        return y, final, layer.backward(tape, dy)

    def results(returned):
        found = numbarnn_outputs(layer, problem, *returned[:2])
        return found | numbarnn_gradients(layer, problem, returned[2]) if train else found

    synchronize = getattr(layer.engine, "synchronize", lambda: None)
    call = forward_and_backward if train else forward
    return Contender(f"numbarnn {schedule}", call, results, synchronize, forward_plan)


# ---- a problem's arrays as layers take them ----


def input_shape(problem):
    """The shape of x as layers take it, before packing."""
    T, B, width = problem.x.shape
    return (B, T, width) if problem.case.batch_first else (T, B, width)


def to_engine(layer, problem, array):
    """x or dy as the layer takes it: on its engine, packed or batch first where the case says so. None stays None."""
    if array is None:
        return None
    if problem.case.lengths == "packed":
        import numbarnn

        by_length, places, batch_sizes = sequences.order(problem.lengths)
        rows = layer.engine.from_host(sequences.pack(array, problem.lengths))
        return numbarnn.PackedSequence(rows, batch_sizes, by_length, places)
    return layer.engine.from_host(np.ascontiguousarray(array.swapaxes(0, 1)) if problem.case.batch_first else array)


def to_engine_state(layer, *states):
    """Per-layer states (h, and c of the LSTM) as the layer takes them: h, (h, c), or None."""
    packed = [pack_states(state) for state in states if state is not None]
    arrays = [
        [layer.engine.from_host(part) for part in state] if isinstance(state, list) else layer.engine.from_host(state)
        for state in packed
    ]
    return tuple(arrays) if len(arrays) == 2 else arrays[0] if arrays else None


def call_options(problem, steps=slice(None)):
    """The options of a call that the case uses: lengths (unless packed), padding_value, resets.

    steps   which of the times are given to the call
    """
    case, options = problem.case, {}
    if case.lengths == "padded":
        begin, end, _ = steps.indices(case.T)
        options["lengths"] = np.clip(problem.lengths - begin, 0, end - begin)
    if case.padding_value:
        options["padding_value"] = case.padding_value
    if case.resets:
        resets = problem.resets[steps]
        batch_first = case.batch_first and case.lengths != "packed"
        options["resets"] = np.ascontiguousarray(resets.T) if batch_first else resets
    return options


# ---- what layers return, as results ----


def numbarnn_outputs(layer, problem, y, state):
    """y, hy and cy that a layer returned, as NumPy arrays by quantity."""
    case = problem.case
    results = {"y": from_engine(layer, problem, y, case.padding_value)}
    for quantity, value in zip(("hy", "cy"), state if case.has_c else (state,), strict=False):
        results[quantity] = unpack_states(case, to_host(layer, value))
    return results


def numbarnn_gradients(layer, problem, gradients):
    """dx, dhx, dcx and the gradient of each parameter that a layer returned, as NumPy arrays by quantity."""
    case, results = problem.case, {"dx": from_engine(layer, problem, gradients.x)}
    state = gradients.state if case.has_c else (gradients.state,)
    for quantity, value in zip(("dhx", "dcx"), state, strict=False):
        results[quantity] = unpack_states(case, to_host(layer, value))
    return results | {name: to_host(layer, value) for name, value in gradients.params.items()}


def from_engine(layer, problem, value, padding_value=0.0):
    """The reverse of `to_engine`, for a y or dx that a layer returned; a packed one gets `padding_value` as padding."""
    if problem.case.lengths == "packed":
        return sequences.unpack(to_host(layer, value.data), problem.lengths, problem.case.T, padding_value)
    array = to_host(layer, value)
    return array.swapaxes(0, 1) if problem.case.batch_first else array


def to_host(layer, value):
    """An array of the layer's engine, or a list of such arrays, in NumPy."""
    if isinstance(value, (list, tuple)):
        return [to_host(layer, part) for part in value]
    return None if value is None else layer.engine.to_host(value)
