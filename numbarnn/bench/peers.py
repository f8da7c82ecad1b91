"""PyTorch and onnxruntime on the problems of `cases`: for checking results, and for comparing times.

Results are dicts of NumPy arrays by quantity: y (T, B, D*H_last); hy, cy, dhx, dcx as lists of (D, B,
H_l), one per layer; dx (T, B, I); and the gradient of each parameter by its name.
"""

import importlib.util
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from numbarnn.bench.cases import GATES, make_layer, pack_states, unpack_states
from numbarnn.cells import precision

# numbarnn and PyTorch order gates i f g o and r z n (h for n in ONNX); ONNX has i o f c and z r h.
ONNX_GATE_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
ONNX_OPERATOR = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
ONNX_OPSET, ONNX_IR_VERSION = 17, 9  # read by every onnxruntime since 1.16


@dataclass(frozen=True)
class Contender:
    """Something to time: `call()` does the work, `results(call())` gives it as NumPy arrays by quantity."""

    name: str
    call: Callable
    results: Callable
    synchronize: Callable = lambda: None
    plan: str | None = None  # what numbarnn runs, and why


def installed(*modules):
    """True when every one of these packages can be imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


# ---- PyTorch ----


@contextmanager
def torch_threads(threads):
    """A context in which PyTorch, where it is installed, uses that many CPU threads."""
    if not installed("torch"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def torch_module(problem, layers, device="cpu"):
    """The torch.nn module that computes layers `layers` (a range, of one hidden size) of a problem."""
    import torch

    case, first = problem.case, layers[0]
    kind = {"lstm": "LSTM", "gru": "GRU"}.get(case.cell, "RNN")
    options = {} if kind != "RNN" else {"nonlinearity": case.cell.removeprefix("rnn_")}
    module = getattr(torch.nn, kind)(
        case.layer_input_size(first),
        case.hidden[first],
        num_layers=len(layers),
        bias=case.bias,
        bidirectional=case.bidirectional,
        dtype=getattr(torch, case.dtype),
        device=device,
        **options,
    )
    own_name = {f"_l{k}": f"_l{k - first}" for k in layers}
    state = {}
    for name, array in problem.parameters.items():
        layer = "_l" + name.split("_l")[1].split("_")[0]
        if layer in own_name:
            state[name.replace(layer, own_name[layer])] = numpy_to_torch(array)
    module.load_state_dict(state)
    return module


def torch_results(problem, masks=None):
    """PyTorch's results, forward and backward, on the CPU, in the problem's dtype.

    masks   what the outputs of all layers but the last are multiplied by: a list of (T, B, D*H_l), or None

    Each layer is a module of its own, so that layers may differ in size and the masks are given.
    """
    import torch

    case = problem.case
    modules = [torch_module(problem, range(k, k + 1)) for k in range(case.L)]
    x = numpy_to_torch(problem.x).requires_grad_()
    h0 = torch_states(case, problem.h0)
    c0 = torch_states(case, problem.c0) if case.cell == "lstm" else None
    y, hy, cy = x, [], []
    for k, module in enumerate(modules):
        y, state = module(y, h0[k] if c0 is None else (h0[k], c0[k]))
        hy.append(state if c0 is None else state[0])
        cy += [] if c0 is None else [state[1]]
        if masks is not None and k < case.L - 1:
            y = y * numpy_to_torch(np.asarray(masks[k], dtype=case.dtype))
    given = [(y, problem.dy)] if problem.dy is not None else []
    given += [pair for pair in zip(hy, problem.dhy or (), strict=False)]
    given += [pair for pair in zip(cy, problem.dcy or (), strict=False)]
    torch.autograd.backward([output for output, _ in given], [numpy_to_torch(array) for _, array in given])
    results = {"y": y, "hy": hy, "dx": x.grad, "dhx": [h.grad for h in h0]}
    results |= {"cy": cy, "dcx": [c.grad for c in c0]} if c0 is not None else {}
    for k, module in enumerate(modules):
        results |= {name.replace("_l0", f"_l{k}"): p.grad for name, p in module.named_parameters()}
    return {quantity: torch_to_numpy(value) for quantity, value in results.items()}


def torch_states(case, states):
    """Per-layer initial states as leaf tensors; zeros where none are given."""
    if states is None:
        states = [np.zeros((case.D, case.B, H), case.dtype) for H in case.hidden]
    return [numpy_to_torch(state).requires_grad_() for state in states]


def torch_to_numpy(value):
    """A tensor, or a list of tensors, as NumPy arrays."""
    import torch

    if isinstance(value, list):
        return [torch_to_numpy(part) for part in value]
    value = value.detach().cpu()
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.contiguous().view(torch.int16).numpy().view(precision.numpy_dtype("bfloat16"))


def numpy_to_torch(array, device="cpu"):
    """An array as a tensor; PyTorch does not know NumPy's bfloat16, but its bits."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def torch_contender(problem, train, device="cpu"):
    """nn.LSTM, nn.GRU or nn.RNN as its users call it: forward without gradients, or forward and backward."""
    import torch

    case = problem.case
    module = torch_module(problem, range(case.L), device)
    inputs = [numpy_to_torch(problem.x, device)]
    inputs += [numpy_to_torch(pack_states(case, s), device) for s in (problem.h0, problem.c0) if s]
    dy = numpy_to_torch(problem.dy, device)
    for tensor in inputs:
        tensor.requires_grad_(train)
    x, state = inputs[0], inputs[1] if len(inputs) == 2 else tuple(inputs[1:])
    leaves = [*inputs, *module.parameters()]
    module.train(train)

    def forward():
        with torch.no_grad():
            return module(x, state)

    def forward_and_backward():
        for leaf in leaves:
            leaf.grad = None
        y, final = module(x, state)
        y.backward(dy)
        return y, final

    def results(returned):
        y, final = returned
        states = final if case.cell == "lstm" else (final,)
        found = {"y": torch_to_numpy(y)}
        for quantity, value in zip(("hy", "cy"), states, strict=False):
            found[quantity] = unpack_states(case, torch_to_numpy(value))
        if train:
            found["dx"] = torch_to_numpy(x.grad)
            for quantity, leaf in zip(("dhx", "dcx"), inputs[1:], strict=False):
                found[quantity] = unpack_states(case, torch_to_numpy(leaf.grad))
            found |= {name: torch_to_numpy(p.grad) for name, p in module.named_parameters()}
        return found

    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    return Contender("torch", forward_and_backward if train else forward, results, synchronize)


# ---- numbarnn ----


def numbarnn_contender(problem, train, device="cpu", schedule="auto"):
    """A numbarnn layer at what `torch_contender` does: train gives dx, dhx, dcx and all weight gradients."""
    case = problem.case
    layer = make_layer(case, device, problem.parameters, schedule)
    forward_plan = layer.explain(input_shape(problem)).splitlines()[1]  # the schedule and its reason
    x, dy = to_engine(layer, case, problem.x), to_engine(layer, case, problem.dy)
    state = to_engine_state(layer, case, problem.h0, problem.c0)

    def forward():
        return layer(x, state)

    def forward_and_backward():
        y, final, tape = layer.forward(x, state)
        return y, final, layer.backward(tape, dy)

    def results(returned):
        found = numbarnn_outputs(layer, case, *returned[:2])
        return found | numbarnn_gradients(layer, case, returned[2]) if train else found

    synchronize = getattr(layer.engine, "synchronize", lambda: None)
    call = forward_and_backward if train else forward
    return Contender(f"numbarnn {schedule}", call, results, synchronize, forward_plan)


def input_shape(problem):
    """The shape of x as layers take it."""
    T, B, width = problem.x.shape
    return (B, T, width) if problem.case.batch_first else (T, B, width)


def to_engine(layer, case, array):
    """x or dy as the layer takes it: on its engine, batch first where the case says so. None stays None."""
    if array is None:
        return None
    return layer.engine.from_host(np.ascontiguousarray(array.swapaxes(0, 1)) if case.batch_first else array)


def to_engine_state(layer, case, *states):
    """Per-layer states (h, and c of the LSTM) as the layer takes them: h, (h, c), or None."""
    packed = [pack_states(case, state) for state in states if state is not None]
    arrays = [
        [layer.engine.from_host(part) for part in state] if isinstance(state, list) else layer.engine.from_host(state)
        for state in packed
    ]
    return tuple(arrays) if len(arrays) == 2 else arrays[0] if arrays else None


def numbarnn_outputs(layer, case, y, state):
    """y, hy and cy that a layer returned, as NumPy arrays by quantity."""
    y = to_host(layer, y)
    results = {"y": y.swapaxes(0, 1) if case.batch_first else y}
    for quantity, value in zip(("hy", "cy"), state if case.cell == "lstm" else (state,), strict=False):
        results[quantity] = unpack_states(case, to_host(layer, value))
    return results


def numbarnn_gradients(layer, case, gradients):
    """dx, dhx, dcx and the gradient of each parameter that a layer returned, as NumPy arrays by quantity."""
    dx = to_host(layer, gradients.x)
    results = {"dx": dx.swapaxes(0, 1) if case.batch_first else dx}
    state = gradients.state if case.cell == "lstm" else (gradients.state,)
    for quantity, value in zip(("dhx", "dcx"), state, strict=False):
        results[quantity] = unpack_states(case, to_host(layer, value))
    return results | {name: to_host(layer, value) for name, value in gradients.params.items()}


def to_host(layer, value):
    """An array of the layer's engine, or a list of such arrays, in NumPy."""
    if isinstance(value, (list, tuple)):
        return [to_host(layer, part) for part in value]
    return None if value is None else layer.engine.to_host(value)


# ---- onnxruntime ----


def onnx_model(problem):
    """The problem as an ONNX model of one node per layer: one direction, states given, float32."""
    from onnx import TensorProto, helper, numpy_helper

    case, (T, B) = problem.case, problem.x.shape[:2]
    order = ONNX_GATE_ORDER[case.cell]

    def reordered(array):
        gates = array.reshape(GATES[case.cell], -1, *array.shape[1:])
        return np.ascontiguousarray(gates[list(order)].reshape(array.shape))

    def value_info(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    attributes = {"gru": {"linear_before_reset": 1}, "rnn_relu": {"activations": ["Relu"]}}.get(case.cell, {})
    inputs, outputs, nodes = [value_info("x", T, B, case.input_size)], [], []
    weights = [numpy_helper.from_array(np.array([1], np.int64), "axis_of_directions")]
    below = "x"
    for k, H in enumerate(case.hidden):
        W, R, b_w, b_r = (
            reordered(problem.parameters[f"{name}_l{k}"]) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        arrays = {f"W{k}": W[None], f"R{k}": R[None], f"b{k}": np.concatenate([b_w, b_r])[None]}
        weights += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        states = "hc" if case.cell == "lstm" else "h"
        node_inputs = [below, *arrays, "", *(f"{s}0_{k}" for s in states)]
        node_outputs = [f"y_with_directions{k}", *(f"{s}y_{k}" for s in states)]
        nodes.append(helper.make_node(ONNX_OPERATOR[case.cell], node_inputs, node_outputs, hidden_size=H, **attributes))
        below = f"y{k}"
        nodes.append(helper.make_node("Squeeze", [node_outputs[0], "axis_of_directions"], [below]))
        inputs += [value_info(f"{s}0_{k}", 1, B, H) for s in states]
        outputs += [value_info(f"{s}y_{k}", 1, B, H) for s in states]
    graph = helper.make_graph(nodes, "numbarnn", inputs, [value_info(below, T, B, case.hidden[-1]), *outputs], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", ONNX_OPSET)])
    model.ir_version = ONNX_IR_VERSION
    return model


def onnxruntime_contender(problem, threads):
    """onnxruntime's CPU provider on `onnx_model`: float32, forward only."""
    import onnxruntime

    case = problem.case
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        onnx_model(problem).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": problem.x}
    for name, states in (("h", problem.h0), ("c", problem.c0)):
        feed |= {f"{name}0_{k}": state for k, state in enumerate(states or ())}
    names = [output.name for output in session.get_outputs()]

    def results(returned):
        found = dict(zip(names, returned, strict=True))
        states = {f"{s}y": [found[f"{s}y_{k}"] for k in range(case.L)] for s in ("hc" if problem.c0 else "h")}
        return {"y": returned[0]} | states

    return Contender("onnxruntime", lambda: session.run(None, feed), results)
