"""Run numbarnn on instances of `cases`, to check results and to compare times.

Results are dicts of NumPy arrays by quantity: y (T, B, D*H_last); hy, cy, dhx, dcx as lists of (D, B, H_l), one per
layer; dx (T, B, I); and the gradient of each parameter by its name. With a projection, y, hy and dhx have P in place of
H.
"""

from dataclasses import replace
from functools import partial

import numpy as np

import numbarnn
from numbarnn.bench.cases import make_layer, pack_states, unpack_states
from numbarnn.bench.peers.contender import Contender
from numbarnn.bench.shapes import FORWARD, FORWARD_TRAINING, TRAINING, gradients_of_pass


def numbarnn_contender(instance, what, device="cpu", schedule="auto"):
    """Return a numbarnn layer as a contender for one of the passes of `shapes`.

    A backward pass without forward runs repeatedly on one tape, which it retains."""
    layer, need = make_layer(instance.case, device, instance.parameters, schedule), gradients_of_pass(what)
    x, state, dy = inputs(layer, instance)

    def results(returned):
        y, final, *gradients = returned
        quantities = {} if y is None else numbarnn_outputs(layer, instance, y, final)
        return quantities | (numbarnn_gradients(layer, instance, gradients[0], need) if need else {})

    call = layer_call(layer, what, x, state, dy, **call_options(instance))
    return Contender(f"numbarnn {schedule}", call, results, synchronize_of(layer), plan_of(layer, x))


def layer_call(layer, what, x, state, dy, **options):
    """Return a function that runs a pass and returns y, the final state and, after backward, gradients."""
    if what in (FORWARD, FORWARD_TRAINING):
        return partial(layer if what == FORWARD else layer.forward, x, state, **options)

    def forward_and_backward():
        y, final, tape = layer.forward(x, state, **options)
        return y, final, layer.backward(tape, dy)

    if what == TRAINING:
        return forward_and_backward
    *_, tape = layer.forward(x, state, **options)
    return lambda: (None, None, layer.backward(tape, dy, need=gradients_of_pass(what), retain=True))


def synchronize_of(layer):
    return getattr(layer.engine, "synchronize", None) or (lambda: None)


def plan_of(layer, x):
    """Return the schedule that a layer chooses for x, and the reason."""
    return layer.explain(tuple(x.shape)).splitlines()[1]


# ----------------------------------------------------------------------------- an instance's arrays as layers take them
def to_engine(layer, instance, array):
    """Return x or dy as the layer takes it: on its engine, packed or batch first."""
    if array is None:
        return None
    if instance.case.lengths == "packed":
        packed = numbarnn.pack_padded_sequence(array, instance.lengths)
        return replace(packed, data=layer.engine.from_host(packed.data))
    return layer.engine.from_host(np.ascontiguousarray(array.swapaxes(0, 1)) if instance.case.batch_first else array)


def to_engine_state(layer, *states):
    """Return per-layer states (h, and c of the LSTM) as the layer takes them: h, (h, c), or None."""
    move = layer.engine.from_host
    packed = [pack_states(state) for state in states if state is not None]
    arrays = [list(map(move, state)) if isinstance(state, list) else move(state) for state in packed]
    return tuple(arrays) if len(arrays) == 2 else arrays[0] if arrays else None


def inputs(layer, instance):
    x, dy = (to_engine(layer, instance, array) for array in (instance.x, instance.dy))
    return x, to_engine_state(layer, instance.h0, instance.c0), dy


def call_options(instance, steps=slice(None)):
    """Return the call options that the case uses for some steps: lengths, padding_value, resets."""
    case, options = instance.case, {}
    if case.lengths in ("padded", "half"):
        begin, end, _ = steps.indices(case.T)
        options["lengths"] = np.clip(instance.lengths - begin, 0, end - begin)
    if case.padding_value:
        options["padding_value"] = case.padding_value
    if case.resets:
        resets = instance.resets[steps]
        batch_first = case.batch_first and case.lengths != "packed"
        options["resets"] = np.ascontiguousarray(resets.T) if batch_first else resets
    return options


# -------------------------------------------------------------------------------------------------------------- results
def numbarnn_outputs(layer, instance, y, state):
    y = from_engine(layer, instance, y, instance.case.padding_value)
    return {"y": y} | named_states(layer, instance.case, ("hy", "cy"), state)


def numbarnn_gradients(layer, instance, gradients, need=("x", "weights")):
    """Return dx, dhx, dcx and the gradient of each parameter, as NumPy arrays by quantity."""
    results = {}
    if "x" in need:
        results = {"dx": from_engine(layer, instance, gradients.x)}
        results |= named_states(layer, instance.case, ("dhx", "dcx"), gradients.state)
    params = gradients.params if "weights" in need else {}
    return results | {name: to_host(layer, value) for name, value in params.items()}


def named_states(layer, case, names, state):
    """Return a layer's state, or its gradient, as {name: list of NumPy arrays}. names: of h and c."""
    parts = state if case.has_c else (state,)
    return {name: unpack_states(case, to_host(layer, part)) for name, part in zip(names, parts, strict=False)}


def from_engine(layer, instance, value, padding_value=0.0):
    """Return a layer's y or dx as a NumPy array (T, B, ...): undo `to_engine`."""
    if instance.case.lengths == "packed":
        packed, padding = replace(value, data=to_host(layer, value.data)), {"padding_value": padding_value}
        return numbarnn.pad_packed_sequence(packed, **padding, total_length=instance.case.T)[0]
    array = to_host(layer, value)
    return array.swapaxes(0, 1) if instance.case.batch_first else array


def to_host(layer, value):
    if isinstance(value, (list, tuple)):
        return [to_host(layer, part) for part in value]
    return None if value is None else layer.engine.to_host(value)
